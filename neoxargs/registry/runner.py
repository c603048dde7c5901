"""DeepSpeed's launcher: the machines and GPUs of a run, and how its processes are started."""

from __future__ import annotations

from typing import Annotated, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Bound, Count, Natural, NonNegative, Port

#: How many of something to use; -1 takes all there are.
OrAll = Literal[-1] | Count
#: -1 if it is not set.
NodeRank = Annotated[int, Bound(ge=-1)]


#: The launchers that start ranks with Slurm's `srun`, and pass `launcher_args` to it.
SRUN = ("slurm", "srun")


class Runner(Group, origin="DSL", effect="launcher"):
    """Hosts, GPUs, and how processes are started on them. Every name is a flag of DeepSpeed's launcher."""

    hostfile: str = param("/job/hostfile")
    """File with one `name slots=N` line per machine, where N is its number of GPUs. If the file does not exist, the run
    uses only this machine."""

    include: str = param("")
    """The machines and GPUs to use, as `name[:gpu,gpu...]` joined by `@`: `node1@node2:0,2` is all of node1 and two
    GPUs of node2. Cannot be combined with `exclude`, `num_nodes` or `num_gpus`."""

    exclude: str = param("")
    """The machines and GPUs to leave out, in the syntax of `include`. Cannot be combined with `include`, `num_nodes` or
    `num_gpus`."""

    num_nodes: OrAll = param(-1)
    """Use the first N machines of `hostfile`; -1 uses them all."""

    num_gpus: OrAll = param(-1, aliases="num_accelerators")
    """Use GPUs 0 to N-1 of each machine; -1 uses them all. Together with the parallel sizes, it determines the number
    of replicas, and hence the batch size."""

    master_port: Port = param(29500)
    """TCP port on the first machine for the rendezvous of all processes. Give each run on the same machine a different
    port."""

    master_addr: str = param("")
    """Rendezvous address of all processes. If it is empty, the first machine is asked for its address."""

    launcher: Literal["pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm", "ssh", "torchrun", "srun"] = param("pdsh")
    """Program that starts the processes on other machines. The first six are DeepSpeed's launchers: `pdsh`, `openmpi`,
    `mpich`, `impi`, `mvapich` and `slurm`; a run on one machine uses them only if `force_multi` is set. `ssh` needs no
    other program than ssh. `torchrun` and `srun` start the ranks without DeepSpeed's launcher; `srun` uses the nodes of
    a Slurm job, or requests those that `num_nodes` and `num_gpus` describe."""

    launcher_args: str = param("")
    """Further arguments for the program that `launcher` names, as one string."""

    force_multi: bool = param(False)
    """Use `launcher` even for a single machine; needed if that machine is remote."""

    no_ssh: bool = param(False)
    """Start only this machine's processes, without ssh. Run the same command on each of the other machines, each with
    its own `node_rank`; `master_addr` is required."""

    no_ssh_check: bool = param(False)
    """Do not check before the launch whether the machines in `hostfile` answer over ssh."""

    node_rank: NodeRank = param(-1)
    """Number of this machine, counted from 0. Required with `no_ssh`, and read only then."""

    ssh_port: Port | None = param(None)
    """Port for ssh to the other machines. If it is not set, ssh's own configuration applies."""

    module: bool = param(False)
    """Treat the user script as the name of a Python module and run it like `python -m`."""

    no_python: bool = param(False)
    """Execute the user script itself instead of handing it to Python. Cannot be combined with `module`."""

    no_local_rank: bool = param(False)
    """Do not add `--local_rank=N` to the script's arguments; it is in the environment as LOCAL_RANK anyway."""

    venv_script: str | None = param(None)
    """Shell script, sourced on every machine, that activates the Python environment of the run."""

    save_pid: bool = param(False)
    """Write the launcher's process id to `/tmp/<pid>.ds`, for programs that start and stop runs."""

    enable_each_rank_log: str = param("None")
    """Folder to which the output of the ranks is redirected, one file per rank. None: the output goes to the
    terminal."""

    bind_cores_to_rank: bool = param(False)
    """Bind each rank to CPU cores of its own with numactl, in the order of the local ranks. Useful if the optimizer
    runs on the CPU."""

    bind_core_list: str | None = param(None)
    """The cores that `bind_cores_to_rank` distributes, such as `0-15,32-47`. If not set, all cores are distributed."""

    elastic_training: bool = param(
        False,
        effect="not built",
        refused=(
            "if the number of machines can change, DeepSpeed computes the batch size itself and rejects the one that "
            "train.py passes"
        ),
        instead="set restarts to 1 or more, to restart the ranks from the last checkpoint after a failure",
    )
    """Allow the number of machines to change during the run, between `min_elastic_nodes` and `max_elastic_nodes`. Needs
    the `elasticity` section and `master_addr`, and cannot be combined with `no_local_rank`."""

    min_elastic_nodes: OrAll = param(
        -1, effect="none", no_effect_reason="it is used only with elastic_training, which train.py does not support"
    )
    """Minimum number of machines with which an elastic run continues; -1 means 1."""

    max_elastic_nodes: OrAll = param(
        -1, effect="none", no_effect_reason="it is used only with elastic_training, which train.py does not support"
    )
    """Maximum number of machines that an elastic run uses; -1 means the number at the start."""

    log_level: Literal["debug", "info", "warning", "error", "critical"] = param("info", origin=("DSL", "DSC"))
    """How much DeepSpeed's launcher and engine log. Setting `info` or `debug` also shows messages from torch and
    DeepSpeed that otherwise appear only in the ranks' logs."""

    quiet: bool = param(False)
    """The launcher logs errors only, regardless of `log_level`."""


