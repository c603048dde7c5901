"""Rated answers, for KTO: sample i is a document with its reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from neoxargs.files.token_files.rewards import Rewards
from neoxargs.train.batches.references import References, Table
from neoxargs.train.batches.samples.whole_documents import DocumentSamples, Packing


@dataclass(frozen=True)
class Rated:
    """The answers of one pass over a token file, one per sample. Each begins with its prompt."""

    answers: DocumentSamples
    rewards: Rewards
    references: Table

    @classmethod
    def of(cls, answers: DocumentSamples, rewards: Rewards, references: References) -> Rated:
        """Return the answers, with the table of their reference log-probabilities. rewards: of all documents."""
        return cls(answers, rewards, references.table((answers,)))

    @property
    def packing(self) -> Packing:
        return self.answers.packing

    @property
    def left_out(self) -> tuple[int, int]:
        return self.answers.left_out

    def __len__(self) -> int:
        return len(self.answers)

    def document(self, index: int) -> int:
        """Return the number of a sample's document in its file."""
        return self.answers.first_document(index)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        document = self.document(index)
        numbers = {"reference": self.references[document, 0], "rewards": self.rewards[document]}
        return {**self.answers[index], **{name: torch.tensor(float(number)) for name, number in numbers.items()}}
