"""What the positions of two tokens determine of attention, whichever kernel computes it."""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.train.ops.sparsity import Pattern
from neoxargs.train.process.mesh import ALONE, Axis


@dataclass(frozen=True)
class MaskRule:
    """The earlier tokens that each token attends to, and the bias on the scores, as far as positions determine them."""

    pattern: Pattern | None = None
    window: int = 0
    """Number of preceding tokens that each token attends to; 0 means all."""
    slopes: tuple[float, ...] = ()
    """ALiBi's slope of each head of this rank: a score is lowered by slope x distance."""
    axis: Axis = ALONE
    """The ranks among which the pattern's heads are divided."""
