"""What torch's flight recorder has recorded of the collective operations of each rank, read without torch.

    run_dir/logs/20261121-130512/flight-1    only if a rank was late, or a collective operation of NCCL timed out

A record is a pickle of plain values: torch's `FlightRecorder.hpp`, version 2. It has the last operations that the rank
has begun, in order, with their process group, number within the group, and Python stack.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.base.shipped import IMPORT_ROOT

#: What precedes the number of the rank in the name of its file.
PREFIX = "flight-"
#: Operations that are reported.
REPORTED = 3


class Group(NamedTuple):
    """A process group."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Empty if they are not recorded, as of gloo."""

    def __str__(self) -> str:
        described = f" ({self.description})" if self.description else ""
        return f"process group {self.name}{described}" + (f" of ranks {_list(self.ranks)}" if self.ranks else "")


class Operation(NamedTuple):
    """One collective operation, or message, of a rank."""

    group: Group
    name: str
    number: int
    """Of the collective operations of the group, or of its messages."""
    message: bool
    """Whether it is a message to or from one other rank, which other ranks need not begin."""
    sizes: str
    finished: bool
    line: str
    """The line that called it: the innermost one of this package, or else the innermost one outside torch.

    Without train/process/collectives.py, which forwards calls.
    """


Records = dict[int, list[Operation]]
"""Rank -> its operations, in their order."""


def record_file(logs: Path, rank: int) -> Path:
    return logs / f"{PREFIX}{rank}"


def read(file: Path) -> list[Operation]:
    """Return the operations of a record, in their order. Raises ValueError or OSError if it cannot be read."""
    try:
        with file.open("rb") as stream:
            record = _PlainValues(stream).load()
        members = {name: group.get("ranks", "") for name, group in record["pg_config"].items()}
        return [_operation(entry, members) for entry in record["entries"]]
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{file} is no record of torch's flight recorder: {error!r}") from error


def sentences(logs: Path) -> Iterator[str]:
    """Say for the ranks of a folder which operation some wait for, and which rank has not begun it, and where."""
    records: Records = {}
    for file in sorted(logs.glob(f"{PREFIX}*")):
        with contextlib.suppress(ValueError, OSError):
            records[int(file.name.removeprefix(PREFIX))] = read(file)
    groups = {operation.group: None for operations in records.values() for operation in operations}
    found = [sentence for group in groups if (sentence := _of_group(group, records))]
    # Groups whose ranks differ come first: the others may wait because of them.
    yield from (text for _, text in sorted(found, key=lambda sentence: not sentence[0])[:REPORTED])


def _of_group(group: Group, records: Records) -> tuple[bool, str] | None:
    """Return a sentence about a group's first operation that is not finished, and whether ranks differ in it."""
    own = {rank: [each for each in operations if each.group == group] for rank, operations in records.items()}
    known = {rank: operations for rank, operations in own.items() if operations or rank in group.ranks}
    waiting = [(each.number, rank, each) for rank, all in known.items() for each in all if not each.finished]
    if not waiting:
        return None
    # Messages wait for a rank that waits for another one.
    number, rank, first = min(waiting, key=lambda found: (found[2].message, *found[:2]))
    what = f"{first.name} number {number} of {group}"
    if first.message:
        return False, f"rank {rank} waits for {what}, which {first.line} began"
    begun = {other: [each for each in all if not each.message] for other, all in known.items()}
    missing = [other for other, all in begun.items() if not all or all[-1].number < number]
    if missing:
        others = ranks_of(other for other in begun if other not in missing)
        places = "; ".join(_last(other, begun[other]) for other in missing)
        return True, f"{ranks_of(missing)} did not begin {what}, which {others} began at {first.line}; {places}"
    for other, all in begun.items():
        for each in all:
            if each.number == number and (each.name, each.sizes) != (first.name, first.sizes):
                began = f"rank {other} began {each.name} of {each.sizes} at {each.line}"
                return True, f"{began}, where rank {rank} began {what} of {first.sizes} at {first.line}"
    return False, f"{ranks_of(begun)} began {what} at {first.line}, and it did not finish"


def _last(rank: int, operations: list[Operation]) -> str:
    if not operations:
        return f"rank {rank} has begun none there"
    last = operations[-1]
    return f"the last one that rank {rank} began there is {last.name} number {last.number}, at {last.line}"


def ranks_of(ranks: Iterable[int]) -> str:
    """Return `rank 1`, or `ranks 1, 2`, in ascending order."""
    numbers = sorted(ranks)
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {_list(numbers)}"


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _operation(entry: Mapping[str, Any], members: Mapping[str, str]) -> Operation:
    name, description = entry["process_group"]
    message = bool(entry.get("is_p2p"))
    ranks = tuple(map(int, filter(None, members.get(name, "").strip("[]").split(","))))  # of "[0, 1]"
    return Operation(
        group=Group(name, "" if description == "undefined" else description, ranks),
        # "nccl:all_reduce"
        name=entry["profiling_name"].rpartition(":")[2],
        number=entry["p2p_seq_id" if message else "collective_seq_id"],
        message=message,
        sizes=f"{_words(entry['input_sizes'])} {_words(entry['input_dtypes'])}",
        finished=entry["state"] == "completed" or bool(entry["retired"]),
        line=_line(entry.get("frames", [])),
    )


def _words(values: Any) -> str:
    return str(values).replace("'", "")


def _line(frames: list[Mapping[str, Any]]) -> str:
    package = IMPORT_ROOT / "neoxargs"
    forwards = str(package / "train/process/collectives.py")
    own = [frame for frame in frames if frame["filename"].startswith(f"{package}/") and frame["filename"] != forwards]
    others = [frame for frame in frames if "/torch/" not in frame["filename"]]
    frame = next(iter(own or others or frames), None)
    return f"{frame['filename']}:{frame['line']}" if frame else "an unknown line"


class _PlainValues(pickle.Unpickler):
    """Reads pickles of plain values only: those that torch writes have no others."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
