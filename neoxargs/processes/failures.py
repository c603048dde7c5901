"""Records of failed ranks: each is written on the rank's host, and the launcher reports the root cause first.

    run_dir/logs/20261121-130512/    one attempt
        rank-0.log, rank-1.log       the complete output of each rank
        rank-1.json                  only for a failed rank: time and reason
        rank-1.stack                 only for a rank that made no progress: its Python stacks
        flight-1                     then, and if NCCL timed out: its collective operations (flight_records.py)

When one rank fails, the other ranks lose their connections to it shortly after and fail too. They are not the cause.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from itertools import groupby
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problems, sentence
from neoxargs.base.shipped import IMPORT_ROOT
from neoxargs.config.config import Config
from neoxargs.processes import flight_records, watch
from neoxargs.processes.exit_codes import Evidence, describe_exit, is_timeout
from neoxargs.processes.process_tree import start_time
from neoxargs.processes.watch import Watch

PACKAGE = str(IMPORT_ROOT / "neoxargs")
#: Lines at the end of a log that are shown.
TAIL_LINES = 15
#: Disk space that is reserved for a record, in bytes.
RECORD_BYTES = 4096
#: A disk with less free space, in bytes, counts as full: no file of a checkpoint fits.
FULL_DISK_BYTES = 1 << 16
#: Ids of problems that may be gone at the next start.
PASSING = ("rendezvous-failed",)
#: Frames of a stack that are shown.
FRAMES = 6
#: Phrases of gloo and NCCL for a lost connection to another rank, which reports its failure itself.
CONNECTION_LOST = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited", "heartbeat",
    "Connection was likely closed", "connectFullMesh failed", "communicator was aborted",
)  # fmt: skip


class Cause(IntEnum):
    """Why a rank ended, the most likely root cause first."""

    OWN_ERROR = 0
    TOLD = 1
    """Another rank failed, and told all others about it."""
    NO_RECORD = 2
    """The rank's supervisor was killed, which ends the rank too, or the machine failed."""
    TIMED_OUT = 3
    """A collective operation timed out, because another rank did not take part."""
    LOST_CONNECTION = 4
    """The connection to another rank was lost."""
    ASKED_TO_STOP = 5


class OfAnotherRank(Problems):
    """Problems of another rank, which this rank reports too."""


#: What is reported of the ranks that did not fail first.
CONSEQUENCES = {
    Cause.OWN_ERROR: "failed too",
    Cause.TOLD: "failed too",
    Cause.NO_RECORD: "ended without recording a reason",
    Cause.TIMED_OUT: "timed out in a collective operation",
    Cause.LOST_CONNECTION: "lost the connection to another rank",
    Cause.ASKED_TO_STOP: "stopped on request",
}


@dataclass(frozen=True)
class RankFailure:
    """The record of a failed rank."""

    rank: int
    host: str
    time: float
    exit_code: int
    """The exit code; -N if signal N ended the rank."""
    reason: str
    cause: Cause
    explained: bool = False
    """Whether the rank reported the failure as a problem rather than a traceback."""
    problem: str = ""
    """The id of the problem that the rank reported; empty if it reported none."""
    console: str = ""
    """Identifies the console that shows the rank's traceback, or the same one from another rank; empty if unknown."""


@dataclass(frozen=True)
class CurrentRank:
    """The rank that runs in this process."""

    logs: Path
    rank: int
    save: str | None = None
    """The folder for checkpoints."""
    watch: Watch | None = None


#: Set if this process is a rank under a supervisor.
current_rank: CurrentRank | None = None


# -- files -----------------------------------------------------------------------------------------------------------


def logs_folder(config: Config, attempt: str) -> Path:
    """Return the folder for the logs and records of one attempt."""
    return Path(config.logging.run_dir, "logs", attempt)


def new_attempt(config: Config) -> str:
    """Create the folder of a new attempt and return its name, which is unique even within one second.

    Raises OSError if the folder cannot be created.
    """
    while True:
        attempt = time.strftime("%Y%m%d-%H%M%S")
        try:
            logs_folder(config, attempt).mkdir(parents=True)
        except FileExistsError:
            time.sleep(0.1)
        else:
            return attempt


def log_file(logs: Path, rank: int) -> Path:
    """Return the file with the complete output of a rank."""
    return logs / f"rank-{rank}.log"


def record_file(logs: Path, rank: int) -> Path:
    return logs / f"rank-{rank}.json"


