"""Machines, launchers, and what must be there before a run starts."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, Example, row


def _hostfile(protects_from: str, hosts: str, more: str = "") -> Entry:
    return Entry(protects_from, Example(f"hostfile: hosts\n{more}", files={"hosts": hosts}, gpus=None))


PROBLEMS: dict[str, Entry] = {
    # hosts
    "hostfile-line-without-host": _hostfile(
        "Every line of a hostfile is a host and how many GPUs it lends. A line that is read as neither would take its "
        "machine out of the run, or leave ranks waiting for one that never comes.",
        "worker-0 slots=4\nworker-1 4\n",
    ),
    "hostfile-without-host": _hostfile(
        "A hostfile without a host would start the run on this machine alone, with another number of replicas and "
        "another batch.",
        "# worker-0 slots=4\n",
    ),
    "hostfile-duplicate-host": _hostfile(
        "A host that is listed twice would get two groups of ranks on the same GPUs, which run out of memory or wait "
        "for each other.",
        "worker-0 slots=4\nworker-0 slots=4\n",
    ),
    "hostfile-host-without-slots": _hostfile(
        "A host that lends no slot has no rank, and the launchers count their hosts differently then.",
        "worker-0 slots=4\nworker-1 slots=0\n",
    ),
    "hostfile-unreadable": row("The hostfile exists and cannot be read; a run without it would be on one machine."),
    "filter-malformed": _hostfile(
        "include and exclude choose hosts and devices. Misread, they would start ranks on GPUs that belong to others.",
        "worker-0 slots=4\n",
        "include: worker-0:a\n",
    ),
    "filter-unknown-host": _hostfile(
        "include or exclude names a host that the hostfile does not have: most often a typo, which would leave a "
        "machine out, or in.",
        "worker-0 slots=4\n",
        "include: worker-1\n",
    ),
    "filter-unknown-slot": _hostfile(
        "exclude names a slot that the host does not lend; the one that was meant would be used.",
        "worker-0 slots=4\n",
        "exclude: worker-0:7\n",
    ),
    "filter-leaves-nothing": _hostfile(
        "include and exclude leave no device to run on.", "worker-0 slots=4\n", "exclude: worker-0\n"
    ),
    "visible-devices-not-numbers": row(
        "CUDA_VISIBLE_DEVICES names devices by UUID. DeepSpeed's launcher reads numbers only, and stops with a "
        "ValueError on every host."
    ),
    "too-many-ranks": row(
        "More ranks than can be counted, let alone started: a number in the hosts or sizes has too many digits."
    ),
    "hosts-not-known": row(
        "Which machines there will be is the job system's choice, so none can be asked before the job runs."
    ),
    "host-not-reached": row(
        "A host does not answer to ssh. Started all the same, its ranks would be missing, and the others wait for them "
        "until the timeout, half an hour later."
    ),
    "host-without-python": row(
        "A host cannot run the Python of this machine. Its ranks would stop at once, and the others wait for them."
    ),
    "host-other-python": row(
        "Two versions of Python in one run pickle objects differently: collectives of objects and checkpoints fail."
    ),
    "host-other-package": row(
        "Different versions of torch or DeepSpeed send different messages: ranks wait for each other, or compute "
        "different numbers without an error."
    ),
    "host-without-file": row(
        "A file is not there on another host: every host must see data and checkpoints under the same paths. Its ranks "
        "would stop when they open it."
    ),
    "host-with-fewer-gpus": row(
        "The hostfile gives a host more slots than it has GPUs. Ranks without a GPU stop, and the others wait for them."
    ),
    # starting ranks
    "script-missing": row("There is no such script, here or in the package, so no rank could start it."),
    "launcher-program-missing": row(
        "The launcher is a program of its own (pdsh, mpirun, srun), which is not installed on this machine."
    ),
    "launcher-without-flags": row(
        "The flags of DeepSpeed's launcher were asked for, and this launcher is none of DeepSpeed's."
    ),
    "rendezvous-address-is-local": row(
        "Ranks on several machines meet at one address. `localhost` is another machine on each of them: every machine "
        "would wait for the others until the timeout."
    ),
    "rendezvous-address-unknown": row(
        "Ranks on several machines need one address at which they meet, and nothing says which."
    ),
    "rendezvous-failed": row(
        "The ranks could not meet at the address and port that they were given: another run may use the port, or a "
        "firewall closes it."
    ),
    "rank-without-gpu": row(
        "A rank was started for which its machine has no GPU: the hostfile's slots, or num_gpus, are too many."
    ),
    "not-started-as-asked": row(
        "deepspeed_mpi or deepspeed_slurm say who starts the ranks, and this process was started by somebody else: it "
        "does not know its rank."
    ),
    "configuration-too-long": row(
        "Every rank gets its configuration on its command line, whose length the system limits. Beyond that no rank "
        "would start (Argument list too long)."
    ),
    "path-not-quoted": row(
        "DeepSpeed's launcher does not quote paths for the shell of another machine. A space in one would start "
        "another command there."
    ),
    "environment-file-bad-line": row(
        "A line of .deepspeed_env that sets no variable stops DeepSpeed's launcher, or sets another variable than was "
        "meant on every host."
    ),
    "secret-on-command-line": row(
        "DeepSpeed's launchers put exported variables on command lines, and every user of a machine can read those."
    ),
    "secret-in-configuration": row(
        "The configuration stands on the command line of every rank, which every user of the machines can read. A key "
        "or password in it is published."
    ),
    "rank-argument-missing": row(
        "train.py was started without the arguments that deepy gives every rank, probably by hand."
    ),
    "rank-argument-unknown-parameter": row(
        "The launcher sent a parameter that this rank's version of the package does not have: two versions are "
        "installed, or a plugin is missing."
    ),
    "rank-argument-unreadable": row(
        "The configuration on a rank's command line is damaged, so the rank cannot tell what it is to do."
    ),
    # before a start
    "folder-not-writable": row(
        "A folder cannot be written to. The run would compute for hours and fail at its first checkpoint, or at its "
        "first step where optimizer states go to NVMe."
    ),
    "disk-too-small": row("One checkpoint does not fit on the disk: the run would fail at its first save."),
    "disk-too-small-for-all": row("The checkpoints that are kept do not all fit on the disk: some later save fails."),
    "cpu-without-fp16": row("This machine's CPU has no fp16 arithmetic; every rank would stop in its first step."),
    "gpu-only": row("The setting needs kernels that exist for GPUs only, and the ranks run on CPUs."),
    "backend-missing": row(
        "torch was built without this communication backend; every rank would stop before it meets the others."
    ),
    "package-missing": row(
        "A setting needs a Python package that is not installed. Every rank would stop when it imports it, some of "
        "them after hours, at the first evaluation."
    ),
    "trainer-missing": row(
        "What trains (torch, DeepSpeed, megatron-core) is not installed here: `pip install neoxargs` alone checks and "
        "plans. Every rank would stop at its first import."
    ),
    "op-cannot-compile": row(
        "DeepSpeed compiles this op on first use, and the machine has no compiler or header files for it. Every rank "
        "would compile, fail and stop."
    ),
    "op-lock-held": row(
        "Another process is compiling the same op, or was stopped while it did and left its lock: ranks would wait for "
        "it without end."
    ),
    "compiled-op-not-loadable": row("A compiled op of DeepSpeed does not load on a rank: a library is missing there."),
    "megatron-not-expressible": row(
        "Megatron-LM has no flag for this value, so its command would train another model than the file describes."
    ),
    "megatron-setting-left-out": row(
        "Megatron-LM has no flag for this setting, and its command is written without it: what DeepSpeed's engine or "
        "this program does with it does not happen there."
    ),
    # plugins
    "plugin-missing": row("There is no module of that name, so the parameters that it declares would be unknown keys."),
    "plugin-not-importable": row("The plugin's module raises an error when it is imported."),
    "plugin-declares-nothing": row("The module declares no group of parameters and no choices: it is no plugin."),
    "plugin-group-name-taken": row("Two groups of one name would hide each other in a configuration."),
    "plugin-types-evaluated": row(
        "Types are read as they are written, for the documentation and the JSON Schema; without the future import they "
        "are gone before that."
    ),
    "plugin-parameter-name-taken": row("Two declarations of one name: nobody could tell which one a file means."),
    "plugin-type-unsupported": row("A file could not say a value of this type, as YAML has no such values."),
    "plugin-parameter-without-description": row(
        "A parameter without a description cannot be explained, documented or suggested."
    ),
    "plugin-choice-not-possible": row("Choices are added to what is no parameter, or to one that takes any value."),
    "plugin-choice-taken": row("The value is one of the choices already, so it would have two meanings."),
}
