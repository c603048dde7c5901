"""What Slurm says in a job's environment: its nodes, how many ranks each takes, and whether this process is one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

#: The first of the numbers of steps that are no `srun`: the shell of `salloc`, the script of `sbatch`.
FIRST_BATCH_STEP = 0xFFFFFFF0


def in_job(environ: Mapping[str, str]) -> bool:
    """Is this a job of Slurm's, or a part of one?"""
    return "SLURM_JOB_ID" in environ


def in_step(environ: Mapping[str, str]) -> bool:
    """Has `srun` started this process? A shell inside of a job has the job's numbers too, and is no rank."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < FIRST_BATCH_STEP


def nodes_of_job(environ: Mapping[str, str]) -> list[str]:
    """The hosts of the job that this shell is in; none outside of one."""
    return expanded(environ.get("SLURM_JOB_NODELIST", ""))


def ranks_per_node(environ: Mapping[str, str]) -> int:
    """How many ranks a node of the job takes, 0 if nothing says: `SLURM_GPUS_PER_NODE=a100:8` is 8."""
    for name in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS_PER_NODE"):
        number = environ.get(name, "").rpartition(":")[2]
        if number.isdigit():
            return int(number)
    return 0


def expanded(nodelist: str) -> list[str]:
    """The hosts of Slurm's list, in its order: `gpu[01-02,7],login` is gpu01, gpu02, gpu7, login."""
    return [host for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", nodelist) for host in _expanded(part)]


def _expanded(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    ranges, _, after = rest.partition("]")
    for piece in ranges.split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from _expanded(f"{head}{number:0{len(first)}}{after}")
