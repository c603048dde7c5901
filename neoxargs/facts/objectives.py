"""The losses of train.py, and what they compare."""

from __future__ import annotations

from collections.abc import Mapping

from neoxargs.base.record import Record
from neoxargs.config.config import Config


class Objective(Record):
    """What the loss of a value of `train_impl` needs."""

    pairs: bool = False
    """Each sample is a pair of a preferred and a rejected answer."""
    reference: bool = False
    """The log-probabilities of answers are compared with those of a reference model."""


#: `train_impl` -> an objective of train.py.
OBJECTIVES: Mapping[str, Objective] = {
    "normal": Objective(),
    "dpo": Objective(pairs=True, reference=True),
    "kto": Objective(reference=True),
    "rm": Objective(pairs=True),
}


def objective(train_impl: str) -> Objective:
    """Return what a value of `train_impl` needs: nothing if train.py does not support it."""
    return OBJECTIVES.get(train_impl, Objective())


def needs_reference_model(config: Config) -> bool:
    """Return whether the loss reads the log-probabilities of a reference model."""
    options = config.post_training
    return objective(options.train_impl).reference and not (options.train_impl == "dpo" and options.dpo_reference_free)
