"""The reference log-probabilities of preference training in a checkpoint, and the model that computed them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from neoxargs.files.checkpoints.folder import Base
from neoxargs.train.batches.references import Table
from neoxargs.train.checkpoint.rank_files import RankFiles
from neoxargs.train.deepspeed import checkpoint_io

FILE = "reference.pt"


class Recorded(NamedTuple):
    """What a checkpoint records."""

    tables: Mapping[str, Table]
    initial: Base | None
    """As of `Saver`."""


def write(recorded: Recorded, files: RankFiles) -> None:
    """Write what a run records."""
    tables = {name: torch.from_numpy(table) for name, table in recorded.tables.items()}
    folder, digest = recorded.initial or (None, "")
    files.save({"tables": tables, "initial": str(folder or ""), "digest": digest}, files.part / FILE)


def read(checkpoint: Path) -> Recorded:
    """Return what a checkpoint records; nothing if it has no such file. Raises Problems if the file is damaged."""
    file = checkpoint / FILE
    if not file.is_file():
        return Recorded({}, None)
    values = checkpoint_io.read(file)
    # Earlier versions recorded no digest.
    initial = Base(Path(values["initial"]), values.get("digest", "")) if values["initial"] else None
    return Recorded({name: table.numpy() for name, table in values["tables"].items()}, initial)
