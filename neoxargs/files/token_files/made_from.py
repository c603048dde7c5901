"""`<prefix>.json` beside a token file: what the token file was made from, and its statistics."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neoxargs.base.files import replace_text
from neoxargs.base.problems import Problem, Problems

#: A larger JSON file is a corpus or a tokenizer and is not read.
MAX_SIZE = 1 << 20


def sidecar(prefix: Path) -> Path:
    """Return the path of the record beside a token file."""
    return prefix.with_name(prefix.name + ".json")


def label_prefix(prefix: Path) -> Path:
    """Return the prefix of the label file that belongs to a token file."""
    return prefix.with_name(prefix.name + "_label")


def reward_prefix(prefix: Path) -> Path:
    """Return the prefix of the reward file that belongs to a token file."""
    return prefix.with_name(prefix.name + "_reward")


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file that appears under its name only once it is complete."""
    with writing(path):
        replace_text(path, json.dumps(values, indent=1) + "\n")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the file system in the block, such as a full disk, into a problem."""
    try:
        yield
    except OSError as error:
        what = f"--output-prefix: {error.filename or path} cannot be written: {error.strerror or error}"
        raise Problems(Problem(what, id="data-not-writable")) from error


def refuse_other_files(*prefixes: Path) -> None:
    """Raise Problems if a record would replace a file of another program, such as the corpus or the tokenizer."""
    problems = [
        Problem(
            f"--output-prefix ({prefix}): {sidecar(prefix)} exists and was not written by deepy data, "
            "which would overwrite it",
            hint="choose a different --output-prefix, or move the file",
            id="data-record-exists",
        )
        for prefix in prefixes
        if os.path.exists(sidecar(prefix)) and not _is_record(sidecar(prefix))
    ]
    if problems:
        raise Problems(problems)


def _is_record(path: Path) -> bool:
    try:
        return path.stat().st_size < MAX_SIZE and "fingerprint" in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def wrong_prefix(prefix: str) -> Iterator[Problem]:
    """Yield the problem of a prefix that is a folder's name, or that of one of the files."""
    for ending, named in {"/": "a slash", ".bin": ".bin", ".idx": ".idx"}.items():
        if prefix.endswith(ending):
            what = f"--output-prefix ({prefix}) ends in {named}; expected a prefix, to which deepy appends .bin and "
            what += ".idx"
            instead = f"{prefix}text" if ending == "/" else prefix.removesuffix(ending)
            yield Problem(what, hint=f"write --output-prefix {instead}", id="data-option-invalid")
