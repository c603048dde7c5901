"""What the reference model of preference training thinks of every answer: its log-probability.

They never change during a run, so they are computed once, before the first step (preference/reference.py), and every
checkpoint stores them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: (documents, answers): in nats; NaN if not computed. A pair has two answers, the chosen and the rejected one.
Table = NDArray[np.float32]


class References:
    """A table for each token file, or for each pair of them."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def table(self, files: Sequence[Any], window: int) -> Table:
        """Return the table of open token files, made at the first call. window: most tokens of a document that count.

        It is recognised by the lengths of the documents and not by the paths, so that a run can be continued after its
        data was moved.
        """
        digest = hashlib.sha256()
        for file in files:
            digest.update(np.ascontiguousarray(file.sequence_lengths).tobytes())
        digest.update(str(window).encode())
        empty = np.full((len(files[0].sequence_lengths), len(files)), np.nan, np.float32)
        return self.tables.setdefault(digest.hexdigest(), empty)

    def ignore(self) -> None:
        """Let the reference model have no preference, for `dpo_reference_free`."""
        for table in self.tables.values():
            table[:] = 0

    def restore(self, tables: Mapping[str, Table]) -> None:
        """Take over what a checkpoint stores of these token files."""
        for digest, table in self.tables.items():
            if digest in tables:
                table[:] = tables[digest]
