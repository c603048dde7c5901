"""How ranks came to their end: noted by each on its own host, and told by the launcher, the cause before what followed.

    run_dir/logs/20261121-130512/    one attempt
        rank-0.log, rank-1.log       all that each rank said
        rank-1.json                  there only where a rank failed: when, and why

When one rank dies, the others lose their connections to it a moment later and die too. Those are not the cause.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from neoxargs.launch.processes.exit_codes import Evidence, timed_out, why
from neoxargs.problems import Problems
from neoxargs.resolve.config import Config
from neoxargs.shipped import IMPORT_ROOT

PACKAGE = str(IMPORT_ROOT / "neoxargs")
#: Lines of the log that are shown.
TAIL = 15
#: Bytes that are kept for a note.
ROOM = 4096
#: Bytes; a disk with less has no room for any file of a checkpoint.
FULL = 1 << 16
#: How gloo and nccl word that another rank is gone; whatever happened there is told there.
LOST = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited", "heartbeat",
    "Connection was likely closed", "connectFullMesh failed", "communicator was aborted",
)  # fmt: skip
#: Why a rank ended, the nearest to the cause first: its own error; it waited in vain; it lost another one; it was told.
OWN, WAITED, LEFT_ALONE, ASKED = range(4)
FOLLOWED = {
    OWN: "failed too",
    WAITED: "waited for others in vain",
    LEFT_ALONE: "lost their connections",
    ASKED: "were stopped",
}

#: The folder and number of the rank that this process is, where it is watched.
mine: tuple[Path, int] | None = None
#: Where it writes checkpoints.
saves_to: str | None = None


@dataclass(frozen=True)
class Death:
    """A note."""

    rank: int
    host: str
    at: float
    code: int
    why: str
    nature: int
    worded: bool = False
    """Has the rank itself told the whole story in a sentence?"""
    console: str = ""
    """On what it has printed its traceback, or another rank the same one; empty where that is not known."""


def folder(config: Config, attempt: str) -> Path:
    """Where one attempt's logs and notes are."""
    return Path(config.logging.run_dir, "logs", attempt)


def begin(config: Config) -> str:
    """The name of a new attempt, whose folder no other start has, not even one of this second."""
    while True:
        attempt = time.strftime("%Y%m%d-%H%M%S")
        try:
            folder(config, attempt).mkdir(parents=True)
        except FileExistsError:
            time.sleep(0.1)
        else:
            return attempt


