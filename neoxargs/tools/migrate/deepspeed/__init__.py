"""DeepSpeed's JSON, in whatever form it is kept: as a file of its own, a Python dict, a block of a document."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.problems import Place, Problem, Problems
from neoxargs.resolve import Text
from neoxargs.tools.migrate.deepspeed.convert import convert_version, is_deepspeeds
from neoxargs.tools.migrate.deepspeed.lenient_json import blocks
from neoxargs.tools.migrate.deepspeed.versions import chosen, versions
from neoxargs.tools.migrate.result import Result
from neoxargs.tools.migrate.source import Options, Source


class DeepSpeed(Source):
    """The configuration that DeepSpeed reads."""

    name = "deepspeed"
    describes = "DeepSpeed's JSON"
    options = frozenset({"--choose"})

    def recognises(self, text: Text) -> bool:
        """Also of what begins like a configuration and cannot be read: then it is told why."""
        try:
            found = blocks(text)
        except Problems:
            return True
        return bool(found) and all(is_deepspeeds(block.tree) for block in found)

    def converts(self, texts: Sequence[Text], options: Options) -> Result:
        (text,) = texts
        offered = versions(blocks(text))
        if not offered:
            hint = "a configuration is `{ ... }`, beginning on a line of its own"
            what = "there is no configuration in this file"
            raise Problems([Problem(what, Place(text.name, 0, 0), hint, id="migrate-no-configuration")])
        return convert_version(chosen(offered, options.choose, text.name), text.name)
