"""The planned time of a training step, which the launcher hands to the ranks: they compare their steps with it."""

from __future__ import annotations

from collections.abc import Mapping

from neoxargs.base.record import Record


class Planned(Record):
    """A step with `train_batch_size` samples, without evaluation and saving."""

    device: str
    tokens: int
    """Tokens of the step, over all ranks."""
    error: float
    """Factor of the 80 % interval of the time."""
    parts: Mapping[str, float]
    """What the step consists of -> seconds: compute, messages that computation does not hide, bubble, optimizer, other
    losses. Those of no time are left out."""
    rates: str = ""
    """The file of learned rates that was used; empty without one."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def low(self) -> float:
        """The lower end of the 80 % interval, in seconds."""
        return self.seconds / self.error

    @property
    def high(self) -> float:
        return self.seconds * self.error
