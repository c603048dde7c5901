"""A plugin that adds a launcher and nothing else."""

from __future__ import annotations

from neoxargs.plugin import Launcher, Start, add_launcher


def flux(start: Start) -> list[str]:
    """One `flux run` for all ranks."""
    return ["flux", "run", f"--nodes={len(start.hosts)}", f"--ntasks={start.ranks}", *start.arguments, *start.words]


add_launcher(Launcher("flux", program="flux", command=flux, allocates_hosts=True, always_remote=True))
