"""Command lines, and what the verbs beside `check` and `migrate` find."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, Example, row

PROBLEMS: dict[str, Entry] = {
    "explain-needs-a-name": row(
        "`explain` wants to know what to explain before the files that it is explained for; a file stands in its place."
    ),
    "set-without-value": Entry(
        "A --set is `KEY=VALUE`. Without the sign it would set nothing, and the run would have the value of the file.",
        Example("seed: 1\n", overrides=("lr: 0.001",)),
    ),
    "set-takes-one-value": row("Each --set takes one value: in `--set a=1 b=2` the second is read as a file."),
    "file-error": row("The operating system refuses a file: its name is too long, or its disk does not answer."),
    "file-of-another-program": row(
        "The file is a script or a JSON of another program, which `deepy migrate` makes a configuration of."
    ),
    "output-file-exists": row("The file exists already, and what is in it would be lost."),
    "output-file-unwritable": row("The file cannot be written; nothing has been changed."),
    "docs-not-here": row("An installed package has no docs folder to write to."),
    "plan-does-not-fit": row(
        "The run needs more memory than a device has: it would stop with an out of memory error, most often in its "
        "first steps, and sometimes in the first evaluation."
    ),
    "plan-of-several-runs": row("For a list of ZeRO stages the autotuner starts several runs; a plan is of one run."),
    "unknown-device": row("The plan needs the memory and the rates of a device, and knows none of this name."),
}
