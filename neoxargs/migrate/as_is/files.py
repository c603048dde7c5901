"""Recognise another program's file by its content, and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import Record
from neoxargs.migrate.as_is import accelerate, deepspeed, megatron, trainer
from neoxargs.migrate.as_is.keys import Program, unknown_version
from neoxargs.registry import other_keys, receivers


class Kind(Record):
    """One kind of files."""

    called: str
    program: str
    package: str
    """The program's name in the options that name its version."""
    read: Callable[[Text], Any]
    """Returns what the file says, or None if it is of another kind. Raises Problems if it cannot be read."""
    judge: Callable[[Any, Text, Program, int | None], Iterator[Problem]]
    """Yields the problems; the last argument is the number of GPUs, if the user names it."""
    remarks: Callable[[Any], dict[str, str]]
    """Returns lines about the file, by label."""


#: The first kind that recognises a file judges it.
KINDS = (
    Kind("an Accelerate YAML", "Accelerate", "accelerate", accelerate.read, accelerate.judge, accelerate.remarks),
    Kind("TrainingArguments", "Transformers", "transformers", trainer.read, trainer.judge, trainer.remarks),
    Kind("a DeepSpeed JSON", "DeepSpeed", "deepspeed", deepspeed.read, deepspeed.judge, deepspeed.remarks),
    Kind("a Megatron-LM script", "Megatron-LM", "megatron", megatron.read, megatron.judge, megatron.remarks),
)


class Checked(Record):
    """What is found in another program's file. remarks: lines about it, by label."""

    called: str
    program: Program
    problems: Sequence[Problem]
    remarks: Mapping[str, str]


def checked(text: Text, versions: Mapping[str, str], gpus: int | None) -> Checked | None:
    """Return what is wrong with another program's file; None for a file of ours, and for one of no known kind.

    versions: package -> the version that the user names.
    """
    for kind in KINDS:
        program = _program(kind, versions.get(kind.package, ""))
        try:
            if (content := kind.read(text)) is None:
                continue
        except Problems as stop:
            return Checked(kind.called, program, stop.problems, {})
        problems = [*unknown_version(program), *kind.judge(content, text, program, gpus)]
        return Checked(kind.called, program, list(dict.fromkeys(problems)), kind.remarks(content))
    return None


def _program(kind: Kind, given: str) -> Program:
    """Return the program in the version that the user names, or in the newest known one ("")."""
    if kind.package == "deepspeed":
        return Program(kind.program, kind.package, tuple(receivers.versions()), given)
    known, earlier = other_keys.versions(kind.package), other_keys.earlier(kind.package)
    return Program(kind.program, kind.package, known, given, earlier)
