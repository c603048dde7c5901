"""DeepSpeed's JSON in its usual forms: a file, a Python dict, or a block inside a document."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.migrate.deepspeed.convert import convert_version, is_deepspeed
from neoxargs.migrate.deepspeed.lenient_json import blocks
from neoxargs.migrate.deepspeed.placeholders import without_placeholders
from neoxargs.migrate.deepspeed.versions import chosen, versions
from neoxargs.migrate.result import Result
from neoxargs.migrate.source import Options, Source
from neoxargs.resolve.yaml.compose import TOO_LONG


class DeepSpeed(Source):
    """The JSON configuration that DeepSpeed reads."""

    name = "deepspeed"
    describes = "a DeepSpeed JSON"
    options = frozenset({"--var", "--choose", "--deepspeed"})

    def recognises(self, text: Text) -> bool:
        try:
            read = blocks(text)
        except Problems as stop:  # it begins like a configuration; `converts` reports why it cannot be read
            return all(problem.id != TOO_LONG for problem in stop.problems)
        return bool(read) and all(is_deepspeed(block.tree) for block in read)

    def converts(self, texts: Sequence[Text], options: Options) -> Result:
        (text,) = texts
        offered = versions([without_placeholders(block) for block in blocks(text, options.variables)])
        if not offered:
            hint = "write the configuration at the beginning of a line: `{ ... }` or `name = { ... }`"
            what = "this file contains no DeepSpeed configuration"
            raise Problems([Problem(what, Place(text.name, 0, 0), hint, id="migrate-no-configuration")])
        return convert_version(chosen(offered, options.choose, text.name), text.name, options.deepspeed)
