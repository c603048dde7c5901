"""Problems that `deepy migrate` reports about files of earlier years and of other programs."""

from __future__ import annotations

from neoxargs.commands.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    "migrate-option-not-applicable": row("The command has an option that has no effect for this kind of file."),
    "migrate-variable-without-effect": row(
        "`--var` gives a variable the value that it has before the script starts. It has no effect on a variable that "
        "the script itself sets or does not use."
    ),
    "migrate-write-without-output": row(
        "--write edits files in place, but this kind of file is converted to a new file."
    ),
    "migrate-several-files": row(
        "Only GPT-NeoX files can be migrated together, and only in place. Into one new file, several files would have "
        "to be merged, in an order that is not known."
    ),
    # GPT-NeoX
    "migrate-no-counterpart": row("A retired setting cannot be expressed with the names of the new dialect."),
    "migrate-newer-than-dialect": row(
        "This key was added to GPT-NeoX after the date of the new dialect, so GPT-NeoX as of that date would reject "
        "the file."
    ),
    "migrate-section-twice": row(
        "The file has the section under both its old and its current name, so the section is not renamed."
    ),
    "migrate-part-of-configuration": row(
        "Defaults that changed between dialects can be written out only for a complete configuration."
    ),
    "migrate-contradiction": row("A retired name and the name that replaced it are set to different values."),
    "migrate-result-refused": row(
        "`check` accepts the file but would reject the migrated one, so the file is left unchanged."
    ),
    "migrate-value-would-change": row(
        "After the migration, a parameter would have a different value than before. The file is left unchanged, "
        "because the result would train a different model."
    ),
    # DeepSpeed
    "migrate-no-configuration": row("The file contains no DeepSpeed configuration."),
    "migrate-several-configurations": row(
        "The file contains several configurations, and migrate does not guess which one is meant."
    ),
    "migrate-too-many-configurations": row("The file contains too many configurations to list and choose from."),
    "migrate-choice-out-of-range": row("--choose selects a configuration that the file does not contain."),
    "migrate-model-missing": row(
        "DeepSpeed's JSON does not describe a model. Add the model to the new file before you start a run."
    ),
    "migrate-key-left-out": row(
        "The file has settings that only Accelerate reads, or names a DeepSpeed JSON that must be migrated too."
    ),
    "migrate-auto-precision-off": row(
        'With "auto", Hugging Face\'s Trainer takes the precision from its command-line arguments, which the file '
        "does not contain. Unless you set `precision`, the run trains in fp32, with twice the memory."
    ),
    "migrate-json-syntax": row("The text is not valid JSON, and `migrate` cannot correct the mistake."),
    "migrate-json-comma-missing": row("A comma is missing; the file is read as if it were there."),
    "migrate-json-escape": row(
        "A `\\u` escape sequence in a string is only half of a surrogate pair, so it does not represent a character."
    ),
    "migrate-json-value": row("The text is not a JSON value, usually because a script fills in the value later."),
    "migrate-accelerate-without-deepspeed": row("The Accelerate configuration is for FSDP or plain data parallelism."),
    # Megatron-LM and its scripts
    "migrate-no-command": row("The file contains no Megatron-LM command line."),
    "migrate-script-without-megatron": row("The script starts a program other than Megatron-LM."),
    "migrate-several-commands": row("The script starts several runs; only the command with the most flags is read."),
    "migrate-line-not-continued": row(
        "A line of flags is not part of a command, because the line above does not end with a `\\`."
    ),
    "migrate-flags-from-variables": row(
        "The script does not start Megatron-LM, so the flags are read from its shell variables."
    ),
    "migrate-flag-without-value": row("A flag that needs a value has none, so the setting is unknown."),
    "migrate-flag-value": row("Megatron-LM would reject this flag's value, or parse it as a different type."),
    "migrate-unknown-flag": row("The flag is misspelt, or belongs to a Megatron-LM fork, so its meaning is unknown."),
    "migrate-placeholder": row(
        "The script contains a placeholder, such as `<path>`, that has to be replaced with a value."
    ),
    "migrate-flag-and-json-differ": row(
        "A flag and the DeepSpeed JSON of the same script set a parameter to different values."
    ),
    "migrate-flag-without-counterpart": row("A Megatron-LM flag has no equivalent in deepy and is left out."),
    "migrate-slurm-option": row(
        "deepy has no settings for a Slurm job's time limit, partition and similar options: they belong to the script "
        "that is submitted, not to the configuration of the run."
    ),
    "migrate-optimizer-missing": row(
        "A DeepSpeed JSON without an optimizer leaves it to the training script, as Hugging Face's Trainer does. The "
        "new file has none either, so a run would train with deepy's default optimizer and schedule."
    ),
    "migrate-older-than-dialect": row(
        "The file has a key that GPT-NeoX had removed before the date that the file is converted to. deepy reads the "
        "key in every dialect, but a GPT-NeoX of that date would not."
    ),
    "migrate-other-program": row(
        "The script starts a program that does not pretrain a GPT, or one that is not Megatron-LM's, so its model, "
        "data or loss can differ from what the flags say."
    ),
    "migrate-nested-too-deep": row("The script is nested too deep, or runs too many commands, to be read."),
    "migrate-variable-unset": row(
        "A value is unknown: the script does not set the variable, or sets it in a way that depends on a condition, a "
        "loop, a command or another file, so you have to fill in the value in the new file."
    ),
    "migrate-variable-from-environment": row(
        "A value comes from an environment variable of this shell and may differ in another shell."
    ),
    "migrate-expansion-too-long": row("Some of the script's variables refer to each other in a cycle."),
}
