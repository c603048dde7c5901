"""GPT-NeoX YAML of any year, edited in place."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.migrate.neox.migrate import migrate
from neoxargs.migrate.result import Result
from neoxargs.migrate.source import Options, Source

#: Suffixes of shell scripts. GPT-NeoX is the fallback source, so scripts without Megatron-LM flags arrive here.
SHELLS = (".sh", ".bash", ".slurm", ".sbatch")


class NeoX(Source):
    """YAML of any GPT-NeoX version."""

    name = "neox"
    describes = "GPT-NeoX YAML"
    options = frozenset({"--to"})
    edits_in_place = True

    def recognises(self, text: Text) -> bool:
        return text.name.endswith((".yml", ".yaml"))

    def converts(self, texts: Sequence[Text], options: Options) -> Result:
        if texts[0].name.endswith(SHELLS):
            raise Problems([_not_megatron(texts[0])])
        return migrate(texts, options.to)


def _not_megatron(text: Text) -> Problem:
    """Return the problem for a script that starts another program, such as Hugging Face's Trainer."""
    match = re.search(r"--deepspeed(?:[-_]config)?[= ]+(\S+\.json)\b", text.text)
    json_hint = f"migrate its DeepSpeed JSON instead: deepy migrate {match[1]}" if match else ""
    hint = json_hint or "migrate a script that has a command with flags such as --num-layers"
    what = "this script does not start Megatron-LM"
    return Problem(what, Place(text.name, 0, 0), hint, id="migrate-script-without-megatron")
