"""The loss of direct preference optimisation (DPO, Rafailov et al. 2023, arXiv:2305.18290, equation 7)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from neoxargs.train.losses.cross_entropy import Loss, Readout
from neoxargs.train.losses.means import Means
from neoxargs.train.micro_batch import MicroBatch

#: What is reported of every step and evaluation, by GPT-NeoX's names: means over the pairs. Log-probabilities are sums
#: over an answer, in nats; rewards are beta x (policy - reference). `chosen_pos` and `chosen_neg` are the policy's.
MEASURES = (
    "ref_pos", "ref_neg", "chosen_pos", "chosen_neg", "chosen_rewards", "rejected_rewards", "margins", "reward_acc",
)  # fmt: skip


@dataclass(frozen=True)
class DpoLoss(Loss):
    """-log sigmoid(beta x difference of the log-ratios of chosen and rejected answer), the mean over the pairs.

    The log-ratio of an answer is the log-probability of its labels under the model minus that under the reference
    model. A micro batch without reference log-probabilities has no pairs; for these, it is the cross entropy.
    """

    beta: float = 0.1
    measures: Means = field(default_factory=Means)

    def __call__(self, readout: Readout, batch: MicroBatch) -> Tensor:
        if batch.reference is None:
            return super().__call__(readout, batch)
        reference_B, policy_B = batch.reference, self.log_probabilities(readout, batch.labels).sum(1)
        chosen_P, rejected_P = (self.beta * (policy_B - reference_B)).chunk(2)
        margin_P = chosen_P - rejected_P
        rewards = chosen_P, rejected_P, margin_P, (chosen_P > rejected_P) * 1.0
        values = *reference_B.chunk(2), *policy_B.chunk(2), *rewards
        self.measures.add_samples({name: (value, None) for name, value in zip(MEASURES, values, strict=True)})
        return self.of_margins(margin_P)

    def of_margins(self, margin_P: Tensor) -> Tensor:
        """Return the loss of the pairs: a scalar. margin_P: beta x difference of the log-ratios."""
        return -F.logsigmoid(margin_P).mean()
