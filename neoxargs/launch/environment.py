"""Which variables reach the ranks, and from where; what is secret is not printed.

Ranks on this machine inherit all. What reaches those on other machines is told by the launcher's record: all; or what
begins with one of `EXPORTED`, with the lines of `.deepspeed_env` (or $DS_ENV_FILE) in the home and the working
directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from neoxargs.launch.launchers.launcher import Launcher
from neoxargs.problems import Place
from neoxargs.shipped import IMPORT_ROOT

#: What DeepSpeed 0.19.6 exports (launcher/runner.py, and the CUDA accelerator's additions).
EXPORTED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "LD_LIBRARY", "PATH")
#: What concerns a run; anything else is not listed.
OF_INTEREST = re.compile(
    r"NCCL_|TORCH_|PYTHON|MASTER_|CUDA_|OMP_|DS_|DEEPSPEED_|UCX_|FI_|HF_|WANDB_|COMET_|MLFLOW_|GLOO_|TRITON_"
)
SECRET = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)


class Variable(NamedTuple):
    """One variable and what becomes of it."""

    name: str
    origin: str
    left_here: str = ""
    """What to do so that it reaches other machines; empty if it does."""
    value: str = ""

    def __str__(self) -> str:
        """Without its name; the value of what is secret is not shown."""
        value = "***" if SECRET.search(self.name) else self.value
        left_here = f"; does not reach other machines: {self.left_here}" if self.left_here else ""
        return f"{value}  ({self.origin}{left_here})"


def variables(launcher: Launcher, remote: bool, environ: Mapping[str, str], own: Mapping[str, str]) -> list[Variable]:
    """Those of interest, by name. remote: are there other machines; own: what deepy itself sets for the launcher."""
    shell = {name: value for name, value in environ.items() if OF_INTEREST.match(name)}
    found = {}
    for origin, values in (("this shell", shell), ("deepy", own)):
        for name, value in values.items():
            left_here = _instead(name, launcher) if remote and not _inherited(name, launcher) else ""
            found[name] = Variable(name, origin, left_here, value)
    if remote:
        unread = "" if launcher.reads_env_files else f"{launcher.name} reads no file"
        unread += ", and hands this shell's variables over" if unread and launcher.inherits_environment else ""
        for name, value, place in variables_of_files(environ, os.getcwd()):
            found[name] = Variable(name, place.file, unread, value)
    return [found[name] for name in sorted(found)]


def table(variables: list[Variable]) -> str:
    """A line each."""
    width = max((len(variable.name) for variable in variables), default=0)
    return "\n".join(f"{variable.name.ljust(width)}  {variable}" for variable in variables)


def _inherited(name: str, launcher: Launcher) -> bool:
    return launcher.inherits_environment or (launcher.through_deepspeed and name.startswith(EXPORTED))


def _instead(name: str, launcher: Launcher) -> str:
    unseen = SECRET.search(name) or not launcher.reads_env_files
    return "launcher: ssh hands it over" if unseen else "write it in .deepspeed_env"


def passed_on(environ: Mapping[str, str], directory: str) -> dict[str, str]:
    """What `launcher: ssh` hands over: what DeepSpeed's would, all of interest, and the lines of `.deepspeed_env`."""
    kept = {name: value for name, value in environ.items() if OF_INTEREST.match(name) or name.startswith(EXPORTED)}
    return kept | {name: value for name, value, _ in variables_of_files(environ, directory)}


def variables_of_files(environ: Mapping[str, str], directory: str) -> Iterator[tuple[str, str, Place]]:
    """The names and values in `.deepspeed_env`."""
    for line, place in lines_of_files(environ, directory):
        name, equals, value = line.partition("=")
        if equals:
            yield name.strip(), value.strip(), place


def lines_of_files(environ: Mapping[str, str], directory: str) -> Iterator[tuple[str, Place]]:
    """All lines of `.deepspeed_env`; a place does not show its line, which may be a secret."""
    folders = (os.path.expanduser("~"), directory)
    paths = [Path(folder, environ.get("DS_ENV_FILE", ".deepspeed_env")) for folder in folders]
    for path in filter(Path.is_file, dict.fromkeys(paths)):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            yield line, Place(str(path), number, 1)


def with_package(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a script in any folder finds neoxargs; Python itself adds the script's own folder."""
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, str(IMPORT_ROOT)]))}
