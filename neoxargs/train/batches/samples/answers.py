"""Answers that preference training compares with a reference model: pairs of them, or rated ones.

Sample i of pairs has a chosen and a rejected answer, document i of two token files; of rated answers (KTO), it is a
document with its reward. Each answer begins with its prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from neoxargs.files.token_files.rewards import Rewards
from neoxargs.train.batches.references import Table
from neoxargs.train.batches.samples.whole_documents import DocumentSamples, Packing


@dataclass(frozen=True)
class Answers:
    """The answers of one pass over a token file, one per sample."""

    answers: DocumentSamples
    """Of pairs, the chosen ones."""
    references: Table
    """Their reference log-probabilities."""

    @property
    def packing(self) -> Packing:
        return self.answers.packing

    @property
    def left_out(self) -> tuple[int, int]:
        return self.answers.left_out

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        raise NotImplementedError

    def document(self, index: int) -> int:
        """Return the number of a sample's document in its file."""
        return self.answers.first_document(index)


@dataclass(frozen=True)
class Pairs(Answers):
    rejected: DocumentSamples
    """The same documents of the other token file."""

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        answers = self.answers[index], self.rejected[index]
        sample = {name: torch.stack([answer[name] for answer in answers]) for name in answers[0]}
        return {**sample, "reference": torch.from_numpy(self.references[self.document(index)].copy())}


@dataclass(frozen=True)
class Rated(Answers):
    rewards: Rewards
    """Of all documents."""

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        document = self.document(index)
        numbers = {"reference": self.references[document, 0], "rewards": self.rewards[document]}
        return {**self.answers[index], **{name: torch.tensor(float(number)) for name, number in numbers.items()}}
