"""Problems that `deepy migrate` reports about files of earlier years and of other programs."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    "migrate-option-not-applicable": row("An option was given that has no effect for this kind of file."),
    "migrate-write-without-output": row(
        "--write changes a file in place, but this kind of file is converted to a new file."
    ),
    "migrate-several-files": row(
        "Several files of a program other than GPT-NeoX would be merged into one, and their order is not known."
    ),
    # GPT-NeoX
    "migrate-no-counterpart": row("A retired setting cannot be expressed with the names of the new dialect."),
    "migrate-newer-than-dialect": row(
        "This key was added to GPT-NeoX after the date of the new dialect, so that GPT-NeoX would refuse it."
    ),
    "migrate-section-twice": row("A section has keys under its old and its current name, so it is not renamed."),
    "migrate-part-of-configuration": row(
        "Defaults that changed between dialects can only be written out for a complete configuration."
    ),
    "migrate-contradiction": row("A retired name and the name that replaced it have different values."),
    "migrate-result-refused": row(
        "`check` accepts the file but would refuse the migrated one, so the file is left unchanged."
    ),
    "migrate-value-would-change": row(
        "After migrating, a parameter would have a different value than before. The file is left unchanged, because "
        "the result would train a different model."
    ),
    # DeepSpeed
    "migrate-no-configuration": row("The file contains no DeepSpeed configuration."),
    "migrate-several-configurations": row(
        "The file contains several configurations, and migrate does not guess which one is meant."
    ),
    "migrate-too-many-configurations": row("The file contains too many configurations to list and choose from."),
    "migrate-choice-out-of-range": row("--choose names a configuration that the file does not contain."),
    "migrate-model-missing": row(
        "DeepSpeed's JSON does not describe a model. The model has to be added to the new file before a run can start."
    ),
    "migrate-auto-precision-off": row(
        'With "auto", Hugging Face\'s Trainer takes the precision from its own arguments. Without them the run trains '
        "in fp32, with twice the memory."
    ),
    "migrate-json-syntax": row("The text is neither JSON nor JSON with one of the common mistakes."),
    "migrate-json-comma-missing": row("A comma is missing; the file is read as if it were there."),
    "migrate-json-escape": row("An escape sequence in a string is half of a surrogate pair."),
    "migrate-json-value": row("A value is filled in by a script, so the file does not contain the value."),
    # Megatron-LM and its scripts
    "migrate-no-command": row("The file contains no command line of Megatron-LM."),
    "migrate-script-without-megatron": row("The script starts a program other than Megatron-LM."),
    "migrate-several-commands": row("The script starts several runs; only the command with the most flags is read."),
    "migrate-flags-from-variables": row(
        "The script does not start Megatron-LM, so the flags are read from the values of its variables."
    ),
    "migrate-flag-without-value": row("A flag has no value after it, so the setting is unknown."),
    "migrate-flag-value": row("Megatron-LM would refuse this value of a flag, or read it as a different type."),
    "migrate-unknown-flag": row(
        "The flag is misspelt, or belongs to a fork of Megatron-LM, so its meaning is unknown."
    ),
    "migrate-placeholder": row("A published script has a placeholder where each user has to insert a value."),
    "migrate-flag-and-json-differ": row(
        "A flag and the DeepSpeed JSON of the same script set a parameter to different values."
    ),
    "migrate-flag-without-counterpart": row("A flag of Megatron-LM has no equivalent in deepy and is left out."),
    "migrate-branch-read": row("The script has an `if`; the new file contains the values of one branch only."),
    "migrate-variable-unset": row(
        "A variable is not set by the script itself, so a value in the new file has to be filled in."
    ),
    "migrate-variable-from-environment": row(
        "A value comes from the environment of this shell, and may differ in a different shell."
    ),
    "migrate-expansion-too-long": row("Variables of the script refer to each other in a loop."),
}
