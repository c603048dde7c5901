"""The launchers, a table of records (`rows.py`); a plugin can add more.

    def flux(start: Start) -> list[str]:
        return ["flux", "run", f"--nodes={len(start.hosts)}", f"--ntasks={start.ranks}", *start.words]

    add_launcher(Launcher("flux", program="flux", command=flux))

`launcher: flux` then starts that command instead of DeepSpeed's runner. The fields of its record decide which checks it
gets and how it is reported. Each rank needs RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
environment, as `torch.distributed` does.
"""

from __future__ import annotations

from neoxargs.base.record import replace
from neoxargs.hosts.launchers.launcher import Launcher, Start
from neoxargs.hosts.launchers.rows import BUILT_IN, THROUGH_RUNNER
from neoxargs.registry.plugins import choices

__all__ = ["BUILT_IN", "LAUNCHERS", "THROUGH_RUNNER", "Launcher", "Start", "add_launcher", "launcher_named"]

#: All launchers by name, with those of plugins.
LAUNCHERS = {launcher.name: launcher for launcher in BUILT_IN}


def add_launcher(launcher: Launcher) -> None:
    """Declare a launcher and add its name to the choices of the parameter `launcher`; for plugins."""
    hint = "a launcher without a command must be made with replace(THROUGH_RUNNER, name=...)"
    assert launcher.command or (launcher.reads_env_files and launcher.argv_visible), hint
    choices("launcher", launcher.name)
    LAUNCHERS.setdefault(launcher.name, launcher)


def launcher_named(name: str) -> Launcher:
    """Return the record of a launcher; a name that a plugin adds only as a choice is passed to DeepSpeed's runner."""
    return LAUNCHERS.get(name) or replace(THROUGH_RUNNER, name=name)
