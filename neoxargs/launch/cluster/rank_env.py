"""Is this process a rank already? Under `torchrun deepy.py ...`, `srun deepy.py ...` or mpirun it takes its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from neoxargs.launch.cluster.slurm import in_step


class Names(NamedTuple):
    """What one kind of launcher calls a rank's numbers."""

    rank: str
    world_size: str
    local_rank: str
    local_size: str


TORCH = Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MPI = (
    Names("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    Names("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
SLURM = (Names("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"),)


def names(environ: Mapping[str, str]) -> Names | None:
    """Of the launcher that has started this process as one of several ranks; None if none has."""
    kinds = (TORCH, *MPI, *(SLURM if in_step(environ) else ()))
    return next((kind for kind in kinds if present(kind, environ) and int(environ[kind.world_size]) > 1), None)


def present(kind: Names, environ: Mapping[str, str]) -> bool:
    return all(getattr(kind, name) in environ for name in ("rank", "world_size", "local_rank"))


def attempt(environ: Mapping[str, str]) -> str:
    """A name for this start of the run that all ranks know."""
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    torch = environ.get("TORCHELASTIC_RUN_ID", "none")
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"slurm-{job}.{step}" if job else f"torchrun-{torch}.{restart}" if torch != "none" else "last"
