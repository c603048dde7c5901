"""How ranks failed: each is recorded on its own host, and the launcher reports the cause before what followed from it.

    run_dir/logs/20261121-130512/    one attempt
        rank-0.log, rank-1.log       all that each rank printed
        rank-1.json                  only where a rank failed: when, and why

When one rank fails, the others lose their connections to it a moment later and fail too. Those are not the cause.
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
from enum import IntEnum
from itertools import groupby
from pathlib import Path
from typing import Any

from neoxargs.launch.processes.exit_codes import Evidence, describe_exit, is_timeout
from neoxargs.problems import Problems, sentence
from neoxargs.resolve.config import Config
from neoxargs.shipped import IMPORT_ROOT

PACKAGE = str(IMPORT_ROOT / "neoxargs")
#: Lines of the log that are shown.
TAIL_LINES = 15
#: What is kept free for a record.
RECORD_BYTES = 4096
#: A disk with less than this has no room for any file of a checkpoint.
FULL_DISK_BYTES = 1 << 16
#: How gloo and nccl word that another rank is gone; that rank reports what happened there.
CONNECTION_LOST = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited", "heartbeat",
    "Connection was likely closed", "connectFullMesh failed", "communicator was aborted",
)  # fmt: skip


class Cause(IntEnum):
    """Why a rank ended, the nearest to the root cause first."""

    OWN_ERROR = 0
    TIMED_OUT = 1
    """It waited for another rank in vain."""
    LOST_CONNECTION = 2
    """Another rank was gone."""
    ASKED_TO_STOP = 3


FOLLOWED = {
    Cause.OWN_ERROR: "failed too",
    Cause.TIMED_OUT: "waited for others in vain",
    Cause.LOST_CONNECTION: "lost their connections",
    Cause.ASKED_TO_STOP: "were stopped",
}


@dataclass(frozen=True)
class RankFailure:
    """What is recorded of a rank that failed."""

    rank: int
    host: str
    time: float
    exit_code: int
    """Negative: of a signal."""
    reason: str
    cause: Cause
    explained: bool = False
    """Has the rank itself printed the whole story as a problem?"""
    console: str = ""
    """On what it has printed its traceback, or another rank the same one; empty where that is not known."""


@dataclass(frozen=True)
class CurrentRank:
    """The rank that this process is."""

    logs: Path
    rank: int
    save: str | None = None
    """Where it writes checkpoints."""


#: Set where this process is a rank under a supervisor.
current_rank: CurrentRank | None = None


# -- files -----------------------------------------------------------------------------------------------------------


def logs_folder(config: Config, attempt: str) -> Path:
    """Where one attempt's logs and records are."""
    return Path(config.logging.run_dir, "logs", attempt)


def new_attempt(config: Config) -> str:
    """The name of a new attempt, whose folder no other start has, not even one of this second."""
    while True:
        attempt = time.strftime("%Y%m%d-%H%M%S")
        try:
            logs_folder(config, attempt).mkdir(parents=True)
        except FileExistsError:
            time.sleep(0.1)
        else:
            return attempt


def log_file(logs: Path, rank: int) -> Path:
    """All that a rank printed."""
    return logs / f"rank-{rank}.log"


def _record_file(logs: Path, rank: int) -> Path:
    return logs / f"rank-{rank}.json"


def _reserved_files(logs: Path, rank: int) -> tuple[Path, Path]:
    """Where a record is written before it has its name, and where the rank itself leaves its exception."""
    return logs / f".rank-{rank}.end", logs / f".rank-{rank}.error"


def reserve_files(logs: Path, rank: int) -> None:
    """Remove what an earlier attempt of the same name left, and keep room for a record on a disk that fills up."""
    for path in (log_file(logs, rank), _record_file(logs, rank)):
        path.unlink(missing_ok=True)
    for path in _reserved_files(logs, rank):
        path.write_text(" " * RECORD_BYTES)


def release_files(logs: Path, rank: int) -> None:
    """Give that room back."""
    for path in _reserved_files(logs, rank):
        path.unlink(missing_ok=True)


def _write_in_place(path: Path, values: dict[str, Any]) -> None:
    """Into the blocks that the file has."""
    with contextlib.suppress(OSError), path.open("r+" if path.exists() else "w") as file:
        file.write(json.dumps(values))


def log_tail(logs: Path, rank: int, size: int = 8192) -> str:
    """The end of a rank's log, without what a progress bar has drawn over."""
    try:
        with log_file(logs, rank).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2] for line in lines if line.strip())


# -- in the rank -----------------------------------------------------------------------------------------------------


