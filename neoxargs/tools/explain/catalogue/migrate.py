"""What `deepy migrate` finds in files of other years and other programs."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    "migrate-option-without-meaning": row("An option was given that means nothing for this kind of file."),
    "migrate-write-without-output": row("--write changes files in place, and what this becomes is a new file."),
    "migrate-several-files": row(
        "Several files that are not GPT-NeoX's would become one, in an order that is unknown."
    ),
    # GPT-NeoX
    "migrate-contradiction": row("A retired name says something else than the name that took its place."),
    "migrate-result-refused": row(
        "What the file would become is refused by `check`, though the file itself is not: it is left as it is."
    ),
    "migrate-value-would-change": row(
        "After migrating, a parameter would have another value than before: the file is left as it is, rather than "
        "train something else."
    ),
    # DeepSpeed
    "migrate-no-configuration": row("There is no DeepSpeed configuration in the file."),
    "migrate-several-configurations": row(
        "The file holds several configurations, and which one is meant is not guessed."
    ),
    "migrate-too-many-configurations": row("The file holds more configurations than anybody would choose from."),
    "migrate-choice-out-of-range": row("--choose names a configuration that the file does not have."),
    "migrate-model-missing": row(
        "DeepSpeed's JSON does not describe a model. The new file has to be completed before a run can start."
    ),
    "migrate-auto-precision-off": row(
        'In Hugging Face\'s Trainer "auto" takes the precision from its own arguments. Without them the run trains in '
        "fp32, with twice the memory."
    ),
    "migrate-json-syntax": row("The text is neither JSON nor the usual slips in it."),
    "migrate-json-comma-missing": row("A comma is missing; the file is read as if it were there."),
    "migrate-json-escape": row("An escape in a text stands for half a character."),
    "migrate-json-value": row("A script fills a value in, which is not in the file."),
    # Megatron-LM and its scripts
    "migrate-no-command": row("The file has no command line of Megatron-LM."),
    "migrate-script-without-megatron": row("The script starts another program than Megatron-LM."),
    "migrate-several-commands": row("The script starts several models; only the one with the most flags is read."),
    "migrate-flags-of-variables": row("The flags are taken from the script's variables, as nothing is started in it."),
    "migrate-flag-without-value": row("A flag has no value behind it, so what it would set is unknown."),
    "migrate-flag-value": row("Megatron-LM would refuse this value of a flag, or reads it as another type."),
    "migrate-flag-without-counterpart": row("A flag of Megatron-LM has no counterpart here and is left out."),
    "migrate-branch-read": row("The script decides in an `if`; the values in the new file are those of one branch."),
    "migrate-variable-unset": row("A variable gets its value outside of the script; the new file has a gap there."),
    "migrate-variable-from-environment": row(
        "A value comes from the environment of this shell, and would be another one elsewhere."
    ),
    "migrate-variables-endless": row("Variables of the script repeat each other without end."),
}
