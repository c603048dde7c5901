"""megatron-core's token file, with every token id compared with the rows of the embedding before a sample has it.

An id without a row ends in an `IndexError` on a CPU and in an assertion of a kernel on a GPU; with tensor parallelism,
it trains on zeros. This module imports megatron-core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDataset
from numpy.typing import NDArray

from neoxargs.base.problems import Problems
from neoxargs.files.token_files.checksums import beyond
from neoxargs.files.token_files.index import IGNORED


class CheckedFile(IndexedDataset):  # type: ignore[misc]
    """An open token file. rows: of the embedding. is_label: whether it has labels, of which -100 is valid, too."""

    def __init__(self, prefix: str, mmap: bool, rows: int, is_label: bool) -> None:
        self.rows, self.is_label = rows, is_label
        super().__init__(prefix, mmap=mmap)

    def __getstate__(self) -> Any:
        return self.rows, self.is_label, super().__getstate__()

    def __setstate__(self, state: Any) -> None:
        self.rows, self.is_label, own = state
        super().__setstate__(own)

    def initialize(self, *args: Any, **named: Any) -> None:
        super().initialize(*args, **named)
        count, index = len(self.index.sequence_lengths), self.index
        if len(index.document_indices) == 1:
            # GPT-NeoX's merge_datasets.py records no ends of documents, which nothing here reads.
            index.document_indices = np.arange(count + 1)

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Return tokens of a document. Raises Problems if one of them has no row in the embedding."""
        ids: NDArray[Any] = super().get(idx, offset, length)
        known = ids[ids != IGNORED] if self.is_label else ids
        low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
        if low < 0 or high >= self.rows:
            raise Problems(beyond(self.path_prefix, high if high >= self.rows else low, int(idx), self.rows))
        return ids
