"""Problems of command lines, and of commands other than `check` and `migrate`."""

from __future__ import annotations

from neoxargs.commands.explain.catalogue.entry import Entry, Example, row

PROBLEMS: dict[str, Entry] = {
    "explain-needs-a-name": row(
        "The first argument of `explain` is the name of a parameter, a section or a problem; the files follow. In "
        "this command, the first argument is a file, or the name is written as several words."
    ),
    "set-without-value": Entry(
        "The argument of --set is `KEY=VALUE`. Without `=`, nothing would be set, and the value in the file would be "
        "used.",
        Example("seed: 1\n", overrides=("lr: 0.001",)),
    ),
    "set-takes-one-value": row("Each --set takes one argument: in `--set a=1 b=2`, `b=2` is read as a file name."),
    "file-error": row(
        "The operating system reports an error for a file, for example because its name is too long or its disk does "
        "not respond."
    ),
    "file-of-another-program": row(
        "The file is a script or configuration of another program, recognised by keys that only that program has. "
        "`deepy migrate` converts a DeepSpeed JSON, an Accelerate YAML or a Megatron-LM script; for the files of other "
        "programs, the hint lists what their settings are called here."
    ),
    "output-file-exists": row("The output file already exists, and its content would be lost."),
    "output-file-unwritable": row("The output file cannot be written. No file has been changed."),
    "diff-without-file": row("An argument of `deepy diff` is empty, or a file name before or after a `+` is missing."),
    "diff-of-two-runs": row(
        "`deepy diff` takes exactly two names. If a run has several YAML files, join their names with `+`: `deepy "
        "diff a.yml+b.yml c.yml+d.yml`."
    ),
    "diff-losses-incomplete": row(
        "The process was killed while it wrote the last line of its metrics.jsonl. All other lines are compared."
    ),
    "diff-folder-unknown": row(
        "`deepy diff` reads a folder only if it contains a run's record or a checkpoint that stores its configuration."
    ),
    "diff-losses-unreadable": row("The run folder's metrics.jsonl is damaged or belongs to another program."),
    "diff-record-unreadable": row("The record of a run, config.json, is incomplete or was changed by hand."),
    "lock-unreadable": row(
        "The file does not have the format in which this version of deepy writes `run.lock.yml` when it launches a run."
    ),
    "file-is-lock": row(
        "The file is the `run.lock.yml` of a run, perhaps under another name. It records values and the environment. "
        "Only two commands read such a file: `deepy diff`, and `deepy check` if no other file is given."
    ),
    "lock-option-not-applicable": row(
        "A lock file records the configuration files and options of its run. `deepy check` resolves the same files "
        "with the same options again, and compares the values with the recorded ones. Other options would describe a "
        "different run."
    ),
    "lock-configuration-missing": row(
        "`run.lock.yml` records the paths of the run's configuration files, and some of these files no longer exist "
        "there. Only the environment and the data files are compared."
    ),
    "lock-value-differs": row(
        "A configuration file, or a default or rule of deepy, has changed since the run was launched, so the same "
        "command would start a run with different settings."
    ),
    "lock-file-differs": row(
        "The token files or the tokenizer have changed since the run read them. For files larger than 16 MiB (index "
        "files: 256 MiB), only the size and 16 blocks of the content are compared."
    ),
    "lock-code-differs": row("deepy, the script, the plugins or the Git commit of the current folder have changed."),
    "lock-package-differs": row(
        "A different version of a package can give results that differ in the last digits, or behave differently."
    ),
    "lock-hardware-differs": row(
        "Different processors add numbers in different orders, so results are not bit-identical."
    ),
    "docs-need-output-folder": row("An installed package has no docs folder to write to."),
    "latest-checkpoint-missing": row(
        "The checkpoint that `latest` names was removed or not copied. A run that loads this folder continues from "
        "the complete checkpoint with the highest iteration."
    ),
    "prune-all": row("With a KEEP below 1, `checkpoints --prune KEEP` would remove every checkpoint."),
    "prune-needs-yes": row(
        "`checkpoints --prune` asks for confirmation, which is impossible with `--json` or without a terminal. "
        "Nothing was removed."
    ),
    "prune-declined": row(
        "The confirmation prompt of `checkpoints --prune` was not answered with y. Nothing was removed."
    ),
    "plan-does-not-fit": row(
        "The run needs more memory than a device has. It would stop with an out-of-memory error, usually in the first "
        "steps, sometimes in the first evaluation."
    ),
    "plan-of-several-runs": row(
        "With a list of ZeRO stages, DeepSpeed's autotuner starts several runs, but a plan describes a single run."
    ),
    "search-needs-a-device": row(
        "`plan --search` lists the layouts that fit in a GPU's memory. If the device is a CPU or is not given, the "
        "size of that memory is unknown."
    ),
    "search-needs-a-batch": row(
        "All layouts in a search have the same global batch size. If `train_batch_size` is not set, deepy computes "
        "it from the number of replicas, but the layout in the configuration does not give a whole number of "
        "replicas."
    ),
    "unknown-assumption": row("`plan --assume KEY=VALUE` replaces an assumption, but no assumption has this name."),
    "assumption-value": row(
        "The value is not a number, or is outside the range of the assumption. `deepy plan --assumptions` lists the "
        "ranges. With a rate of 0, for example, the run would never finish."
    ),
    "search-option-without-search": row(
        "`--write` and `--left-out` apply to the result of a search, but `plan` searches only with `--search` or "
        "`--fewest`."
    ),
    "no-bf16-tensor-cores": row(
        "GPUs before the A100, such as the V100, have tensor cores for fp16 but not for bf16. In bf16, their matrix "
        "multiplications run at the rate of fp32 or slower."
    ),
    "unknown-device": row("The plan has no data (memory, speed) for a device with this name."),
}
