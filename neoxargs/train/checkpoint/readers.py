"""Which ranks see the same folder of a checkpoint, and divide its files among them when all of them are read.

Hosts that see the folder on a shared disk divide the files among all their ranks; a host with a folder of its own reads
it alone.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

import torch.distributed

from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.train.process.collectives import of_all_ranks


class Readers(NamedTuple):
    """This rank's share of a folder: number `number` of `ranks`."""

    number: int
    ranks: int
    apart: bool
    """Whether some ranks see another folder."""

    @classmethod
    def of(cls, checkpoint: Path) -> Readers:
        """Collective."""
        folder = identity(checkpoint / checkpoint_folder.FILES) or (socket.gethostname(),)
        folders = of_all_ranks(folder)
        same = [rank for rank, other in enumerate(folders) if other == folder]
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return cls(same.index(rank), len(same), len(set(folders)) > 1)


def identity(path: Path) -> tuple[object, ...] | None:
    """Return what is equal on two hosts only if they see the same file or folder; None if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    # On a shared disk, inode, time and size are those that the server reports.
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
