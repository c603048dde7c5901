"""The loss of KTO (Ethayarajh et al. 2024, arXiv:2402.01306, equations 7 and 8), with GPT-NeoX's baseline."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from neoxargs.train.losses.cross_entropy import IGNORED, Loss, Readout
from neoxargs.train.losses.means import Means
from neoxargs.train.micro_batch import MicroBatch

#: What is reported of every step and evaluation, by GPT-NeoX's names. Log-probabilities are sums over an answer, in
#: nats: means over all answers, over the desirable (`pos`) and over the undesirable ones (`neg`). `kl` is the mean of
#: policy - reference over the tokens; `policy_rewards` that of beta x reward x (policy - reference) over the answers,
#: and `reward_acc` the share of the rated answers for which this is positive.
MEASURES = (
    "ref_logp", "policy_logp", "pos_ref_logp", "neg_ref_logp", "pos_policy_logp", "neg_policy_logp", "kl", "reward_acc",
    "policy_rewards",
)  # fmt: skip


@dataclass(frozen=True)
class KtoLoss(Loss):
    """weight x (1 - sigmoid(beta x reward x (log-ratio - baseline))), the mean over the answers.

    The log-ratio of an answer is the log-probability of its labels under the model minus that under the reference
    model. The weight is that of desirable answers (reward > 0) or of undesirable ones (reward < 0).

    Each half of the micro batch has as its baseline the mean of the positive log-ratios of the other half, which is no
    part of the gradient. So has GPT-NeoX; the paper estimates the divergence between the two models from mismatched
    prompts and answers, which takes a second pass.

    Without reference log-probabilities and rewards, it is the cross entropy.
    """

    beta: float = 0.1
    weights: tuple[float, float] = (1.0, 1.0)
    """Of desirable and of undesirable answers."""
    measures: Means = field(default_factory=Means)

    def __call__(self, readout: Readout, batch: MicroBatch) -> Tensor:
        """batch: of an even number of answers."""
        reference_B, rewards_B = batch.reference, batch.rewards
        if reference_B is None or rewards_B is None:
            return super().__call__(readout, batch)
        policy_B = self.log_probabilities(readout, batch.labels).sum(1)
        ratios_B = policy_B - reference_B
        ours_B = self.beta * rewards_B * (ratios_B - baseline(ratios_B))
        desirable, undesirable = self.weights
        weights_B = desirable * (rewards_B > 0) + undesirable * (rewards_B < 0)
        self._measure(policy_B.detach(), reference_B, rewards_B, (batch.labels != IGNORED).sum(1))
        return (weights_B * torch.sigmoid(-ours_B)).mean()

    def _measure(self, policy_B: Tensor, reference_B: Tensor, rewards_B: Tensor, tokens_B: Tensor) -> None:
        """tokens_B: number of trained tokens of each answer."""
        ratios_B, good_B, bad_B = policy_B - reference_B, rewards_B > 0, rewards_B < 0
        agreement_B = self.beta * rewards_B * ratios_B
        values = (
            (reference_B, None), (policy_B, None), (reference_B, good_B), (reference_B, bad_B), (policy_B, good_B),
            (policy_B, bad_B), (ratios_B / tokens_B.clamp(min=1), tokens_B),
            ((agreement_B > 0) * 1.0, good_B | bad_B), (agreement_B, None),
        )  # fmt: skip
        self.measures.add_samples(dict(zip(MEASURES, values, strict=True)))


def baseline(ratios_B: Tensor) -> Tensor:
    """Return for each log-ratio the mean of the positive ones of the other half of the micro batch."""
    first, second = ratios_B.detach().clamp(min=0).chunk(2)
    return torch.cat((second.mean().expand_as(first), first.mean().expand_as(second)))
