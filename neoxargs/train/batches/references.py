"""What the reference model of preference training thinks of every answer: its log-probability.

They never change during a run, so they are computed once, before the first step (reference_model.py), and every
checkpoint stores them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neoxargs.files.token_files import index

#: (documents, answers): in nats; NaN if not computed. A pair has two answers, the chosen and the rejected one.
Table = NDArray[np.float32]


class References:
    """A table for each token file and its labels, or for each pair of them."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def table(self, answers: Sequence[Any]) -> Table:
        """Return the table of one or both `DocumentSamples` of a source, made at the first call.

        It is recognised by what the files contain and not by their paths, so that a run can be continued after its data
        was moved.
        """
        packing = answers[0].packing
        files = [file for answer in answers for file in (answer.file, answer.labels)]
        made_of = [None if file is None else _digest(file) for file in files]
        count = len(answers[0].file.sequence_lengths)
        empty = np.full((count, len(answers)), np.nan, np.float32)
        return self.tables.setdefault(json.dumps([packing.window, packing.masked, made_of]), empty)

    def ignore(self) -> None:
        """Let the reference model have no preference, for `dpo_reference_free`."""
        for table in self.tables.values():
            table[:] = 0

    def restore(self, tables: Mapping[str, Table]) -> None:
        """Take over what a checkpoint stores of these token files."""
        for name, table in self.tables.items():
            if name in tables:
                table[:] = tables[name]


def _digest(file: Any) -> str:
    """Return a hash of the lengths of all documents and of the first tokens. file: megatron-core's IndexedDataset."""
    lengths = np.ascontiguousarray(file.sequence_lengths).tobytes()
    return hashlib.sha256(lengths + index.digest(file.path_prefix).encode()).hexdigest()[:16]
