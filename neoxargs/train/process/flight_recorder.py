"""torch's flight recorder, which keeps the last 2,000 collective operations of a rank, and when it is written.

torch itself writes it when an operation of NCCL times out (gpu_environment.py). A rank that makes no progress is found
earlier, by its supervisor: a thread of each rank then writes the same file.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from neoxargs.processes.failures import CurrentRank
from neoxargs.processes.flight_records import record_file

#: Seconds between two looks at whether the record is wanted.
INTERVAL = 0.5


def write_when_asked(rank: CurrentRank | None) -> None:
    """Start the thread, in a rank with a supervisor."""
    if rank is None or rank.watch is None:
        return
    watch, file = rank.watch, record_file(rank.logs, rank.rank)

    def write() -> None:
        while not watch.record_wanted:
            time.sleep(INTERVAL)
        with contextlib.suppress(OSError):
            file.write_bytes(record())

    threading.Thread(target=write, name="flight recorder", daemon=True).start()


def record() -> bytes:
    """Return what was recorded of this process, as torch pickles it."""
    from torch._C import _distributed_c10d

    # Only builds with NCCL have the first one, which records NCCL's operations; the other one records gloo's.
    found: Any = _distributed_c10d  # neither has a type
    dump = getattr(found, "_dump_nccl_trace", None) or found._dump_fr_trace
    written: bytes = dump()
    return written
