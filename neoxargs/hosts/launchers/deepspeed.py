"""DeepSpeed's runner, which starts the ranks of one host itself, and those of several hosts through another launcher.

It passes the variables whose names begin with one of `environment.EXPORTED`, and the lines of `.deepspeed_env`, to
other hosts on command lines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from neoxargs.hosts.launchers.launcher import Launcher

#: The common fields of all launchers that DeepSpeed's runner starts.
THROUGH_RUNNER = Launcher("", inherits_environment=False, reads_env_files=True, argv_visible=True, negates_signals=True)


def runner_command(flags: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return the command of the runner. program: the script of one rank with its arguments."""
    return [sys.executable, "-m", "deepspeed.launcher.runner", *flags, *program]
