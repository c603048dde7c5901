"""Programs: the script that a launch starts, and the modules that run as processes of their own.

GPT-NeoX's scripts have the same names as the shipped programs. A file at the given path takes precedence; otherwise the
shipped program with that name is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from neoxargs.base.problems import Problem, Problems, did_you_mean, listed
from neoxargs.base.shipped import SHIPPED

#: The programs of which is known what they need; `deepy export` runs by itself.
Program = Literal["train", "generate", "eval", "export"]
#: Those that write nothing but logs of their own attempt to the folders of a run.
READERS = ("generate", "eval")
#: The shipped programs by file name.
PROGRAMS: dict[str, Program] = {"train.py": "train", "generate.py": "generate", "eval.py": "eval"}

#: Ends of the names of launch scripts, of which `plan` takes the run that they start.
SHELL_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")

# Modules that are started with `python -m`. No import checker sees such a name, so all of them stand here.
CLI = "neoxargs.cli"
LOCAL_RANKS = "neoxargs.train.local_ranks"
OVER_SSH = "neoxargs.launch.command.over_ssh"
COMPILE_OP = "neoxargs.train.process.deepspeed_ops"
LM_EVAL_TASKS = "neoxargs.train.evaluation.lm_eval_tasks"
LOST_RANKS = "neoxargs.launch.start.lost_ranks"
DATA = "neoxargs.data.command"
TOKEN_FILES = "neoxargs.data.token_file_commands"
CHAT_DATA = "neoxargs.data.chat.command"
EXPORT = "neoxargs.convert.huggingface.exporting"
IMPORT = "neoxargs.convert.huggingface.importing"
TRIALS = "neoxargs.train.trials.main"
SCRIPT_RANK = "neoxargs.processes.script_rank"


class Script(NamedTuple):
    """The script that every rank runs."""

    path: str
    program: Program | None = None
    """Which of the shipped programs it is; None for a user's script."""


def find_script(name: str) -> Script:
    """Return the script at that path, or else the shipped program of that name; raises Problems."""
    for path in (Path(name), SHIPPED / name):
        if path.is_file():
            return Script(str(path), program_of(path))
    local = sorted(path.name for path in Path().glob("*.py"))
    scripts = dict.fromkeys([*PROGRAMS, *local])
    hint = did_you_mean(name, scripts) or f"pass {listed(scripts)}"
    raise Problems([Problem(f"there is no script {name}", hint=hint, id="script-missing")])


def program_of(path: Path) -> Program | None:
    """Return the shipped program that a file is, in any checkout; None for another file."""
    shipped = SHIPPED / path.name
    is_shipped = path.name in PROGRAMS and shipped.is_file() and path.read_bytes() == shipped.read_bytes()
    return PROGRAMS[path.name] if is_shipped else None