def record_exception(error: BaseException) -> None:
    """Leave word of an exception for the record that is written when this process has ended."""
    if current_rank is None:
        return
    first_line = str(error).strip().partition("\n")[0][: RECORD_BYTES // 4]
    explained = isinstance(error, Problems)
    reason = sentence(error.problems[0]) if isinstance(error, Problems) else f"{type(error).__name__}: {first_line}"
    if _is_full(current_rank.save):
        reason = f"the disk of {current_rank.save} is full; what was saved before is whole; {reason}"
    word = {"reason": reason + _location(error), "cause": cause_of(error), "explained": explained}
    _write_in_place(_reserved_files(current_rank.logs, current_rank.rank)[1], word)


def append_log(text: str) -> None:
    """Write in the log what another rank has printed on the console already."""
    if current_rank is not None:
        path = log_file(current_rank.logs, current_rank.rank)
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def cause_of(error: BaseException) -> Cause:
    """Is an exception this rank's own, or does it follow from another rank's failure?"""
    text = str(error) if isinstance(error, RuntimeError) else ""
    if any(words in text for words in CONNECTION_LOST):
        return Cause.LOST_CONNECTION
    return Cause.TIMED_OUT if is_timeout(text) else Cause.OWN_ERROR


def _is_full(folder: str | None) -> bool:
    """torch words a full disk in many ways, and none of them says that it is one."""
    with contextlib.suppress(OSError):
        return bool(folder) and shutil.disk_usage(folder or "").free < FULL_DISK_BYTES
    return False


def _location(error: BaseException) -> str:
    """Where in our code, or else where at all."""
    if isinstance(error, Problems):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    at = (ours or frames)[-1] if frames else None
    return f" ({at.filename}:{at.lineno})" if at else ""


# -- in its supervisor -----------------------------------------------------------------------------------------------


def record_failure(logs: Path, rank: int, exit_code: int, evidence: Evidence) -> None:
    """Write down how this host's rank failed. exit_code: negative for a signal."""
    tail = log_tail(logs, rank)
    cause = _cause_of_exit(exit_code, tail, evidence)
    word: dict[str, Any] = {"reason": describe_exit(exit_code, tail, evidence), "cause": cause}
    with contextlib.suppress(OSError, ValueError):
        if exit_code > 0:
            word |= json.loads(_reserved_files(logs, rank)[1].read_text())
    if "explained" in word and word["cause"] in (Cause.OWN_ERROR, Cause.TIMED_OUT):  # others have printed none
        word["console"] = _console()
    failure = RankFailure(rank, socket.gethostname(), time.time(), exit_code, **word)
    unfinished, _ = _reserved_files(logs, rank)
    _write_in_place(unfinished, asdict(failure))
    with contextlib.suppress(OSError):
        unfinished.rename(_record_file(logs, rank))


def _cause_of_exit(exit_code: int, tail: str, evidence: Evidence) -> Cause:
    """Of a rank that left no word."""
    if exit_code > 0:
        return Cause.OWN_ERROR
    if evidence.asked_to_stop:
        return Cause.ASKED_TO_STOP
    return Cause.TIMED_OUT if is_timeout(tail) else Cause.OWN_ERROR


def _console() -> str:
    """What this process's standard error is, by which another one on this host may recognise its own."""
    with contextlib.suppress(OSError):
        end = os.fstat(2)
        return f"{socket.gethostname()} {end.st_dev} {end.st_ino}"
    return ""


# -- in the launcher -------------------------------------------------------------------------------------------------


def any_failed(logs: Path) -> bool:
    """Has a rank been recorded?"""
    return next(logs.glob("rank-*.json"), None) is not None


def read_failures(logs: Path) -> list[RankFailure]:
    """All records, the root cause first."""
    failures = []
    for path in logs.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            record = json.loads(path.read_text())
            failures.append(RankFailure(**{**record, "cause": Cause(record["cause"])}))
    return sorted(failures, key=lambda failure: (failure.cause, failure.time))


def summarize(logs: Path) -> tuple[int, list[str]]:
    """The exit code of the rank that failed first, as a shell gives it, and sentences for the user; 0 if none has."""
    failures = read_failures(logs)
    if not failures:
        return 0, []
    code = failures[0].exit_code
    return (code if code > 0 else 128 - code), list(_sentences(failures, logs))


def _sentences(failures: list[RankFailure], logs: Path) -> Iterator[str]:
    first, *others = failures
    yield f"rank {first.rank} on {first.host} failed first: {first.reason}"
    yield _where_to_read(first, logs)
    for cause, group in groupby(others, lambda failure: failure.cause):
        ranks = ", ".join(str(rank) for rank in sorted(failure.rank for failure in group))
        yield f"then {FOLLOWED[cause]}: rank {ranks}"


def _where_to_read(failure: RankFailure, logs: Path) -> str:
    """The end of its log, or where it is."""
    log = log_file(logs, failure.rank)
    if failure.explained or (failure.console and failure.console == _console()):
        return f"what it said stands above, and in {log}"
    if tail := log_tail(logs, failure.rank):
        lines = "\n".join(f"  | {line}" for line in tail.split("\n")[-TAIL_LINES:])
        return f"the end of {log}:\n{lines}"
    return f"it had said nothing; {log} is empty" if log.exists() else f"its log is {log} on {failure.host}"


if __name__ == "__main__":  # after an `srun` of a script, which nobody supervises
    for folder in sys.argv[1:]:
        print("\n".join(summarize(Path(folder))[1]))
