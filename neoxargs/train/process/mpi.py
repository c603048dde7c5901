"""Ranks started by `mpirun` or `srun`: read their numbers from the environment variables of MPI or Slurm.

No MPI library is needed: MPI only starts the ranks, which communicate through torch.distributed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.hosts import rank_env
from neoxargs.hosts.rank_env import MPI, SLURM, Names, are_set, names
from neoxargs.hosts.slurm import expanded


def set_rank_environment(config: Config) -> None:
    """Set torch.distributed's environment variables from those of `mpirun` or `srun`, unless RANK is set.

    Raises Problems if a variable is not a number, if `deepspeed_mpi` or `deepspeed_slurm` is set and the process was
    not started that way, or if no rendezvous address is known.
    """
    if "RANK" in os.environ:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            if name in os.environ:
                rank_env.number(name, os.environ)
        return
    training = config.training
    if not (training.deepspeed_mpi or training.deepspeed_slurm):
        variables = names(os.environ)
    else:
        kinds = MPI if training.deepspeed_mpi else SLURM
        variables = next((kind for kind in kinds if are_set(kind, os.environ)), None)
        if variables is None:
            name, program = ("deepspeed_mpi", "mpirun") if training.deepspeed_mpi else ("deepspeed_slurm", "srun")
            what = f"{name} is true, but this process was not started by {program}"
            hint = f"start the ranks with {program}, or remove {name}"
            raise Problems(Problem(what, hint=hint, id="not-started-by-mpi-or-slurm", about=(name,)))
    if variables:
        os.environ |= torch_environment(variables, config, os.environ)


def torch_environment(names: Names, config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torch.distributed and DeepSpeed read. names: of the launcher's variables."""
    size = environ[names.world_size]
    local_size = environ.get(names.local_size, "").partition("(")[0]  # Slurm writes `4(x2)` for 4 on each of 2 machines
    # With all ranks on one machine, no address has to be known.
    address = environ.get("MASTER_ADDR") or config.get("master_addr") or ("127.0.0.1" if local_size == size else "")
    if not address and names in SLURM:
        # The first machine of the job step, on which Slurm starts rank 0.
        address = (expanded(environ.get("SLURM_STEP_NODELIST", "")) or [""])[0]
    if not address:
        hint = "set master_addr to the address of the first machine; the other machines must be able to reach it"
        what = "the ranks run on several machines, but the rendezvous address is not set"
        raise Problems(Problem(what, hint=hint, id="rendezvous-address-unknown", about=("master_addr",)))
    numbers = {"RANK": environ[names.rank], "WORLD_SIZE": size, "LOCAL_RANK": environ[names.local_rank]}
    rendezvous = {"MASTER_ADDR": address, "MASTER_PORT": environ.get("MASTER_PORT") or str(config.get("master_port"))}
    return {**numbers, **rendezvous, **({"LOCAL_SIZE": local_size} if local_size else {})}
