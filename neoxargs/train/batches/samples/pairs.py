"""Preference pairs: sample i has a chosen and a rejected answer, document i of two token files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from neoxargs.train.batches.references import References, Table
from neoxargs.train.batches.samples.whole_documents import DocumentSamples, Packing


@dataclass(frozen=True)
class Pairs:
    """The pairs of one pass over two token files. Both answers begin with the prompt."""

    chosen: DocumentSamples
    rejected: DocumentSamples
    """The same documents of the other token file."""
    references: Table

    @classmethod
    def of(cls, chosen: DocumentSamples, rejected: DocumentSamples, references: References) -> Pairs:
        """Return the pairs, with the table of their reference log-probabilities."""
        return cls(chosen, rejected, references.table((chosen, rejected)))

    @property
    def packing(self) -> Packing:
        return self.chosen.packing

    @property
    def left_out(self) -> tuple[int, int]:
        return self.chosen.left_out

    def __len__(self) -> int:
        return len(self.chosen)

    def document(self, index: int) -> int:
        """Return the number of a sample's documents in their files."""
        return self.chosen.first_document(index)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        answers = self.chosen[index], self.rejected[index]
        sample = {name: torch.stack([answer[name] for answer in answers]) for name in answers[0]}
        return {**sample, "reference": torch.from_numpy(self.references[self.document(index)].copy())}
