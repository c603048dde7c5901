"""Ranks that `mpirun` or `srun` starts: who they are stands in the environment, under another name for each kind.

No MPI library is needed: ranks talk through torch.distributed, and all MPI does is to start them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config


class Names(NamedTuple):
    """What one kind of launcher calls the numbers."""

    rank: str
    world_size: str
    local_rank: str
    local_size: str


MPI = (
    Names("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    Names("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
SLURM = (Names("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"),)


def join(config: Config) -> None:
    """Tell torch.distributed by its own names what `deepspeed_mpi` or `deepspeed_slurm` finds; raises Problems."""
    training = config.training
    if "RANK" in os.environ or not (training.deepspeed_mpi or training.deepspeed_slurm):
        return
    found = _present(MPI if training.deepspeed_mpi else SLURM, os.environ)
    if found is None:
        name, program = ("deepspeed_mpi", "mpirun") if training.deepspeed_mpi else ("deepspeed_slurm", "srun")
        raise Problems([Problem(f"{name} (true), but no {program} has started this process")])
    os.environ |= as_torch(found, config, os.environ)


def as_torch(names: Names, config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that torch.distributed and DeepSpeed read."""
    size = environ[names.world_size]
    local_size = environ.get(names.local_size, "").partition("(")[0]  # Slurm's `4(x2)`: 4 on each of 2 machines
    address = environ.get("MASTER_ADDR") or config.get("master_addr") or ("127.0.0.1" if local_size == size else "")
    if not address:
        hint = "write master_addr: the first machine's address, as the others reach it"
        raise Problems([Problem("the ranks run on several machines and do not know where to meet", hint=hint)])
    numbers = {"RANK": environ[names.rank], "WORLD_SIZE": size, "LOCAL_RANK": environ[names.local_rank]}
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": environ.get("MASTER_PORT") or str(config.get("master_port"))}
    return {**numbers, **meeting, **({"LOCAL_SIZE": local_size} if local_size else {})}


def _present(kinds: tuple[Names, ...], environ: Mapping[str, str]) -> Names | None:
    needed = ("rank", "world_size", "local_rank")
    return next((names for names in kinds if all(getattr(names, name) in environ for name in needed)), None)
