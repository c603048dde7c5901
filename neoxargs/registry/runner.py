"""DeepSpeed's launcher: the machines and GPUs of a run, and how its processes are started."""

from __future__ import annotations

from typing import Annotated, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Bound, Natural, NonNegative, Port

#: How many of something to use; -1 takes all there are.
OrAll = Annotated[int, Bound(ge=-1)]


class Runner(Group, origin="DSL", effect="launcher"):
    """Hosts, GPUs and the way of starting processes on them. Every name is a flag of DeepSpeed's launcher."""

    hostfile: str = param("/job/hostfile")
    """File with one `name slots=N` line per machine, N being its number of GPUs. If the file does not exist, the run
    uses only this machine."""

    include: str = param("")
    """The machines and GPUs to use, as `name[:gpu,gpu...]` joined by `@`: `node1@node2:0,2` is all of node1 and
    two GPUs of node2. Excludes `exclude`, `num_nodes` and `num_gpus`."""

    exclude: str = param("")
    """The machines and GPUs to leave out, written like `include`. Excludes `include`, `num_nodes` and `num_gpus`."""

    num_nodes: OrAll = param(-1)
    """Use the first N machines of `hostfile`; -1 uses them all."""

    num_gpus: OrAll = param(-1, aliases="num_accelerators")
    """Use GPUs 0 to N-1 of each machine; -1 uses them all. Together with the parallel sizes it determines the number of
    replicas, hence the batch size."""

    master_port: Port = param(29500)
    """TCP port on the first machine for the rendezvous of all processes. Give each run on the same machine a different
    port."""

    master_addr: str = param("")
    """Rendezvous address of all processes; empty asks the first machine for its address."""

    launcher: Literal["pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm", "ssh", "torchrun", "srun"] = param("pdsh")
    """What starts processes on other machines. A run on one machine does not use the first six, which are DeepSpeed's,
    unless `force_multi` is set. `ssh` needs nothing but ssh; `torchrun` and `srun` start the ranks without DeepSpeed's
    launcher, `srun` also on the nodes of a job, or on those that `num_nodes` and `num_gpus` request."""

    launcher_args: str = param("")
    """Further arguments for the program that `launcher` names, as one string."""

    force_multi: bool = param(False)
    """Use `launcher` even for a single machine; needed if that machine is not this one."""

    no_ssh: bool = param(False)
    """Start only this machine's processes, without ssh; you start the same command on each of the other machines, each
    with its own `node_rank`, and `master_addr` is required."""

    no_ssh_check: bool = param(False)
    """Do not check before the launch whether the machines in `hostfile` answer over ssh."""

    node_rank: OrAll = param(-1)
    """Number of this machine, counted from 0. Required with `no_ssh`, and read only then."""

    ssh_port: Port | None = param(None)
    """Port for ssh to the other machines; none given uses ssh's own configuration."""

    module: bool = param(False)
    """Treat the user script as the name of a Python module and run it like `python -m`."""

    no_python: bool = param(False)
    """Execute the user script itself instead of handing it to Python. Excludes `module`."""

    no_local_rank: bool = param(False)
    """Do not add `--local_rank=N` to the script's arguments; it is in the environment as LOCAL_RANK anyway."""

    venv_script: str | None = param(None)
    """Shell script, sourced on every machine, that activates the Python environment of the run."""

    save_pid: bool = param(False)
    """Write the launcher's process id to `/tmp/<pid>.ds`, for programs that start and stop runs."""

    enable_each_rank_log: str = param("None")
    """Folder that receives one output file per rank instead of everything on the terminal; the value None keeps the
    terminal."""

    bind_cores_to_rank: bool = param(False)
    """Give each rank separate CPU cores, those near its GPU first. Useful if the optimizer runs on the CPU."""

    bind_core_list: str | None = param(None)
    """The cores that `bind_cores_to_rank` distributes, such as `0-15,32-47`; left out, all cores."""

    elastic_training: bool = param(
        False,
        effect="not built",
        refused=(
            "with another number of machines, DeepSpeed computes the batch size itself and rejects the one that "
            "train.py passes"
        ),
        instead="set restarts: 1 or more to start the ranks again from the last checkpoint after one has failed",
    )
    """Let machines come and go during the run between `min_elastic_nodes` and `max_elastic_nodes`. Needs the
    `elasticity` section and `master_addr`, and excludes `no_local_rank`."""

    min_elastic_nodes: OrAll = param(
        -1, effect="none", no_effect_reason="only elastic_training reads it, which train.py does not support"
    )
    """Fewest machines an elastic run continues with; -1 means 1."""

    max_elastic_nodes: OrAll = param(
        -1, effect="none", no_effect_reason="only elastic_training reads it, which train.py does not support"
    )
    """Most machines an elastic run grows to; -1 means as many as it started with."""

    log_level: Literal["debug", "info", "warning", "error", "critical"] = param("info", origin=("DSL", "DSC"))
    """How much DeepSpeed itself logs, both its launcher and its engine. Setting `info` or `debug` also shows the lines
    of torch and DeepSpeed that are otherwise only in the ranks' logs."""

    quiet: bool = param(False)
    """The launcher logs errors only, regardless of `log_level`."""


class RunnerExtras(Group, origin="NeoX", effect="launcher"):
    """What GPT-NeoX adds to the launcher's flags. None of these is a flag of the same name in stock DeepSpeed."""

    autotuning_run: Literal["tune", "run"] | None = param(None, to=("runner",))
    """Start DeepSpeed's autotuner, which tries the settings that the `autotuning` section spans: `tune` stops with
    the result, `run` then trains with the best. It is the launcher's flag `--autotuning`."""

    comment: str | None = param(None, aliases="slurm_comment", to=("runner",))
    """Comment for the Slurm job, for clusters that bill or sort by it. Reaches `srun` through `launcher_args`, so it
    needs `launcher: slurm`."""

    account: str | None = param(None, to=("runner",))
    """Slurm account that is billed. Reaches `srun` through `launcher_args`, so it needs `launcher: slurm`."""

    fork_ranks: bool | None = param(None, to=("train",), ours=True)
    """Import torch and DeepSpeed once per machine and fork the ranks, which then share the memory of these modules,
    instead of importing them in every rank. Only where deepy itself starts the ranks, on one machine with no
    `launcher` set. By default on CPUs; on GPUs it is experimental."""

    restarts: Natural = param(0, to=(), ours=True)
    """How often all ranks are started again after one of them was killed, crashed, or made no progress. They
    continue from the newest complete checkpoint in `save`, after a wait that doubles from 1 s to 300 s with each
    restart that saves none. A run is not restarted if a rank reports a problem or if it is told to
    stop. In a script of `--emit sbatch`, Slurm queues the job again. Same as the `--restarts` option."""

    step_timeout: NonNegative | None = param(None, to=("train",), ours=True)
    """Seconds after which a step counts as hung: the Python stacks of all ranks are reported, and the run fails.
    The first step, an evaluation and a save may take ten times as long. Left out, the limit is 30 times the
    median step, but at least 180 s (1800 s where ten times as long is allowed). 0 sets no limit."""

    detect_nvlink_pairs: bool = param(
        False,
        to=(),
        effect="none",
        no_effect_reason="only a fork of DeepSpeed had such a flag; set CUDA_VISIBLE_DEVICES instead",
    )
    """No effect: it reordered GPUs in a fork of DeepSpeed so that NVLink neighbours became tensor parallel pairs, and
    stock DeepSpeed has no such flag. Set CUDA_VISIBLE_DEVICES instead."""
