"""Warnings of a run that uses one machine because there is no hostfile, although its settings or job name several."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from neoxargs.base.problems import Problem
from neoxargs.hosts import slurm
from neoxargs.hosts.devices import Device
from neoxargs.hosts.hostfile import Where
from neoxargs.hosts.launchers import launcher_named

if TYPE_CHECKING:
    from neoxargs.registry.runner import Runner

#: Where DeepSpeed's runner looks for a hostfile when `hostfile` is not set.
DEFAULT_HOSTFILE = "/job/hostfile"


def only_this_machine(
    runner: Runner, used: tuple[int, Device] | None, path: str, environ: Mapping[str, str], where: Where
) -> Iterator[Problem]:
    """Yield a warning if the run was probably meant for other machines too.

    used: number and kind of this machine's devices, None if they cannot be selected. path: of the absent hostfile.
    """
    key, reason, remedy = _expected(runner, path, environ)
    if not reason:
        return
    what = reason
    if used:
        count, device = used
        one, several = ("GPU", "GPUs") if device == "cuda" else ("process on the CPU", "processes on the CPU")
        what += f"; only this machine is used: {count} {one if count == 1 else several}"
    hint = f"{remedy} with one line per machine, such as: node1 slots=8"
    place = None if environ.get("DLTS_HOSTFILE") else where(key)
    yield Problem(what, place, hint, severity="warning", id="hostfile-missing", about=(key,))


def _expected(runner: Runner, path: str, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the parameter that needs a hostfile, why, and what to do; empty if this machine is all that is wanted."""
    # The default path is rarely present. `hostfile: None` is a string in YAML, and means no hostfile.
    if path not in (DEFAULT_HOSTFILE, "None"):
        name = f"the hostfile {path}" + (" that DLTS_HOSTFILE names" if environ.get("DLTS_HOSTFILE") else "")
        return "hostfile", f"{name} {'is not a file' if os.path.exists(path) else 'does not exist'}", "create it"
    launcher, nodes = launcher_named(runner.launcher), len(slurm.nodes_of_job(environ))
    if runner.no_ssh or runner.num_nodes == 1 or slurm.in_step(environ):  # each machine gets a command of its own
        return "", "", ""
    if nodes > 1:
        reason = f"this Slurm job has {nodes} nodes, which launcher {launcher.name} uses only with a hostfile"
        return "launcher", reason, "set launcher: srun, or set hostfile to a file"
    reaches_others = launcher.needs_every_slot or launcher.always_remote or runner.force_multi
    reason = f"launcher {launcher.name} has no hostfile" if reaches_others else ""
    return "launcher", reason, "set hostfile to a file"
