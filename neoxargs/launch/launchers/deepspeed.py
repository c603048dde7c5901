"""DeepSpeed's runner: it starts the ranks of one machine itself, and those of several through a launcher it knows.

To other machines it hands the variables whose names begin with `environment.EXPORTED` and the lines of
`.deepspeed_env`, as words of command lines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from neoxargs.launch.launchers.launcher import Launcher

#: What all launchers have in common that DeepSpeed's runner starts.
THROUGH_RUNNER = Launcher("", inherits_environment=False, reads_env_files=True, argv_visible=True)
#: What those of MPI have in common.
MPIRUN = replace(THROUGH_RUNNER, by_ssh=True, needs_every_slot=True, mpirun=True)


def runner_command(flags: Sequence[str], program: Sequence[str]) -> list[str]:
    """The words that start the runner; program: the script of one rank with its arguments."""
    return [sys.executable, "-m", "deepspeed.launcher.runner", *flags, *program]
