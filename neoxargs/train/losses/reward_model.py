"""Reward models: a head with one output in place of the output layer, and a loss that compares two answers.

The reward of an answer is the head's output at its last trained label: the position before the token of that label. The
files of `deepy data --chat --for-rm` have one such label, so that the reward is read at the first end token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.train.losses.cross_entropy import IGNORED, Loss, Readout
from neoxargs.train.losses.means import Means
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.parallel.communicate import gather_positions, gather_replicated

#: What is reported of every step and evaluation, by GPT-NeoX's names: means over the pairs of the two rewards and of
#: their difference, and the share of the pairs in which it is positive.
MEASURES = ("pos_values", "neg_values", "margin", "accuracy")


@dataclass(frozen=True)
class RewardLoss(Loss):
    """-log sigmoid(reward of the chosen - reward of the rejected answer) + z x (sum of both squared), the mean over the
    pairs (Bradley-Terry).

    Every tensor parallel rank has the full head and computes the same. A micro batch without reference
    log-probabilities has no pairs; for these, it is the mean reward.
    """

    measures: Means = field(default_factory=Means)

    def __call__(self, readout: Readout, batch: MicroBatch) -> Tensor:
        rewards_B = self.rewards(readout, batch.labels)
        if batch.reference is None:
            return rewards_B.mean()
        chosen_P, rejected_P = rewards_B.chunk(2)
        margin_P = chosen_P - rejected_P
        values = chosen_P, rejected_P, margin_P, (chosen_P > rejected_P) * 1.0
        self.measures.add_samples({name: (value, None) for name, value in zip(MEASURES, values, strict=True)})
        penalty = self.z * (chosen_P.square() + rejected_P.square()).mean()
        return penalty - F.logsigmoid(margin_P).mean()

    def rewards(self, readout: Readout, labels_BS: Tensor) -> Tensor:
        """Return the reward of each answer, (B), in fp32. readout: its weight is (1, D)."""
        hidden_BSD = gather_positions(gather_replicated(readout.hidden, self.sequence), self.positions)
        positions_S = torch.arange(labels_BS.shape[1], device=labels_BS.device)
        last_B = (positions_S * (labels_BS != IGNORED)).amax(1)
        read_BD = hidden_BSD[torch.arange(len(last_B), device=last_B.device), last_B]
        return F.linear(read_BD.float(), readout.weight.float()).squeeze(-1)
