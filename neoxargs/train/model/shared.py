"""What the layers of one model share apart from weights."""

from __future__ import annotations

from dataclasses import dataclass, field

from neoxargs.train.losses.added_losses import AddedLosses
from neoxargs.train.losses.means import Means
from neoxargs.train.ops.selective import Selective
from neoxargs.train.ops.tables import Tables


@dataclass(frozen=True)
class Shared:
    """One object per model."""

    tables: Tables = field(default_factory=Tables)
    """Masks and other tensors that are not weights."""
    recompute: Selective = field(default_factory=Selective)
    """Calls the functions whose outputs are recomputed with selective recomputation."""
    losses: AddedLosses = field(default_factory=AddedLosses)
    """The terms that layers add to the loss."""
    measures: Means = field(default_factory=Means)
    """What the loss measures besides its value."""
