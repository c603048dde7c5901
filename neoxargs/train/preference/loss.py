"""The loss of direct preference optimisation (DPO, Rafailov et al. 2023, arXiv:2305.18290, equation 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from neoxargs.resolve.config import Config
from neoxargs.train.kernels.added_losses import AddedLosses, Term
from neoxargs.train.kernels.cross_entropy import Loss, Readout, Targets, Vocabulary
from neoxargs.train.parallel.make import Make

#: What is reported of every step, under GPT-NeoX's names. Log-probabilities are sums over an answer, in nats, means
#: over the pairs; rewards are beta x (policy - reference). `chosen_pos` is the policy's, not only the chosen answer's.
SERIES = (
    "train/ref_pos", "train/ref_neg", "train/chosen_pos", "train/chosen_neg", "train/chosen_rewards",
    "train/rejected_rewards", "train/margins", "train/reward_acc",
)  # fmt: skip


@dataclass(frozen=True)
class PreferenceLoss(Loss):
    """-log sigmoid(beta x difference of the log-ratios of chosen and rejected answer), the mean over the pairs.

    The log-ratio of an answer is the log-probability of its labels under the model minus that under the reference
    model. Targets without reference log-probabilities are no pairs; for these, it is the cross entropy.
    """

    beta: float = 0.1
    reports: AddedLosses = field(default_factory=AddedLosses)

    def __call__(self, readout: Readout, targets: Targets) -> Tensor:
        """readout and labels: first all chosen answers, then the rejected ones. targets: labels (2 x pairs, seq), and
        reference log-probabilities (2 x pairs)."""
        if isinstance(targets, Tensor):
            return super().__call__(readout, targets)
        labels, reference = targets
        policy = self.log_probabilities(readout, labels).sum(1)
        ratios = self.beta * (policy - reference)
        chosen, rejected = ratios.chunk(2)
        loss = -F.logsigmoid(chosen - rejected).mean()
        values = (*reference.chunk(2), *policy.chunk(2), chosen, rejected, chosen - rejected, (chosen > rejected) * 1.0)
        terms = {name: Term(value.detach().mean(), 0.0) for name, value in zip(SERIES, values, strict=True)}
        return self.reports.add(loss, terms)


def loss_of(config: Config, vocabulary: Vocabulary, make: Make) -> Loss:
    """Return the loss that the configuration trains with, for the ranks of `make`."""
    plain, options = Loss.of(config, vocabulary, make), config.post_training
    if options.train_impl != "dpo":
        return plain
    fields = {**vars(plain), "half": not options.dpo_fp32}
    return PreferenceLoss(**fields, beta=options.dpo_beta, reports=make.losses)


def series(config: Config) -> Mapping[str, int]:
    """Return the names of what the loss reports; each comes from one place of the model."""
    return dict.fromkeys(SERIES, 1) if config.post_training.train_impl == "dpo" else {}
