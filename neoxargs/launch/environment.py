"""Which variables reach the ranks, and from where; what is secret stays off command lines and out of what is printed.

Ranks on this machine, and those of `srun`, inherit all. DeepSpeed's runner hands to other machines only what begins
with one of `EXPORTED`, and the lines of `.deepspeed_env` (or $DS_ENV_FILE) in the home and the working directory,
as words of a command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.problems import Place, Problem
from neoxargs.resolve.config import Config

#: What DeepSpeed 0.19.6 exports (launcher/runner.py, and the CUDA accelerator's additions).
EXPORTED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "LD_LIBRARY", "PATH")
#: What concerns a run; anything else is not listed.
OF_INTEREST = re.compile(
    r"NCCL_|TORCH_|PYTHON|MASTER_|CUDA_|OMP_|DS_|DEEPSPEED_|UCX_|FI_|HF_|WANDB_|COMET_|MLFLOW_|GLOO_|TRITON_"
)
SECRET = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)
#: Launchers that pass everything on.
INHERITING = ("srun", "slurm")
#: Launchers that are not DeepSpeed's and write no variable on a command line.
DISCREET = ("srun", "ssh", "torchrun")


class Variable(NamedTuple):
    """One variable and what becomes of it."""

    name: str
    origin: str
    reaches: bool
    value: str = ""


def variables(
    resources: Resources, launcher: str, environ: Mapping[str, str], own: Mapping[str, str]
) -> list[Variable]:
    """Those of interest, by name. own: what deepy itself sets for the launcher."""
    everything = not resources.remote or launcher in INHERITING
    found = {name: Variable(name, "this shell", everything or _exported(name, launcher), value)
             for name, value in environ.items() if OF_INTEREST.match(name)}  # fmt: skip
    for name, value in own.items():
        found[name] = Variable(name, "deepy", everything or _exported(name, launcher), value)
    if resources.remote:
        for name, value, place in _of_files(environ, os.getcwd()):
            found[name] = Variable(name, place.file, launcher != "srun", value)
    return [found[name] for name in sorted(found)]


def shown(found: list[Variable]) -> str:
    """A line each; the value of what is secret is not shown."""
    width = max((len(variable.name) for variable in found), default=0)
    return "\n".join(
        f"{variable.name.ljust(width)}  {'***' if SECRET.search(variable.name) else variable.value}  ({variable.origin}"
        f"{'' if variable.reaches else _left_here(variable)})"
        for variable in found
    )


def _left_here(variable: Variable) -> str:
    if os.sep in variable.origin:
        instead = "srun reads no file, and hands this shell's variables over"
    else:
        instead = "launcher: ssh hands it over" if SECRET.search(variable.name) else "write it in .deepspeed_env"
    return f"; does not reach other machines: {instead}"


def passed_on(environ: Mapping[str, str], directory: str) -> dict[str, str]:
    """What `launcher: ssh` hands over: what DeepSpeed's would, all of interest, and the lines of `.deepspeed_env`."""
    kept = {name: value for name, value in environ.items() if OF_INTEREST.match(name) or name.startswith(EXPORTED)}
    return kept | {name: value for name, value, _ in _of_files(environ, directory)}


def exposed(config: Config, resources: Resources, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Secrets that would stand on command lines: in the configuration, or in what DeepSpeed's launcher hands over."""
    for name, value in config.values.items():
        if value.value and re.search(r"(api_key|password|secret)$", name):
            what = f"{name} would stand on the command line of every rank, which every user of the machines can read"
            variable, place = name.replace(".", "_").upper(), config.place(name)
            where = place and place._replace(text="")  # the line itself would show it
            yield Problem(what, where, f"leave it out and set {variable} in the environment")
    launcher = config.runner.launcher
    if not resources.remote or launcher in DISCREET:
        return
    handed_over: list[tuple[str, Place | None]] = [(name, None) for name in environ if name.startswith(EXPORTED)]
    handed_over += [(name, place) for name, _, place in _of_files(environ, os.getcwd())]
    for name, where in handed_over:
        if SECRET.search(name):
            what = f"{name}: {launcher} would put it on command lines, which every user of the machines can read"
            hint = "take it out and write launcher: ssh, which hands over this shell's; or log in on each machine"
            yield Problem(what, where, hint if where else "write launcher: ssh, which hands it over unseen")


def _exported(name: str, launcher: str) -> bool:
    return launcher in ("ssh", "torchrun") or name.startswith(EXPORTED)


def _of_files(environ: Mapping[str, str], directory: str) -> Iterator[tuple[str, str, Place]]:
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
