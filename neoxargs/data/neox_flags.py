"""Flags of GPT-NeoX's preprocess_data_with_chat_template.py and preprocess_data_with_mask.py.

They are accepted so that old commands work, but they are not listed in the help.
"""

from __future__ import annotations

import argparse

from neoxargs.base.problems import Problem


def add_neox_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of both tools that `deepy data` spells differently or does not need."""
    hidden = argparse.SUPPRESS
    add = parser.add_argument
    add("--input", action="append", default=[], help=hidden)
    add("--jsonl-keys", nargs="+", help=hidden)
    add("--dataset-impl", choices=("lazy", "cached", "mmap"), default="mmap", help=hidden)
    add("--ftfy", action="store_true", help=hidden)
    for ignored in ("--num-docs", "--log-interval"):  # the progress bar counts bytes
        add(ignored, type=int, help=hidden)


def inputs(args: argparse.Namespace) -> list[str]:
    """Return the files of `--input`, which are separated by commas."""
    return [name for value in args.input for name in value.split(",") if name]


def refused(args: argparse.Namespace) -> list[Problem]:
    """Return a problem for each flag of GPT-NeoX that has no equivalent."""
    problems = []
    if args.ftfy:
        hint = "deepy does not change the text; run ftfy on the files first"
        problems.append(Problem("--ftfy is not supported", hint=hint, id="neox-flag-refused"))
    if args.dataset_impl != "mmap":
        what = f"--dataset-impl ({args.dataset_impl}) is a format that GPT-NeoX no longer reads"
        problems.append(Problem(what, hint="use mmap, the only format that deepy supports", id="neox-flag-refused"))
    if args.jsonl_keys and len(args.jsonl_keys) > 1:
        what = f"--jsonl-keys ({' '.join(args.jsonl_keys)}) must be a single key"
        problems.append(
            Problem(
                what,
                hint="run the command once per key, each time with a different --output-prefix",
                id="neox-flag-refused",
            )
        )
    return problems