def _reserved_files(logs: Path, rank: int) -> tuple[Path, Path]:
    """Return the file for a record before it is renamed, and the file for the rank's exception."""
    return logs / f".rank-{rank}.end", logs / f".rank-{rank}.error"


def reserve_files(logs: Path, rank: int) -> None:
    """Remove the files of an earlier attempt with this name, and reserve space for a record in case the disk fills."""
    for path in (log_file(logs, rank), record_file(logs, rank), flight_records.record_file(logs, rank)):
        path.unlink(missing_ok=True)
    supervisor = {"host": socket.gethostname(), "pid": os.getpid(), "started": start_time(os.getpid())}
    for path, values in zip(_reserved_files(logs, rank), (supervisor, {}), strict=True):
        path.write_text(json.dumps(values).ljust(RECORD_BYTES))


def release_files(logs: Path, rank: int) -> None:
    """Release the reserved space, and remove the file for stacks if there are none."""
    for path in _reserved_files(logs, rank):
        with contextlib.suppress(OSError):  # a folder that has become read-only
            path.unlink()
    stacks = watch.stack_file(logs, rank)
    with contextlib.suppress(OSError):
        if not stacks.stat().st_size:
            stacks.unlink()


def _write_in_place(path: Path, values: dict[str, Any]) -> None:
    """Overwrite a file, which needs no new disk space; create it and its folder if they were removed."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Padded, so that nothing of the reserved text remains behind it.
        with path.open("r+" if path.exists() else "w") as file:
            file.write(json.dumps(values).ljust(RECORD_BYTES))


def log_tail(logs: Path, rank: int, size: int = 8192) -> str:
    """Return the end of a rank's log, without what a progress bar has overwritten. size: in bytes."""
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
    """Write an exception to the file that the supervisor reads after this process has ended."""
    if current_rank is None:
        return
    problem = error.problems[0] if isinstance(error, Problems) else None
    first_line = str(error).strip().partition("\n")[0][: RECORD_BYTES // 4]
    reason = sentence(problem) if problem else f"{type(error).__name__}: {first_line}{_location(error)}"
    if _is_full(current_rank.save):
        reason = f"no space left on the disk that holds {current_rank.save}; earlier checkpoints are intact; {reason}"
    id_ = problem.id if problem else ""
    record = {"reason": reason, "cause": cause_of(error), "explained": problem is not None, "problem": id_}
    _write_in_place(_reserved_files(current_rank.logs, current_rank.rank)[1], record)


def append_log(text: str) -> None:
    """Write to this rank's log only, because another rank has printed the same text on the console."""
    if current_rank is not None:
        path = log_file(current_rank.logs, current_rank.rank)
        with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def cause_of(error: BaseException) -> Cause:
    """Return whether an exception is this rank's own or a consequence of another rank's failure."""
    if isinstance(error, OfAnotherRank):
        return Cause.TOLD
    text = str(error) if isinstance(error, RuntimeError) else ""
    if any(words in text for words in CONNECTION_LOST):
        return Cause.LOST_CONNECTION
    return Cause.TIMED_OUT if is_timeout(text) else Cause.OWN_ERROR


def _is_full(folder: str | None) -> bool:
    """Return whether the disk of a folder is full, which torch's various error messages do not say."""
    with contextlib.suppress(OSError):
        return bool(folder) and shutil.disk_usage(folder or "").free < FULL_DISK_BYTES
    return False


def _location(error: BaseException) -> str:
    """Return the innermost line of this package in a traceback, or else the innermost line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    frame = (own or frames)[-1] if frames else None
    return f" ({frame.filename}:{frame.lineno})" if frame else ""


# -- in its supervisor -----------------------------------------------------------------------------------------------


def record_failure(logs: Path, rank: int, exit_code: int, evidence: Evidence) -> None:
    """Write the record of a failed rank. exit_code: negative for a signal."""
    tail = log_tail(logs, rank)
    cause = _cause_of_exit(exit_code, tail, evidence, read_stack(logs, rank))
    record: dict[str, Any] = {"reason": describe_exit(exit_code, tail, evidence), "cause": cause}
    with contextlib.suppress(OSError, ValueError):
        if exit_code > 0:
            record |= json.loads(_reserved_files(logs, rank)[1].read_text())
    # Only these print a traceback.
    if "explained" in record and record["cause"] in (Cause.OWN_ERROR, Cause.TOLD, Cause.TIMED_OUT):
        record["console"] = _console()
    if evidence.lock_lost:  # a problem, after which the run is not restarted
        exit_code, record["explained"], record["problem"] = 1, True, "run-folder-in-use"
    failure = RankFailure(rank, socket.gethostname(), time.time(), exit_code, **record)
    unfinished, _ = _reserved_files(logs, rank)
    _write_in_place(unfinished, asdict(failure))
    with contextlib.suppress(OSError):
        # The launcher looks for this name twice a second, and must not find half a record.
        unfinished.rename(record_file(logs, rank))


def read_stack(logs: Path, rank: int) -> list[str]:
    """Return the main thread's frames of a rank that made no progress, innermost first."""
    try:
        return watch.main_thread(watch.stack_file(logs, rank).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []


def _cause_of_exit(exit_code: int, tail: str, evidence: Evidence, stack: list[str]) -> Cause:
    """Return the cause for a rank that recorded no exception."""
    if exit_code > 0:
        return Cause.OWN_ERROR
    if evidence.killed_because:
        return Cause.TIMED_OUT if watch.waits_for_others(stack) else Cause.OWN_ERROR
    if evidence.asked_to_stop:
        return Cause.ASKED_TO_STOP
    return Cause.TIMED_OUT if is_timeout(tail) else Cause.OWN_ERROR


def _console() -> str:
    """Identify this process's standard error, to find out whether two processes write to the same console."""
    with contextlib.suppress(OSError):
        end = os.fstat(2)
        return f"{socket.gethostname()} {end.st_dev} {end.st_ino}"
    return ""


# -- in the launcher -------------------------------------------------------------------------------------------------


def any_failed(logs: Path) -> bool:
    """Return whether there is a record of a failed rank."""
    return next(logs.glob("rank-*.json"), None) is not None


def read_failures(logs: Path) -> list[RankFailure]:
    """Return all records, the root cause first."""
    failures = []
    for path in logs.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            record = json.loads(path.read_text())
            failures.append(RankFailure(**{**record, "cause": Cause(record["cause"])}))
    # The cause before the time: the clocks of hosts can differ, and a lost connection is never the root.
    return sorted(failures, key=lambda failure: (failure.cause, failure.time))


def may_restart(logs: Path | None) -> bool:
    """Return whether the same run may succeed where this one failed: not if a rank explained why it cannot run."""
    first = read_failures(logs)[:1] if logs else []
    return not any(failure.explained and failure.problem not in PASSING for failure in first)


def summarize(logs: Path) -> tuple[int, list[str]]:
    """Return the exit code of the rank that failed first, as a shell shows it, and a report; 0 if no rank failed."""
    failures = read_failures(logs)
    if not failures:
        return 0, []
    code = failures[0].exit_code
    return (code if code > 0 else 128 - code), list(_sentences(failures, logs))


def _sentences(failures: list[RankFailure], logs: Path) -> Iterator[str]:
    first, *others = failures
    yield f"rank {first.rank} on {first.host} failed first: {first.reason}"
    yield from _stacks(failures, logs)
    yield from flight_records.sentences(logs)
    yield _log_excerpt(first, logs)
    for cause, group in groupby(others, lambda failure: failure.cause):
        yield f"then {flight_records.ranks_of(failure.rank for failure in group)} {CONSEQUENCES[cause]}"


def _stacks(failures: list[RankFailure], logs: Path) -> Iterator[str]:
    """Describe where ranks that made no progress were, equal stacks once."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for failure in failures:
        if stack := read_stack(logs, failure.rank):
            ranks.setdefault(tuple(stack[:FRAMES]), []).append(failure.rank)
    for frames, found in ranks.items():
        lines = "\n".join(f"  | {frame}" for frame in frames)
        yield f"the Python stack of {flight_records.ranks_of(found)}, innermost call first:\n{lines}"


def _log_excerpt(failure: RankFailure, logs: Path) -> str:
    """Return the end of a rank's log, or where to find it."""
    log = log_file(logs, failure.rank)
    if failure.host == socket.gethostname() and not log.exists():  # of a user's script
        return "the rank's error message is above"
    # A traceback that this console already shows is not repeated.
    if failure.explained or (failure.console and failure.console == _console()):
        return f"the rank's error message is above and in {log}"
    if tail := log_tail(logs, failure.rank):
        lines = "\n".join(f"  | {line}" for line in tail.split("\n")[-TAIL_LINES:])
        return f"the end of {log}:\n{lines}"
    return f"the rank printed nothing: {log} is empty" if log.exists() else f"the rank's log is {log} on {failure.host}"
