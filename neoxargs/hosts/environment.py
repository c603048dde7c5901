"""The environment variables that reach the ranks, and where each comes from. Secret values are masked.

Ranks on this machine inherit all variables. The launcher's record says what reaches ranks on other hosts: all variables
of the shell, or only those that begin with one of `EXPORTED`, and the lines of `.deepspeed_env` (or $DS_ENV_FILE) in
the home and the working directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from neoxargs.base.problems import Place, without_secrets
from neoxargs.base.shipped import IMPORT_ROOT
from neoxargs.hosts.launchers.launcher import Launcher

#: Prefixes of the variables that DeepSpeed 0.19.6 exports (launcher/runner.py, with the CUDA accelerator's additions).
EXPORTED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "LD_LIBRARY", "PATH")
#: Variables that concern a run; others are not listed.
RELEVANT = re.compile(
    r"NCCL_|TORCH_|PYTORCH_|PYTHON|MASTER_|CUDA_|CUBLAS_|OMP_|DS_|DEEPSPEED_|UCX_|FI_|HF_|WANDB_|COMET_|MLFLOW_|GLOO_|TRITON_"
)
SECRET = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|HEADERS)", re.IGNORECASE)


#: Names that a shell can export. Others could contain commands of a shell.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Variable(NamedTuple):
    """A variable, where it comes from, and whether it reaches other hosts."""

    name: str
    origin: str
    not_passed_on: str = ""
    """What to do for the variable to reach other hosts; empty if it already does."""
    value: str = ""

    def __str__(self) -> str:
        """Return the value and the origin; a secret value is masked."""
        value = "***" if SECRET.search(self.name) else without_secrets(self.value)
        advice = f"; not passed on to other hosts; {self.not_passed_on}" if self.not_passed_on else ""
        return f"{value}  ({self.origin}{advice})"


def variables(launcher: Launcher, remote: bool, environ: Mapping[str, str], own: Mapping[str, str]) -> list[Variable]:
    """Return the relevant variables by name.

    remote: whether there are other hosts. own: the variables that deepy sets for the launcher.
    """
    shell = {name: value for name, value in environ.items() if RELEVANT.match(name)}
    found = {}
    for origin, values in (("this shell", shell), ("deepy", own)):
        for name, value in values.items():
            exported = launcher.through_deepspeed and name.startswith(EXPORTED)
            arrives = not remote or launcher.inherits_environment or exported
            # Lines of `.deepspeed_env` are put on command lines, where a secret must not be.
            needs_ssh = SECRET.search(name) or not launcher.reads_env_files
            advice = "set launcher: ssh" if needs_ssh else "add it to .deepspeed_env"
            found[name] = Variable(name, origin, "" if arrives else advice, value)
    if remote:
        unread = "" if launcher.reads_env_files else f"launcher {launcher.name} does not read this file"
        unread += "; export the variable in this shell" if unread and launcher.inherits_environment else ""
        for name, value, place in variables_of_files(environ, os.getcwd()):
            found[name] = Variable(name, place.file, unread, value)
    return [found[name] for name in sorted(found)]


def table(variables: list[Variable]) -> str:
    """Format variables as a table, one per line."""
    width = max((len(variable.name) for variable in variables), default=0)
    return "\n".join(f"{variable.name.ljust(width)}  {variable}" for variable in variables)


def passed_on(environ: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return the variables that `launcher: ssh` passes on: relevant or exported ones, those of `.deepspeed_env`."""
    kept = {name: value for name, value in environ.items() if RELEVANT.match(name) or name.startswith(EXPORTED)}
    kept |= {name: value for name, value, _ in variables_of_files(environ, directory)}
    return {name: value for name, value in kept.items() if NAME.fullmatch(name)}


def variables_of_files(environ: Mapping[str, str], directory: str) -> Iterator[tuple[str, str, Place]]:
    """Return the names, values and places of the variables in `.deepspeed_env`."""
    for line, place in lines_of_files(environ, directory):
        name, equals, value = line.partition("=")
        if equals:
            yield name.strip(), value.strip(), place


def lines_of_files(environ: Mapping[str, str], directory: str) -> Iterator[tuple[str, Place]]:
    """Return all lines of `.deepspeed_env`; a place has no text, because the line may be a secret."""
    # DeepSpeed's order: the later file wins.
    folders = (os.path.expanduser("~"), directory)
    paths = [Path(folder, environ.get("DS_ENV_FILE", ".deepspeed_env")) for folder in folders]
    for path in filter(Path.is_file, dict.fromkeys(paths)):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            yield line, Place(str(path), number, 1)


def with_package(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a script in any folder can import neoxargs."""
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, str(IMPORT_ROOT)]))}
