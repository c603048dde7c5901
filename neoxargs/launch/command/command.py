"""The exact command that starts a run: the launcher's arguments, the script, and payloads with the configuration."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.programs import SCRIPT_RANK, program_of
from neoxargs.base.record import Record
from neoxargs.base.shipped import IMPORT_ROOT
from neoxargs.config.config import Config
from neoxargs.hosts.environment import with_package
from neoxargs.hosts.hosts import SELECTION_FLAGS, Resources
from neoxargs.hosts.launchers import THROUGH_RUNNER, Launcher, Start, launcher_named
from neoxargs.hosts.launchers.rows import runner_command
from neoxargs.hosts.rendezvous import rendezvous_address, rendezvous_port
from neoxargs.hosts.slurm import job
from neoxargs.runs.launcher import launcher_of
from neoxargs.targets import deepspeed
from neoxargs.targets.planned import Planned
from neoxargs.targets.wire_format import script_arguments

#: What runs a user's script as a rank of a foreign launcher; by its file, because launchers take files.
SCRIPT_RANK_FILE = str(IMPORT_ROOT / f"{SCRIPT_RANK.replace('.', '/')}.py")


class Command(Record):
    """A program with its arguments, and changes to the environment of this process."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """Environment variables to set."""
    without: tuple[str, ...] = ()
    """Environment variables to remove."""
    launcher: Launcher = THROUGH_RUNNER
    """What the program is: how it stops its ranks, and what its exit codes mean."""

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program. base: the environment of this process."""
        kept = {name: value for name, value in base.items() if name not in self.without}
        return {**kept, **self.environment}

    def __str__(self) -> str:
        """Return a line for a shell."""
        changes = [f"-u{name}" for name in self.without]
        changes += [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join([*(["env", *changes] if changes else []), *self.words])


def command(
    config: Config, resources: Resources, script: str, environ: Mapping[str, str], port: int | None = None,
    attempt: str = "", launch: str = "", planned: Planned | None = None,
) -> Command:  # fmt: skip
    """Return the command that starts a run. port: replaces master_port; attempt, launch, planned: see RankArguments."""
    program = (script, *script_arguments(config, attempt, launch, job(environ) if attempt else "", planned))
    launcher = launcher_of(config, resources)
    if attempt and not launcher.passes_stop_on and program_of(Path(script)) is None:
        program = (SCRIPT_RANK_FILE, *program)
    if launcher.command:
        words = launcher.command(_start(config, resources, (sys.executable, *program), port))
    else:
        words = runner_command(runner_flags(config, resources, port), program)
    # `resources` already reflects CUDA_VISIBLE_DEVICES; the launcher would only warn that it ignores it
    without = () if resources.remote else tuple(name for name in ("CUDA_VISIBLE_DEVICES",) if name in environ)
    return Command(tuple(words), dict(_environment(resources, environ)), without, launcher)


def runner_flags(config: Config, resources: Resources, port: int | None = None) -> list[str]:
    """Return the flags of DeepSpeed's runner, which select the hosts and devices of `resources`; raises Problems."""
    if not launcher_named(config.runner.launcher).through_deepspeed:
        what = f"launcher ({config.runner.launcher}) does not use DeepSpeed's runner, so it takes no runner flags"
        hint = "use --emit command to print the command that starts the ranks"
        place = config.place("launcher")
        raise Problems([Problem(what, place, hint, id="launcher-without-flags", about=("launcher",))])
    # `selection` has the same flags as resolved here, so that the runner starts the ranks that were counted.
    selected = dict(resources.selection)
    if port is not None:
        selected["master_port"] = str(port)
    flags = list(_without(deepspeed.runner_flags(config), {*SELECTION_FLAGS, *selected}))
    if not config.is_set("log_level") and not config.get("quiet"):
        # after a failure the launcher would log its whole command with the payloads below the rank's traceback
        selected["log_level"] = "warning" if resources.remote else "critical"
    return [*(f"--{name}={value}" for name, value in selected.items()), *flags]


def _start(config: Config, resources: Resources, words: tuple[str, ...], port: int | None) -> Start:
    level = config.runner.log_level
    return Start(
        hosts={host: list(devices) for host, devices in resources.hosts.items()},
        words=words,
        master_addr=rendezvous_address(config, resources),
        master_port=port or rendezvous_port(config, resources),
        arguments=tuple(shlex.split(deepspeed.launcher_arguments(config))),
        log_level="error" if config.get("quiet") else level if config.is_set("log_level") else "warning",
        remote=resources.remote,
        on_gpus=resources.device == "cuda",
        scheduler_picks_hosts=resources.scheduler_picks_hosts,
    )


def _environment(resources: Resources, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if resources.device == "cpu":
        yield "DS_ACCELERATOR", "cpu"
        # Otherwise each rank starts a thread for every core. The affinity is what Slurm or a container leaves of the
        # cores.
        if "OMP_NUM_THREADS" not in environ:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            yield "OMP_NUM_THREADS", str(max(1, cores // resources.gpus))
    yield "PYTHONPATH", with_package(environ)["PYTHONPATH"]


def _without(flags: Sequence[str], names: set[str]) -> Iterator[str]:
    """Return the flags without those of these names, in both forms: `--name value` and `--name=value`."""
    dropping = False
    for word in flags:
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0] in names
        if not dropping:
            yield word
