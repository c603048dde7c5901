"""What the reference model of preference training thinks of every pair: the log-probabilities of both answers.

They never change during a run, so they are computed once, before the first step (preference/reference.py), and every
checkpoint stores them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

#: (documents, 2): of the chosen and the rejected answer in nats; NaN if not computed.
Table = NDArray[np.float32]


class References:
    """A table for each pair of token files."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def table(self, digest: str, documents: int) -> Table:
        """Return the table of two token files, made at the first call. digest: identifies the contents of the files."""
        if digest not in self.tables:
            self.tables[digest] = np.full((documents, 2), np.nan, np.float32)
        return self.tables[digest]

    def ignore(self) -> None:
        """Let the reference model have no preference, for `dpo_reference_free`."""
        for table in self.tables.values():
            table[:] = 0

    def restore(self, tables: Mapping[str, Table]) -> None:
        """Take over what a checkpoint stores of these token files."""
        for digest, table in self.tables.items():
            if digest in tables:
                table[:] = tables[digest]
