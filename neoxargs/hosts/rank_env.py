"""Detection of a process that `torchrun`, `srun` or `mpirun` has already started as a rank, by its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from neoxargs.base.problems import Problem, Problems
from neoxargs.hosts.slurm import in_step, requeues


class Names(NamedTuple):
    """The environment variables in which one kind of launcher numbers its ranks."""

    rank: str
    world_size: str
    local_rank: str
    local_size: str


TORCH = Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
#: Open MPI; MVAPICH2; MPICH and Intel MPI, which both use Hydra.
MPI = (
    Names("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    Names("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
SLURM = (Names("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"),)


def names(environ: Mapping[str, str]) -> Names | None:
    """Return the variables of the launcher that started this process as one of several ranks, None if none did."""
    # Not for a world of one rank: such a process launches the run itself.
    launchers = (TORCH, *MPI, *(SLURM if in_step(environ) else ()))
    several = (each for each in launchers if are_set(each, environ) and number(each.world_size, environ) > 1)
    return next(several, None)


def numbers(names: Names, environ: Mapping[str, str]) -> tuple[int, int, int]:
    """Return the rank, the world size and the local rank; raises Problems if one is not a number."""
    rank, size, local = (number(name, environ) for name in (names.rank, names.world_size, names.local_rank))
    return rank, size, local


def number(name: str, environ: Mapping[str, str]) -> int:
    """Return the number in a variable that a launcher sets; raises Problems if it is not one."""
    if not environ.get(name, "").isdecimal():
        value = f"({environ[name]}) must be" if name in environ else "is not set, but must be"
        what = f"the environment variable {name} {value} a whole number, at least 0"
        hint = f"start the ranks with a launcher that sets it, or unset {name} for a run that deepy starts itself"
        raise Problems(Problem(what, hint=hint, id="rank-variable-not-a-number"))
    return int(environ[name])


def are_set(names: Names, environ: Mapping[str, str]) -> bool:
    """Return whether the environment has a rank, a world size and a local rank under these names."""
    return all(getattr(names, field) in environ for field in ("rank", "world_size", "local_rank"))


def attempt(environ: Mapping[str, str]) -> str:
    """Return a name for this attempt of the run that is the same on all ranks."""
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    # `none` is torchrun's default, which says nothing about the run.
    torch = environ.get("TORCHELASTIC_RUN_ID", "none")
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    requeued = requeues(environ)
    suffix = f"-restart{requeued}" if requeued else ""
    return f"slurm-{job}.{step}{suffix}" if job else f"torchrun-{torch}.{restart}" if torch != "none" else "last"


def launch_id(environ: Mapping[str, str]) -> str:
    """Return what all ranks of one launch have in common, and no two launches that run at the same time."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    return " ".join(f"{name}={environ[name]}" for name in names if name in environ)
