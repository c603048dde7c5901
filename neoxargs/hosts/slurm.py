"""Slurm's environment variables: the nodes of a job, the ranks per node, and whether this process is a rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

#: SLURM_MAX_NORMAL_STEP_ID in slurm.h.
#: Step ids from here on are not steps of `srun`, but the shell of `salloc` and the script of `sbatch`.
FIRST_BATCH_STEP = 0xFFFFFFF0


def in_step(environ: Mapping[str, str]) -> bool:
    """Return whether `srun` started this process; a shell inside a job has the job's variables too, but is no rank."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < FIRST_BATCH_STEP


def job(environ: Mapping[str, str]) -> str:
    """Return a name for the job that this process runs in, which a requeued job keeps; empty outside a job."""
    cluster, number = environ.get("SLURM_CLUSTER_NAME", ""), environ.get("SLURM_JOB_ID", "")
    return f"{cluster}.{number}".strip(".") if number else ""


def requeues(environ: Mapping[str, str]) -> int:
    """Return how many times Slurm has queued the job of this process again."""
    count = environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def nodes_of_job(environ: Mapping[str, str]) -> list[str]:
    """Return the hosts of the job that this process runs in; empty outside a job."""
    return expanded(environ.get("SLURM_JOB_NODELIST", ""))


def ranks_per_node(environ: Mapping[str, str]) -> int:
    """Return the ranks per node of the job, 0 if not known: 8 for `SLURM_GPUS_PER_NODE=a100:8`."""
    for name in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS_PER_NODE"):
        number = environ.get(name, "").rpartition(":")[2]
        if number.isdigit():
            return int(number)
    return 0


def expanded(nodelist: str) -> list[str]:
    """Return the hosts of Slurm's node list, in its order: `gpu[01-02,7],login` is gpu01, gpu02, gpu7, login."""
    return [host for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", nodelist) for host in _expand(part)]


def _expand(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    ranges, _, after = rest.partition("]")
    for piece in ranges.split(","):
        # Numbers have the width of the first: 08-10 is 08, 09, 10. A name may have several ranges: rack[1-2]n[1-4].
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from _expand(f"{head}{number:0{len(first)}}{after}")
