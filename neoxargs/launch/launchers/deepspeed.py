"""The exact command that starts a run: DeepSpeed's own launcher, its flags, the user's script, two payloads."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from neoxargs.launch.cluster.hosts import SELECTING, Resources
from neoxargs.launch.launchers import LAUNCHERS, started_by_plugin
from neoxargs.launch.launchers.starters import BUILT_IN
from neoxargs.launch.targets import split
from neoxargs.launch.targets.encode import script_arguments
from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config
from neoxargs.shipped import IMPORT_ROOT

LAUNCHERS.update(BUILT_IN)


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and how its environment differs from this process's."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    without: tuple[str, ...] = ()
    """Variables that are taken out of the environment."""

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """The whole environment the program runs in."""
        kept = {name: value for name, value in base.items() if name not in self.without}
        return {**kept, **self.environment}

    def __str__(self) -> str:
        """As a line for a shell."""
        changes = [f"-u{name}" for name in self.without]
        changes += [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join([*(["env", *changes] if changes else []), *self.words])


def command(
    config: Config, resources: Resources, script: str, environ: Mapping[str, str], port: int | None = None,
    attempt: str = "",
) -> Command:  # fmt: skip
    """What starts this run. port: instead of master_port; attempt: what this start of it is called."""
    program = (script, *script_arguments(config, attempt))
    words = started_by_plugin(config, resources, (sys.executable, *program), split.launcher_arguments(config), port)
    if words is None:
        runner = [sys.executable, "-m", "deepspeed.launcher.runner"]
        words = (*runner, *runner_flags(config, resources, port), *program)
    # the launcher would only say that it ignores CUDA_VISIBLE_DEVICES: `resources` has read it already
    without = () if resources.remote else tuple(name for name in ("CUDA_VISIBLE_DEVICES",) if name in environ)
    return Command(words, dict(_environment(resources, environ)), without)


def runner_flags(config: Config, resources: Resources, port: int | None = None) -> list[str]:
    """The flags of DeepSpeed's launcher, with the hosts and devices the batch size was computed for."""
    if config.runner.launcher in LAUNCHERS:
        what = f"launcher ({config.runner.launcher}) is none of DeepSpeed's, whose launcher has no flags for it"
        raise Problems([Problem(what, config.place("launcher"), "--dry-run shows its command")])
    told = dict(resources.selection)
    if port is not None:
        told["master_port"] = str(port)
    flags = list(_without(split.runner_flags(config), {*SELECTING, *told}))
    if not config.written("log_level") and not config.get("quiet"):
        # on failure the launcher would print its whole command, payloads included, over the rank's traceback
        told["log_level"] = "warning" if resources.remote else "critical"
    return [*(f"--{name}={value}" for name, value in told.items()), *flags]


def free_port(config: Config, resources: Resources) -> int | None:
    """A port of this machine for the ranks to meet at, unless somebody chose one; None keeps master_port.

    Two runs that are started together would both find the default one free.
    """
    told = resources.remote or config.get("force_multi")  # then the ranks read it in the configuration
    if told or "master_port" in resources.selection or config.written("master_port"):
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _environment(resources: Resources, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if resources.device == "cpu":
        yield "DS_ACCELERATOR", "cpu"
        if "OMP_NUM_THREADS" not in environ:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            yield "OMP_NUM_THREADS", str(max(1, cores // resources.gpus))
    yield "PYTHONPATH", with_package(environ)["PYTHONPATH"]


def with_package(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a script in any folder finds neoxargs; Python itself adds the script's own folder."""
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, str(IMPORT_ROOT)]))}


def _without(flags: Sequence[str], names: set[str]) -> Iterator[str]:
    """The flags but for some, whether written `--name value` or `--name=value`."""
    dropping = False
    for word in flags:
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0] in names
        if not dropping:
            yield word
