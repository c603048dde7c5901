"""GPT-NeoX's YAML, of any year: edited in place."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neoxargs.problems import Place, Problem, Problems
from neoxargs.resolve import Text
from neoxargs.tools.migrate.neox.migrate import migrate
from neoxargs.tools.migrate.result import Result
from neoxargs.tools.migrate.source import Options, Source

#: How a script is called that is not YAML, whatever stands in it.
SHELLS = (".sh", ".bash", ".slurm", ".sbatch")


class NeoX(Source):
    """YAML that GPT-NeoX reads, of any year."""

    name = "neox"
    describes = "GPT-NeoX's YAML"
    options = frozenset({"--to"})
    edits_in_place = True

    def recognises(self, text: Text) -> bool:
        return text.name.endswith((".yml", ".yaml"))

    def converts(self, texts: Sequence[Text], options: Options) -> Result:
        if texts[0].name.endswith(SHELLS):
            raise Problems([_other_script(texts[0])])
        return migrate(texts, options.to)


def _other_script(text: Text) -> Problem:
    """For a script that starts something else, such as a Trainer of Hugging Face."""
    match = re.search(r"--deepspeed(?:[-_]config)?[= ]+(\S+\.json)\b", text.text)
    hint = f"deepy migrate {match[1]}, which is DeepSpeed's" if match else "flags such as --num-layers are looked for"
    what = "nothing in this script starts Megatron-LM"
    return Problem(what, Place(text.name, 0, 0), hint, id="migrate-script-without-megatron")