def log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def _note(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def _room(folder: Path, rank: int) -> tuple[Path, Path]:
    """Where the end is written before it is a note, and what the rank itself leaves word of."""
    return folder / f".rank-{rank}.end", folder / f".rank-{rank}.error"


def prepare(folder: Path, rank: int) -> None:
    """Remove what an earlier attempt of the same name left, and keep room for a note on a disk that is full by then."""
    for path in (log(folder, rank), _note(folder, rank)):
        path.unlink(missing_ok=True)
    for path in _room(folder, rank):
        path.write_text(" " * ROOM)


def clean(folder: Path, rank: int) -> None:
    """Give up the room."""
    for path in _room(folder, rank):
        path.unlink(missing_ok=True)


def _write(path: Path, values: dict[str, Any]) -> None:
    """In place, into the blocks that the file has."""
    with contextlib.suppress(OSError), path.open("r+" if path.exists() else "w") as file:
        file.write(json.dumps(values))


def any_noted(folder: Path) -> bool:
    return next(folder.glob("rank-*.json"), None) is not None


# -- on the rank's host ----------------------------------------------------------------------------------------------


def confess(error: BaseException) -> None:
    """Leave word of a Python exception for the note that is written when this process has ended."""
    if mine is None:
        return
    first = str(error).strip().partition("\n")[0][: ROOM // 4]
    what = error.problems[0].what if isinstance(error, Problems) else f"{type(error).__name__}: {first}"
    if _is_full(saves_to):
        what = f"the disk of {saves_to} is full; what was saved before is whole; {what}"
    left = {"why": what + _place(error), "nature": nature(error), "worded": isinstance(error, Problems)}
    _write(_room(*mine)[1], left)


def _is_full(folder: str | None) -> bool:
    """torch words a full disk in many ways, and none of them says that it is one."""
    with contextlib.suppress(OSError):
        return bool(folder) and shutil.disk_usage(folder or "").free < FULL
    return False


def keep(text: str) -> None:
    """Write in the log what another rank has said on the console already."""
    if mine is not None:
        with contextlib.suppress(OSError), log(*mine).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def nature(error: BaseException) -> int:
    """Is an exception this rank's own, or does it follow from another's end?"""
    text = str(error) if isinstance(error, RuntimeError) else ""
    return LEFT_ALONE if any(words in text for words in LOST) else WAITED if timed_out(text) else OWN


def _place(error: BaseException) -> str:
    """Where in our code, or else where at all."""
    if isinstance(error, Problems):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    at = (ours or frames)[-1] if frames else None
    return f" ({at.filename}:{at.lineno})" if at else ""


def note(folder: Path, rank: int, code: int, evidence: Evidence) -> None:
    """Write down how this host's rank ended; code: negative for a signal."""
    left: dict[str, Any] = {"why": why(code, tail(folder, rank), evidence), "nature": OWN}
    with contextlib.suppress(OSError, ValueError):
        if code > 0:
            left |= json.loads(_room(folder, rank)[1].read_text())
    if left["nature"] == OWN and code < 0:
        left["nature"] = ASKED if evidence.asked else WAITED if timed_out(tail(folder, rank)) else OWN
    if "worded" in left and left["nature"] in (OWN, WAITED):  # one that was left alone has printed none
        left["console"] = _console()
    death = Death(rank, socket.gethostname(), time.time(), code, **left)
    end, _ = _room(folder, rank)
    _write(end, asdict(death))
    with contextlib.suppress(OSError):
        end.rename(_note(folder, rank))


def _console() -> str:
    """What this process's standard error is, by which another one on this host may know its own again."""
    with contextlib.suppress(OSError):
        end = os.fstat(2)
        return f"{socket.gethostname()} {end.st_dev} {end.st_ino}"
    return ""


# -- at the launcher -------------------------------------------------------------------------------------------------


def deaths(folder: Path) -> list[Death]:
    """All notes, the cause first."""
    found = []
    for path in folder.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Death(**json.loads(path.read_text())))
    return sorted(found, key=lambda death: (death.nature, death.at))


def report(folder: Path) -> tuple[int, list[str]]:
    """The exit code of the rank that failed first, as a shell gives it, and what is to be said; 0 without notes."""
    found = deaths(folder)
    if not found:
        return 0, []
    return (found[0].code if found[0].code > 0 else 128 - found[0].code), list(_told(found, folder))


def _told(found: list[Death], folder: Path) -> Iterator[str]:
    first, *others = found
    yield f"rank {first.rank} on {first.host} failed first: {first.why}"
    if first.worded or (first.console and first.console == _console()):
        yield f"what it said stands above, and in {log(folder, first.rank)}"
    elif said := tail(folder, first.rank):
        shown = "\n".join(f"  | {line}" for line in said.split("\n")[-TAIL:])
        yield f"the end of {log(folder, first.rank)}:\n{shown}"
    elif log(folder, first.rank).exists():
        yield f"it had said nothing; {log(folder, first.rank)} is empty"
    else:
        yield f"its log is {log(folder, first.rank)} on {first.host}"
    for kind, group in groupby(others, lambda death: death.nature):
        ranks = ", ".join(str(rank) for rank in sorted(death.rank for death in group))
        yield f"then {FOLLOWED[kind]}: rank {ranks}"


def tail(folder: Path, rank: int, size: int = 8192) -> str:
    """The end of a rank's log, without what a progress bar has drawn over."""
    try:
        with log(folder, rank).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2] for line in lines if line.strip())


if __name__ == "__main__":  # after an `srun` of a script, which nobody watches
    for place in sys.argv[1:]:
        print("\n".join(report(Path(place))[1]))
