"""Python packages of this machine: which are installed, in which versions."""

from __future__ import annotations

import os
import sys

from neoxargs.base.problems import Place, Problem

#: distributed_backend -> the hint for a torch that is built without it.
BACKENDS = {
    "nccl": "set distributed_backend: gloo, or install a build of torch with CUDA",
    "gloo": "set distributed_backend: nccl",
    "mpi": "remove distributed_backend; to start the ranks with mpirun, set deepspeed_mpi: true, which does not "
    "require torch to be built with MPI",
}


def installed_versions() -> dict[str, str]:
    """Return the version of each installed package, by its name with `_` for `-`.

    Each folder is listed once: `importlib.metadata` would take a third of the time of a check.
    """
    versions: dict[str, str] = {}
    for folder in filter(os.path.isdir, sys.path):
        for entry in os.listdir(folder):
            if entry.endswith(".dist-info"):
                name, _, version = entry.removesuffix(".dist-info").partition("-")
                versions.setdefault(name, version)  # the first folder of the path is imported
    return versions


def harness_missing(why: str, where: Place | None = None) -> Problem:
    """Return the problem of lm_eval missing. why: the message of the ImportError."""
    what = f"eval_tasks needs the Python package lm_eval, which cannot be imported: {why}"
    hint = "run pip install -c constraints.txt lm_eval"
    return Problem(what, where, hint, id="package-missing", about=("eval_tasks",))


def is_missing(package: str) -> bool:
    """Return whether a package is not installed. A folder of its name, such as ./wandb with its runs, is no package."""
    from importlib.util import find_spec

    spec = find_spec(package)
    return spec is None or (spec.origin is None and package != "megatron")  # megatron is a namespace package
