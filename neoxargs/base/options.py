"""Command-line options shared by several commands."""

from __future__ import annotations

import argparse
import re
from typing import Any


def add_files(
    parser: argparse.ArgumentParser, nargs: str = "+", what: str = "YAML files to merge; .yml may be omitted"
) -> None:
    add = parser.add_argument
    settings: dict[str, Any] = {"default": []} if nargs == "*" else {}  # without a default, argparse would require them
    add("files", metavar="FILE", nargs=nargs, help=what, **settings)
    add("-d", "--conf_dir", "--conf-dir", metavar="DIR", help="look for the files in DIR first")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="override a value (repeatable)")
    add("--gpus", metavar="N", type=gpu_count, help="assume N GPUs instead of those on this machine")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_versions(parser: argparse.ArgumentParser) -> None:
    for package, example in (("deepspeed", "0.19.8"), ("torch", "2.15")):
        text = f"assume this version of {package} instead of the installed one, for example {example}"
        parser.add_argument(f"--{package}", metavar="VERSION", type=version_number, help=text)


def version_number(text: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version; write numbers with dots, such as 0.19.8")
    return text


def gpu_count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs; write a whole number of at least 1")
    return int(text)