class RunnerExtras(Group, origin="NeoX", effect="launcher"):
    """Launcher settings that GPT-NeoX and deepy add. Stock DeepSpeed has no flags with these names."""

    autotuning_run: Literal["tune", "run"] | None = param(None, to=("runner",))
    """Start DeepSpeed's autotuner, which tries combinations of the settings in the `autotuning` section. `tune` stops
    after the search; `run` then trains with the best settings. Corresponds to the launcher's flag `--autotuning`."""

    comment: str | None = param(None, aliases="slurm_comment", to=("runner",))
    """Comment for the Slurm job, for clusters that bill or sort by it. Passed to `srun` through `launcher_args`, so it
    needs `launcher: slurm`."""

    account: str | None = param(None, to=("runner",))
    """Slurm account that is billed. Passed to `srun` through `launcher_args`, so it needs `launcher: slurm`."""

    fork_ranks: bool | None = param(None, to=("train",), ours=True)
    """Import torch and DeepSpeed once per machine and fork the ranks, which then share the memory of these modules,
    instead of importing them in every rank. Applies only if deepy itself starts the ranks: on one machine, with
    `launcher` not set. Used by default on CPUs; on GPUs, it is experimental."""

    restarts: Natural = param(0, to=(), ours=True)
    """Maximum number of restarts. If a rank is killed, crashes or hangs, all ranks are restarted and resume from the
    newest complete checkpoint in `save`. Before a restart, deepy waits 1 s; the wait doubles, up to 300 s, after every
    restart without a new checkpoint. A run is not restarted after a rank has reported a problem or after a request to
    stop. With `--emit sbatch`, the script also makes Slurm requeue the job. Same as the `--restarts` option."""

    step_timeout: NonNegative | None = param(None, to=("train",), ours=True)
    """Seconds after which a step counts as hung: the Python stacks of all ranks are reported, and the run fails. The
    first step, an evaluation or a save may take ten times as long. If not set, the limit is 30 times the median step
    time, but at least 180 s; the first step, an evaluation or a save then has at least 1800 s. 0 sets no limit."""

    detect_nvlink_pairs: bool = param(
        False,
        to=(),
        effect="none",
        no_effect_reason="only a fork of DeepSpeed had such a flag; set CUDA_VISIBLE_DEVICES instead",
    )
    """No effect: it reordered GPUs in a fork of DeepSpeed so that NVLink neighbours became tensor parallel pairs, and
    stock DeepSpeed has no such flag. Set CUDA_VISIBLE_DEVICES instead."""
