"""Problems of hosts, launchers and plugins, and of everything that must be in place before a run starts."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, Example, row


def _hostfile(protects_from: str, hosts: str, config: str = "") -> Entry:
    """Return an entry whose example is a hostfile, with further lines of configuration if needed."""
    return Entry(protects_from, Example(f"hostfile: hosts\n{config}", files={"hosts": hosts}, gpus=None))


PROBLEMS: dict[str, Entry] = {
    # hosts
    "hostfile-line-without-host": _hostfile(
        "Every line of a hostfile is a host and its number of slots. If an unreadable line were skipped, its host "
        "would be missing from the run, or the other ranks would wait for it.",
        "worker-0 slots=4\nworker-1 4\n",
    ),
    "hostfile-without-host": _hostfile(
        "With an empty hostfile the run would start on this machine alone, with a different number of replicas and a "
        "different batch size.",
        "# worker-0 slots=4\n",
    ),
    "hostfile-duplicate-host": _hostfile(
        "A host that is listed twice would get two groups of ranks on the same GPUs, which run out of memory or wait "
        "for each other.",
        "worker-0 slots=4\nworker-0 slots=4\n",
    ),
    "hostfile-host-without-slots": _hostfile(
        "A host with slots=0 gets no rank, and the launchers differ in whether they count it as a host.",
        "worker-0 slots=4\nworker-1 slots=0\n",
    ),
    "hostfile-unreadable": row(
        "The hostfile exists but cannot be read. Without it the run would start on this machine alone."
    ),
    "filter-malformed": _hostfile(
        "include and exclude select hosts and devices. If a filter were misread, ranks would start on GPUs that are "
        "not meant for this run.",
        "worker-0 slots=4\n",
        "include: worker-0:a\n",
    ),
    "filter-unknown-host": _hostfile(
        "include or exclude names a host that is not in the hostfile: usually a typo, because of which the intended "
        "host would not be included or excluded.",
        "worker-0 slots=4\n",
        "include: worker-1\n",
    ),
    "filter-unknown-slot": _hostfile(
        "exclude names a slot that the host does not have; the intended slot would be used by the run.",
        "worker-0 slots=4\n",
        "exclude: worker-0:7\n",
    ),
    "filter-leaves-nothing": _hostfile(
        "include and exclude leave no device to run on.", "worker-0 slots=4\n", "exclude: worker-0\n"
    ),
    "visible-devices-not-numbers": row(
        "CUDA_VISIBLE_DEVICES names devices by UUID. DeepSpeed's launcher reads only indices and stops with a "
        "ValueError on every host."
    ),
    "too-many-ranks": row(
        "The number of ranks is impossibly large: a number of hosts, slots or a parallel size has too many digits."
    ),
    "hosts-not-known": row(
        "The job system assigns the hosts when the job starts, so they cannot be checked before that."
    ),
    "host-not-reached": row(
        "A host does not answer to ssh. The run would start without its ranks, and the others would wait for them "
        "until the timeout, half an hour later."
    ),
    "host-without-python": row(
        "A host cannot run Python at the path that it has on this machine. Its ranks would fail at once, and the "
        "others would wait for them."
    ),
    "host-other-python": row(
        "Different versions of Python pickle objects differently: collectives of Python objects and checkpoints fail."
    ),
    "host-other-package": row(
        "Different versions of torch or DeepSpeed do not communicate in the same way: ranks wait for each other, or "
        "compute different numbers without an error."
    ),
    "host-without-file": row(
        "A file is missing on a host. All hosts need data and checkpoints under the same paths; the ranks of that "
        "host would stop when they open the file."
    ),
    "host-with-fewer-gpus": row(
        "The hostfile gives a host more slots than it has GPUs. The ranks without a GPU would fail, and the others "
        "would wait for them."
    ),
    # starting ranks
    "script-missing": row("There is no such script in this folder or in the package, so no rank could start it."),
    "launcher-program-missing": row(
        "The launcher's program (pdsh, mpirun, srun, ...) is not installed on this machine."
    ),
    "launcher-without-flags": row(
        "The flags of DeepSpeed's launcher were requested, but the configured launcher is not one of DeepSpeed's."
    ),
    "rendezvous-address-is-local": row(
        "Ranks on several hosts need one rendezvous address. `localhost` is a different machine on each host: every "
        "host would wait for the others until the timeout."
    ),
    "rendezvous-address-unknown": row(
        "Ranks on several hosts need a rendezvous address, and the configuration does not determine one."
    ),
    "rendezvous-failed": row(
        "The ranks could not connect to the rendezvous address and port: another run may use the port, or a firewall "
        "may block it."
    ),
    "rank-without-gpu": row(
        "A rank was started on a machine that has no GPU left for it: the slots in the hostfile, or num_gpus, exceed "
        "the number of GPUs."
    ),
    "not-started-by-mpi-or-slurm": row(
        "deepspeed_mpi or deepspeed_slurm is true, so mpirun or srun must start the ranks. This process was started "
        "differently and does not know its rank."
    ),
    "configuration-too-long": row(
        "Every rank receives its configuration on its command line, whose length the operating system limits. Beyond "
        "the limit no rank would start (Argument list too long)."
    ),
    "path-not-quoted": row(
        "DeepSpeed's launcher does not quote paths for the shell of the other hosts. A path with a space would be "
        "split into two words there."
    ),
    "environment-file-bad-line": row(
        "A line of .deepspeed_env does not set a variable. DeepSpeed's launcher would stop, or set the wrong variable "
        "on every host."
    ),
    "secret-on-command-line": row(
        "DeepSpeed's launchers pass exported variables on command lines, which every user of a machine can read."
    ),
    "secret-in-configuration": row(
        "The configuration is on the command line of every rank, which every user of the hosts can read. A key or "
        "password in it would be visible to all of them."
    ),
    "rank-argument-missing": row(
        "train.py was started without the arguments that deepy passes to every rank, probably by hand."
    ),
    "rank-argument-unknown-parameter": row(
        "The launcher sent a parameter that the package on this rank does not have: the installed versions differ, or "
        "a plugin is missing."
    ),
    "rank-argument-unreadable": row(
        "The configuration on the command line of a rank is damaged and cannot be decoded."
    ),
    # before a start
    "folder-not-writable": row(
        "A folder cannot be written to. The run would compute for hours and fail at its first checkpoint, or at its "
        "first step if optimizer states are offloaded to NVMe."
    ),
    "disk-too-small": row("A checkpoint does not fit on the disk: the run would fail when it saves the first one."),
    "disk-too-small-for-all": row(
        "All the checkpoints that the run will keep do not fit on the disk: it would fail when it saves a later one."
    ),
    "cpu-without-fp16": row("The CPU of this machine cannot compute in fp16; every rank would fail in its first step."),
    "fp32-without-tf32": Entry(
        "GPUs since Ampere multiply fp32 matrices in TF32 if that is permitted, which is about eight times as fast as "
        "fp32. Without it, and without 16 bits, a run takes several times as long, often because precision was left "
        "out.",
        Example("precision: fp32\n", without=("float32_matmul_precision",)),
    ),
    "gpu-only": row("The setting needs kernels that exist only for GPUs, and the ranks run on CPUs."),
    "backend-missing": row(
        "torch was built without this communication backend; every rank would stop before it joins the process group."
    ),
    "package-missing": row(
        "A setting needs a Python package that is not installed. Every rank would stop when it imports the package, in "
        "some cases hours later, at the first evaluation."
    ),
    "package-untested": row(
        "train.py uses internals of DeepSpeed that change between its versions, and the numbers of a run depend on "
        "torch. With another version than the tested one a run may stop with an error or compute other numbers."
    ),
    "trainer-missing": row(
        "The packages for training (torch, DeepSpeed, megatron-core) are not installed: `pip install neoxargs` alone "
        "can only check and plan. Every rank would stop at its first import."
    ),
    "op-cannot-compile": row(
        "DeepSpeed compiles this op on first use, and the machine has no compiler or no header files for it. Every "
        "rank would fail to compile it and stop."
    ),
    "op-lock-held": row(
        "Another process is compiling the same op, or was killed while compiling and left its lock behind: the ranks "
        "would wait for the lock forever."
    ),
    "compiled-op-not-loadable": row("A rank cannot load a compiled op of DeepSpeed: a library is missing on its host."),
    "megatron-not-expressible": row(
        "Megatron-LM has no flag for this value, so its command would train a different model than the file describes."
    ),
    "megatron-setting-left-out": row(
        "Megatron-LM has no flag for this setting, so the command is written without it and has none of its effects."
    ),
    # plugins
    "plugin-missing": row(
        "There is no Python module of this name. The parameters that the plugin declares would be unknown keys."
    ),
    "plugin-not-importable": row("Importing the plugin's module raises an error."),
    "plugin-declares-nothing": row("The module declares neither parameters nor choices, so it is not a plugin."),
    "plugin-group-name-taken": row("Two groups with the same name would overwrite each other in a configuration."),
    "plugin-types-evaluated": row(
        "The documentation and the JSON Schema use the source text of types. Without `from __future__ import "
        "annotations` Python evaluates the types, and their text is lost."
    ),
    "plugin-parameter-name-taken": row(
        "With two declarations of the same name, it is not defined which of them a key in a file means."
    ),
    "plugin-type-unsupported": row("YAML cannot express values of this type, so no file could set the parameter."),
    "plugin-parameter-without-description": row("A parameter without a description cannot be explained or documented."),
    "plugin-choice-not-possible": row(
        "Choices can only be added to a parameter that has choices; this name is unknown, or accepts any value of its "
        "type."
    ),
    "plugin-choice-taken": row("The value is already a choice of the parameter, so it would have two meanings."),
}
