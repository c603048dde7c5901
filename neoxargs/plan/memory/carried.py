"""What recurrent layers pass from a chunk of a sample to the next one (train/parallel/carried.py)."""

from __future__ import annotations

from typing import NamedTuple

from neoxargs.plan.memory.activation_sizes import ActivationSizes


class Carried(NamedTuple):
    """Bytes of one chunk of a sample."""

    inputs: int
    """The last inputs of a convolution or token shift."""
    times: int
    """How often a layer has those."""
    state: int
    decay: int
    """The factors on the state before a chunk that remain after it."""

    def stored(self, sizes: ActivationSizes) -> int:
        """Return what a layer stores to send gradients back: the decays of all chunks, and its own with states."""
        return sizes.rows * (sizes.context * self.decay + self.decay + self.state)
