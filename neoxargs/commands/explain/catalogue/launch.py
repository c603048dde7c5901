"""Problems of hosts, launchers and plugins, and of everything that must be in place before a run starts."""

from __future__ import annotations

from neoxargs.commands.explain.catalogue.entry import Entry, Example, row


def _hostfile(protects_from: str, hosts: str, config: str = "") -> Entry:
    """Return an entry whose example is a hostfile, with further lines of configuration if needed."""
    return Entry(protects_from, Example(f"hostfile: hosts\n{config}", files={"hosts": hosts}, gpus=None))


PROBLEMS: dict[str, Entry] = {
    # hosts
    "hostfile-line-without-host": _hostfile(
        "Every hostfile line has a host name and a number of slots. If an unreadable line were skipped, that host's "
        "ranks would be missing from the run, or the other ranks would wait for them.",
        "worker-0 slots=4\nworker-1 4\n",
    ),
    "hostfile-without-host": _hostfile(
        "With an empty hostfile, the run would start on this machine alone, with a different number of replicas and a "
        "different batch size.",
        "# worker-0 slots=4\n",
    ),
    "hostfile-duplicate-host": _hostfile(
        "If a host is listed twice, two groups of ranks would be started on the same GPUs. They would run out of "
        "memory or wait for each other.",
        "worker-0 slots=4\nworker-0 slots=4\n",
    ),
    "hostfile-host-without-slots": _hostfile(
        "A host with slots=0 gets no ranks, and launchers disagree on whether it counts as a host.",
        "worker-0 slots=4\nworker-1 slots=0\n",
    ),
    "devices-not-visible": row(
        "`num_gpus`, `include` or a hostfile selects GPUs of this machine that CUDA_VISIBLE_DEVICES hides. On a shared "
        "machine, they are usually those of other people."
    ),
    "rendezvous-address-malformed": row(
        "`master_addr` is part of the command that starts the ranks, where a value that is not a host name could be "
        "read as something else, such as another variable of their environment."
    ),
    "hostfile-missing": row(
        "Without a hostfile, the launcher starts ranks only on this machine, so the run would have fewer ranks and "
        "a different batch size than intended."
    ),
    "hostfile-unreadable": row(
        "The hostfile exists but cannot be read. Without it, the run would start on this machine alone."
    ),
    "filter-malformed": _hostfile(
        "`include` and `exclude` select hosts and devices. If a filter were misread, ranks would start on GPUs that "
        "are not meant for this run.",
        "worker-0 slots=4\n",
        "include: worker-0:a\n",
    ),
    "filter-unknown-host": _hostfile(
        "`include` or `exclude` names a host that is not in the hostfile. This is usually a typo: the filter would not "
        "apply to the intended host.",
        "worker-0 slots=4\n",
        "include: worker-1\n",
    ),
    "filter-unknown-slot": _hostfile(
        "`exclude` names a slot that the host does not have, so the slot that was meant would not be excluded and the "
        "run would use it.",
        "worker-0 slots=4\n",
        "exclude: worker-0:7\n",
    ),
    "filter-leaves-nothing": _hostfile(
        "`include` and `exclude` leave no device to run on.", "worker-0 slots=4\n", "exclude: worker-0\n"
    ),
    "visible-devices-not-numbers": row(
        "CUDA_VISIBLE_DEVICES lists devices by UUID. DeepSpeed's launcher reads only indices and stops with a "
        "ValueError on every host."
    ),
    "visible-devices-repeated": row(
        "CUDA_VISIBLE_DEVICES names a GPU more than once. NCCL refuses two ranks on the same GPU."
    ),
    "visible-devices-absent": row(
        "CUDA_VISIBLE_DEVICES names a GPU that this machine does not have. CUDA ignores that entry and all after it, so "
        "that the run would train with fewer ranks than intended, or on the CPU."
    ),
    "too-many-ranks": row(
        "The number of ranks is impossibly large. The number of hosts, the number of slots or a parallel size "
        "probably has too many digits."
    ),
    "hosts-not-known": row(
        "The job scheduler chooses the hosts when the job starts, so the hosts cannot be checked earlier."
    ),
    "host-not-reached": row(
        "A host cannot be reached with ssh. The run would start without this host's ranks, and the other ranks "
        "would wait for them until the timeout, half an hour later."
    ),
    "host-without-python": row(
        "A host has no working Python at the path used on this machine, or lacks this machine's working folder. That "
        "host's ranks would fail at once, and the others would wait for them."
    ),
    "host-other-python": row(
        "A host has a different version of Python than this machine. Python objects that ranks exchange or store in "
        "checkpoints are pickled, and a different version may be unable to read them."
    ),
    "host-other-package": row(
        "Different versions of torch or DeepSpeed communicate differently: ranks would wait for each other, or compute "
        "different numbers without reporting an error."
    ),
    "host-without-file": row(
        "A file is missing on a host. The ranks on that host would stop when they open the file. Data and checkpoints "
        "must have the same paths on all hosts."
    ),
    "host-with-fewer-gpus": row(
        "The hostfile gives a host more slots than the host has GPUs. The ranks without a GPU would fail, and the "
        "others would wait for them."
    ),
    # starting ranks
    "script-missing": row(
        "Neither this folder nor the package contains a script with this name, so no rank could start it."
    ),
    "launcher-program-missing": row(
        "The launcher's program (pdsh, mpirun, srun, ...) is not installed on this machine."
    ),
    "launcher-without-flags": row(
        "DeepSpeed launcher flags were requested, but the configured launcher is not one of DeepSpeed's."
    ),
    "rendezvous-address-is-local": row(
        "Ranks on several hosts need one rendezvous address. `localhost` is a different machine on each host: every "
        "host would wait for the others until the timeout."
    ),
    "rendezvous-address-unknown": row(
        "Ranks on several hosts need a rendezvous address, and the configuration does not determine one."
    ),
    "rendezvous-failed": row(
        "The ranks could not connect to the rendezvous address and port: another run may be using the port, or a "
        "firewall may be blocking the connection."
    ),
    "rank-without-gpu": row(
        "A rank was started on a machine that has no GPU left for it: the number of slots in the hostfile, or "
        "num_gpus, is larger than the number of GPUs."
    ),
    "not-started-by-mpi-or-slurm": row(
        "deepspeed_mpi or deepspeed_slurm is true, so mpirun or srun must start the ranks. This process was started "
        "differently and does not know its rank."
    ),
    "configuration-too-long": row(
        "Every rank receives its configuration on its command line. If a command line is longer than the operating "
        "system allows, no rank can start (`Argument list too long`)."
    ),
    "path-not-quoted": row(
        "DeepSpeed's launcher does not quote paths for the other hosts' shells. A path with a space would be "
        "split into two words there."
    ),
    "rank-variable-not-a-number": row(
        "A launcher tells each process its rank, the number of ranks and the port in environment variables. One of "
        "them is not a number, so this process cannot join the others."
    ),
    "master-port-invalid": row(
        "The environment variable MASTER_PORT is not a port number, so the ranks could not find each other."
    ),
    "value-not-quoted": row(
        "DeepSpeed's launcher puts some values into the command of the other hosts' shells without quoting them. The "
        "shell would execute a command in such a value instead of passing it on."
    ),
    "environment-file-bad-line": row(
        "A line of .deepspeed_env does not set a variable. DeepSpeed's launcher would stop, or set the wrong variable "
        "on every host; a shell could execute a part of the line."
    ),
    "secret-on-command-line": row(
        "DeepSpeed's launchers pass exported variables on command lines, which every user on the machine can read."
    ),
    "secret-in-configuration": row(
        "The configuration is on every rank's command line, which every user on the hosts can read. An API key or "
        "password in it would be visible to all of them."
    ),
    "rank-argument-missing": row(
        "train.py was started without the arguments that deepy passes to every rank. It was probably started by hand."
    ),
    "rank-argument-unknown-parameter": row(
        "The launcher sent a parameter that the package on this rank does not have: the installed versions differ, or "
        "a plugin is missing."
    ),
    "rank-argument-unreadable": row("The configuration on a rank's command line is damaged and cannot be decoded."),
    # before a start
    "run-folder-in-use": row(
        "Another run is writing to the folder. The two runs would overwrite each other's checkpoints, metrics and "
        "logs, and neither run could be resumed."
    ),
    "record-replaced": row(
        "The run folder describes one launch. The record of the earlier launch, whose results may still be in the "
        "folder, is lost, and `deepy diff` would compare the values of the new one."
    ),
    "folder-not-writable": row(
        "A folder cannot be written to. The run would train for hours and then fail at its first checkpoint, or fail "
        "at its first step if optimizer states are offloaded to NVMe."
    ),
    "disk-too-small": row(
        "A checkpoint does not fit on the disk: the run would fail when it saves its first checkpoint."
    ),
    "disk-too-small-for-all": row(
        "The disk has space for the first checkpoint, but not for all the checkpoints that the run will keep. The "
        "run would fail when it saves a later checkpoint."
    ),
    "data-weight-misplaced": row(
        "A weight in data_path belongs to the prefix after it. If a prefix has no weight, or a weight no prefix, the "
        "datasets would be mixed in other proportions than intended."
    ),
    "sample-order-too-large": row(
        "Before the first step, rank 0 shuffles the samples of the whole run and writes their order to the run folder. "
        "The order of a run of so many steps does not fit into memory or on the disk."
    ),
    "cpu-without-fp16": row("This machine's CPU cannot compute in fp16; every rank would fail in its first step."),
    "fp32-without-tf32": Entry(
        "With TF32 enabled, Ampere and later GPUs multiply fp32 matrices up to eight times as fast. A run with neither "
        "TF32 nor 16-bit precision takes several times as long, often only because `precision` was forgotten.",
        Example("precision: fp32\n", without=("float32_matmul_precision",)),
    ),
    "gpu-only": row("The setting needs kernels that exist only for GPUs, but the ranks run on CPUs."),
    "backend-missing": row(
        "torch was built without this communication backend; every rank would stop before it joins the process group."
    ),
    "package-missing": row(
        "A setting needs a Python package that is not installed. Every rank would stop when it imports the package, "
        "possibly hours later, at the first evaluation."
    ),
    "wandb-key-missing": row(
        "wandb reads its API key from WANDB_API_KEY or from a netrc file, where `wandb login` writes it. Without a "
        "key, rank 0 would stop after the text is tokenised and all ranks are started."
    ),
    "package-untested": row(
        "train.py uses DeepSpeed internals that change between versions, and a run's numbers depend on torch. "
        "With a version other than the tested one, a run may stop with an error or compute different numbers."
    ),
    "trainer-missing": row(
        "The packages for training (torch, DeepSpeed, megatron-core) are not installed, so every rank would stop at "
        "its first import. Without the extra `train`, deepy can only check and plan."
    ),
    "op-cannot-compile": row(
        "DeepSpeed compiles this op on first use, but the compiler or header files that it needs are missing on this "
        "machine. Every rank would fail to compile the op and stop."
    ),
    "op-lock-held": row(
        "Another process is compiling the same op, or was killed while compiling it and left a stale lock behind. The "
        "ranks would wait for the lock forever."
    ),
    "compiled-op-not-loadable": row("A rank cannot load a compiled DeepSpeed op: a library is missing on its host."),
    "megatron-not-expressible": row(
        "Megatron-LM has no flag for this value, so the printed command would not train the model that the file "
        "describes."
    ),
    "megatron-setting-left-out": row(
        "Megatron-LM has no flag for this setting. The printed command omits the setting, so its effect is lost."
    ),
    # plugins
    "plugin-missing": row(
        "There is no Python module with this name. The parameters that the plugin declares would be unknown keys."
    ),
    "plugin-not-importable": row("Importing the plugin's module raises an error."),
    "plugin-declares-nothing": row("The module declares neither parameters nor choices, so it is not a plugin."),
    "plugin-group-name-taken": row("Two groups with the same name would overwrite each other in a configuration."),
    "plugin-types-evaluated": row(
        "The documentation and the JSON Schema use the source text of type annotations. Without `from __future__ "
        "import annotations`, Python evaluates the annotations, and their text is lost."
    ),
    "plugin-parameter-name-taken": row(
        "If two declarations had the same name, it would be undefined which of them a key in a file refers to."
    ),
    "plugin-type-unsupported": row("YAML cannot express values of this type, so no file could set the parameter."),
    "plugin-parameter-without-description": row("A parameter without a description cannot be explained or documented."),
    "plugin-choice-not-possible": row(
        "Choices can be added only to a parameter that has choices. Either there is no parameter with this name, or it "
        "accepts any value of its type."
    ),
    "plugin-choice-taken": row("The value is already a choice of the parameter, so it would have two meanings."),
}
