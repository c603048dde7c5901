"""How far a run has come."""

from __future__ import annotations

from neoxargs.base.record import Record
from neoxargs.facts.batch_sizes import BatchSizes


class Position(Record):
    """Progress of a run."""

    iteration: int = 0
    samples: int = 0
    """Training samples consumed so far."""
    left_out: int = 0
    """Training samples that were left out so far, as `on_spike` says."""

    @property
    def next_sample(self) -> int:
        """The number of the next sample."""
        return self.samples + self.left_out

    def onwards(self, sizes: BatchSizes) -> BatchSizes:
        """Return the batch sizes of a run that goes on from here. sizes: of its parameters."""
        return sizes.resumed(self.iteration, self.samples) if self.iteration else sizes

    def last_sample(self, sizes: BatchSizes, iterations: int) -> int:
        """Return the number of the sample after the last one of a run of so many iterations that goes on from here."""
        return self.onwards(sizes).samples_after(max(self.iteration, iterations)) + self.left_out
