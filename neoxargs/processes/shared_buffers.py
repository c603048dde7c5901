"""Remove the shared memory that DeepSpeed's all-reduce between CPUs leaves in /dev/shm, tens of MB for each rank.

train.py does not use that all-reduce, but other scripts do, and DeepSpeed never removes its files.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

FOLDER = Path("/dev/shm")


def remove(port: int) -> None:
    """Remove the files of this user's run with this MASTER_PORT, after all its ranks on this machine have ended."""
    ours = re.compile(rf"deepspeed_allreduce_buffer_{os.getuid()}_[^_]*_{port}_\d+")  # address, port, rank
    with contextlib.suppress(OSError):
        for file in FOLDER.iterdir():
            if ours.fullmatch(file.name):
                file.unlink()
