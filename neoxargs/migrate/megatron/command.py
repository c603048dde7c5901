"""A Megatron-LM command line or the shell script that contains it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neoxargs.base.files import Text
from neoxargs.migrate.megatron.convert import convert_script
from neoxargs.migrate.result import Result
from neoxargs.migrate.source import Options, Source


class Megatron(Source):
    """A shell script with flags of Megatron-LM or Megatron-DeepSpeed."""

    name = "megatron"
    describes = "a Megatron-LM script"
    options = frozenset({"--var", "--choose", "--run"})
    is_whole_run = True

    def recognises(self, text: Text) -> bool:
        if re.search(r"--(num[-_]layers|(tensor|pipeline)[-_]model[-_]parallel[-_]size)\b", text.text):
            return True
        # One of the flags above may be misspelt.
        others = r"--(hidden[-_]size|num[-_]attention[-_]heads|seq[-_]length|(?:micro|global)[-_]batch[-_]size)\b"
        return len(set(re.findall(others, text.text))) > 2

    def converts(self, texts: Sequence[Text], options: Options) -> Result:
        (text,) = texts
        return convert_script(text, options.variables, options.environ, options.choose, options.run)
