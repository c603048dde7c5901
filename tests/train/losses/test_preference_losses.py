"""The losses of DPO and KTO: their formulas, their gradients, and what they report."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neoxargs.train.losses import dpo, kto
from neoxargs.train.losses.cross_entropy import IGNORED, Loss, Readout, Vocabulary
from neoxargs.train.losses.dpo import DpoLoss
from neoxargs.train.losses.kto import KtoLoss
from neoxargs.train.losses.means import Means
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process.mesh import Mesh

VOCABULARY, CPU = Vocabulary(11, 16), torch.device("cpu")


def answers() -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weight and labels of six answers, of which the first two labels do not count."""
    torch.manual_seed(0)
    hidden = torch.randn(6, 5, 8, requires_grad=True)
    weight = torch.randn(16, 8, requires_grad=True)
    labels = torch.randint(0, 11, (6, 5))
    labels[:, :2] = IGNORED
    return hidden, weight, labels


def log_ratios(hidden: Tensor, weight: Tensor, labels: Tensor, reference: Tensor) -> Tensor:
    logs = F.linear(hidden, weight[:11]).log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return logs.masked_fill(labels == IGNORED, 0).sum(1) - reference


def assert_same(loss: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs))


def test_dpo() -> None:
    hidden, weight, labels = answers()
    reference, measures, beta = torch.randn(6), Means(dpo.MEASURES), 0.7
    batch = MicroBatch(labels, labels, reference=reference)
    loss = DpoLoss(VOCABULARY, beta=beta, measures=measures)(Readout(hidden, weight), batch)
    ratios = log_ratios(hidden, weight, labels, reference)
    margins = beta * (ratios[:3] - ratios[3:])
    assert_same(loss, -torch.log(torch.sigmoid(margins)).mean(), [hidden, weight])
    means = measures.over_ranks(Mesh(), CPU)
    assert list(means) == list(dpo.MEASURES)
    assert means["margins"] == pytest.approx(float(margins.detach().mean()), rel=1e-5)
    assert means["reward_acc"] == pytest.approx(float((margins > 0).float().mean()))
    assert means["ref_neg"] == pytest.approx(float(reference[3:].mean()), rel=1e-5)


def test_kto() -> None:
    """With rewards of any size, an answer that nobody rated, and answers of different lengths."""
    hidden, weight, labels = answers()
    labels[4, 3:] = IGNORED
    reference, rewards = -torch.rand(6) * 20, torch.tensor([1.0, -1.0, 0.25, -2.0, 3.0, 0.0])
    measures, beta, weights = Means(kto.MEASURES), 0.3, (1.5, 0.5)
    batch = MicroBatch(labels, labels, reference=reference, rewards=rewards)
    loss = KtoLoss(VOCABULARY, beta=beta, weights=weights, measures=measures)(Readout(hidden, weight), batch)
    ratios = log_ratios(hidden, weight, labels, reference)
    known, terms = ratios.detach(), []
    for answer, (ratio, reward) in enumerate(zip(ratios, rewards.tolist(), strict=True)):
        others = known[3:] if answer < 3 else known[:3]
        divergence = sum(max(float(other), 0.0) for other in others) / 3
        factor = weights[0] if reward > 0 else weights[1] if reward < 0 else 0.0
        terms.append(factor * (1 - torch.sigmoid(beta * reward * (ratio - divergence))))
    assert_same(loss, torch.stack(terms).sum() / 6, [hidden, weight])
    means = measures.over_ranks(Mesh(), CPU)
    assert list(means) == list(kto.MEASURES)
    agrees = [ratio * reward > 0 for ratio, reward in zip(known.tolist(), rewards.tolist(), strict=True) if reward]
    assert means["reward_acc"] == pytest.approx(sum(agrees) / 5)
    assert means["neg_ref_logp"] == pytest.approx(float(reference[[1, 3]].mean()), rel=1e-5)
    assert means["kl"] == pytest.approx(float(known.sum() / (labels != IGNORED).sum()), rel=1e-5)


def test_a_measure_of_which_a_batch_has_no_answer_is_left_out() -> None:
    hidden, weight, labels = answers()
    measures = Means(kto.MEASURES)
    batch = MicroBatch(labels, labels, reference=torch.zeros(6), rewards=torch.ones(6))
    KtoLoss(VOCABULARY, measures=measures)(Readout(hidden, weight), batch)
    assert set(kto.MEASURES) - set(measures.over_ranks(Mesh(), CPU)) == {"neg_ref_logp", "neg_policy_logp"}


@pytest.mark.parametrize("kind", [DpoLoss, KtoLoss])
def test_labels_without_reference_give_the_cross_entropy(kind: type[Loss]) -> None:
    """Samples that are no pairs, such as that of checkpoint_validation_with_forward_pass."""
    hidden, weight, labels = answers()
    readout, batch = Readout(hidden, weight), MicroBatch(labels[:1], labels[:1])
    readout = readout._replace(hidden=hidden[:1])
    assert torch.equal(kind(VOCABULARY)(readout, batch), Loss(VOCABULARY)(readout, batch))
