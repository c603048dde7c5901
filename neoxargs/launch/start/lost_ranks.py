"""Ranks that left no record of their failure: their supervisor was killed, or their machine was lost.

A supervisor keeps files in the folder of the attempt while it runs (`failures.reserve_files`); those that are left over
say which supervisors have not ended by themselves.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from neoxargs.base.files import replace_text
from neoxargs.processes import failures, watch
from neoxargs.processes.failures import Cause, RankFailure
from neoxargs.processes.process_tree import HIDDEN, start_time


class Supervisor(NamedTuple):
    """The process that says that it is a rank: the parent of the rank's own process."""

    host: str
    pid: int
    started: str

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def ended(self) -> bool:
        """Whether the process has ended, which only its own host can know."""
        return self.here and start_time(self.pid) not in (self.started, HIDDEN)


def record_lost(logs: Path) -> None:
    """Write the records of an attempt's lost ranks, after its launcher has ended."""
    for rank, supervisor in supervisors(logs):
        # Of another host, only the file is known; after the launcher's end, it means that the supervisor is gone.
        if supervisor.ended or not supervisor.here:
            _record(logs, rank, supervisor)
    tidy(logs)


def tidy(logs: Path) -> None:
    """Remove what supervisors that were killed on this host have left in the folder of an attempt."""
    ended = [rank for rank, supervisor in supervisors(logs) if supervisor.ended]
    for rank in ended:
        failures.release_files(logs, rank)
    with contextlib.suppress(OSError):
        (logs / watch.LATE_FILE).unlink()


def wait_for_ranks(logs: Path, seconds: float) -> None:
    """Wait until all supervisors of an attempt have ended, also on other hosts if they share the folder."""
    deadline = time.monotonic() + seconds
    while any(not supervisor.ended for _, supervisor in supervisors(logs)) and time.monotonic() < deadline:
        time.sleep(0.2)


def _record(logs: Path, rank: int, supervisor: Supervisor) -> None:
    why = "was killed (SIGKILL)" if supervisor.ended else "was killed or the machine was lost"
    reason = f"the rank's supervisor (process {supervisor.pid}) {why}, so it is not known how the rank ended"
    when = 0.0
    with contextlib.suppress(OSError):
        when = failures.log_file(logs, rank).stat().st_mtime  # of its last output, or of its start if it has none
    failure = RankFailure(rank, supervisor.host, when, -signal.SIGKILL, reason, Cause.NO_RECORD)
    with contextlib.suppress(OSError):
        replace_text(failures.record_file(logs, rank), json.dumps(asdict(failure)))


def supervisors(logs: Path) -> Iterator[tuple[int, Supervisor]]:
    """Return the ranks whose supervisors have neither released their files nor written a record."""
    for path in logs.glob(".rank-*.end"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            yield int(path.name.split("-")[1].partition(".")[0]), Supervisor(**json.loads(path.read_text()))


def main(folders: list[Path]) -> int:
    """Print why the attempts of these folders failed; return 1 if a restart would be useless."""
    for folder in folders:
        record_lost(folder)
        print("\n".join(failures.summarize(folder)[1]))
    return int(not all(folder.is_dir() and failures.may_restart(folder) for folder in folders))


if __name__ == "__main__":  # called by the script of `--emit sbatch` after `srun`
    sys.exit(main([Path(folder) for folder in sys.argv[1:]]))
