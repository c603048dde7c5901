"""Validation of checkpoints by a forward pass (`checkpoint_validation_with_forward_pass`).

A save records the loss of a fixed sample, and a load computes it again. This finds what checksums cannot: weights that
are read correctly but end up in the wrong place, for example on another layout, and code or libraries that compute
something else than when the checkpoint was written. GPT-NeoX compares the logits of the same sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.facts.trained import prompt_length
from neoxargs.train.engine.steps import Trainer
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.soft_prompt.prompt import make_room

#: Key of the recorded loss in the state of a checkpoint.
KEY = "validation"
#: Bits of a weight -> relative difference of the losses from which a loaded model counts as another one. Other layouts
#: and machines add numbers in another order.
TOLERANCE = {32: 1e-4, 16: 1e-2}


class ForwardPass:
    """Computes the loss of the fixed sample. Collective: every rank calls the methods."""

    def __init__(self, config: Config, trainer: Trainer, vocabulary: Vocabulary) -> None:
        self.config, self.trainer = config, trainer
        # The tokens 0, 1, 2 ..., which begin again after the end of the vocabulary.
        row = torch.arange(config.shape.seq_length + 1) % vocabulary.size
        rows = row.repeat(trainer.deepspeed.train_micro_batch_size_per_gpu(), 1)
        self.batch = make_room(MicroBatch(rows[:, :-1], rows[:, 1:]), prompt_length(config.soft_prompt))

    def measure(self) -> dict[str, Any]:
        """Return what a checkpoint records."""
        # Every replica computes the same sample, so the mean over replicas is its loss.
        batches = repeat(self.batch) if self.trainer.reads_data else None
        return {"loss": self.trainer.mean_loss(batches, 1), "seq_length": self.config.shape.seq_length}

    def compare(self, state: Mapping[str, Any], checkpoint: Path) -> str:
        """Return what was found, as a line of text; raise Problems if the loaded model has another loss."""
        recorded = state.get(KEY)
        if recorded is None or recorded["seq_length"] != self.config.shape.seq_length:
            why = "records no loss" if recorded is None else f"was saved with seq_length {recorded['seq_length']}"
            return f"not validated by a forward pass: the checkpoint {why}"
        now, then = self.measure()["loss"], recorded["loss"]
        # By the narrowest weight: the type in which the model computes.
        bits = min(weight.element_size() * 8 for weight in self.trainer.deepspeed.module.parameters())
        # Not `>`: a loss of NaN differs, too.
        if not abs(now - then) <= TOLERANCE[bits] * abs(then):
            what = f"load ({checkpoint}): on the fixed sample, the loss of the loaded model is {now:.6g}, "
            what += f"but that of the saved model was {then:.6g}"
            hint = "use the versions of deepy and torch that saved the checkpoint, or set "
            hint += "checkpoint_validation_with_forward_pass: false to load it anyway"
            raise Problems(Problem(what, hint=hint, id="checkpoint-loss-differs", about=("load",)))
        return f"validated by a forward pass: loss {now:.6g} ({then:.6g} when the checkpoint was saved)"
