"""Perplexity per character of the evaluated text (`char_level_ppl`), to compare models with different tokenizers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from neoxargs.data.tokenizer import Tokenizer
from neoxargs.files import metrics
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process.mesh import Mesh


class CharacterCounter:
    """Counts tokens and characters of the labels that are evaluated."""

    def __init__(self, tokenizer: Tokenizer, mesh: Mesh, device: torch.device) -> None:
        self.tokenizer, self.device = tokenizer, device
        #: Whether this rank counts: one rank of those that read the same samples.
        self.counts_here = mesh.tensor.rank == 0 and mesh.pipe.rank == mesh.pipe.size - 1
        # fp64 counts exactly far beyond the 2^24 of fp32.
        self.sums = torch.zeros(2, dtype=torch.float64)

    def counted(self, batches: Iterator[MicroBatch] | None) -> Iterator[MicroBatch] | None:
        """Return the micro batches, which are counted when they are read."""
        self.sums.zero_()
        return batches if batches is None or not self.counts_here else self._counted(batches)

    def _counted(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        for batch in batches:
            for row in batch.labels:
                ids = row[row != IGNORED].tolist()
                self.sums += torch.tensor([len(ids), len(self.tokenizer.detokenize(ids))], dtype=torch.float64)
            yield batch

    def perplexity(self, loss: float) -> float:
        """Return the perplexity per character. loss: in nats per token. Collective."""
        sums = self.sums.to(self.device)
        # Over all ranks; those that do not count add 0.
        dist.all_reduce(sums)
        tokens, characters = sums.tolist()
        return metrics.perplexity(loss * tokens / max(characters, 1.0))
