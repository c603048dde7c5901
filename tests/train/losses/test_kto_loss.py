"""KTO's loss: the formula, its gradients, and what it reports."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from neoxargs.train.losses.cross_entropy import IGNORED, Readout, Vocabulary
from neoxargs.train.losses.kto import MEASURES, KtoLoss
from neoxargs.train.losses.means import Means
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process.mesh import ALONE, Mesh

VOCABULARY, BETA, WEIGHTS = Vocabulary(11, 16), 0.3, (1.5, 0.5)


def test_loss_and_gradients_are_those_of_the_formula() -> None:
    """With rewards of any size, an answer that nobody rated, and answers of different lengths."""
    torch.manual_seed(0)
    hidden = torch.randn(6, 5, 8, requires_grad=True)
    weight = torch.randn(16, 8, requires_grad=True)
    labels = torch.randint(0, 11, (6, 5))
    labels[:, :2] = IGNORED
    labels[4, 3:] = IGNORED
    reference, rewards = -torch.rand(6) * 20, torch.tensor([1.0, -1.0, 0.25, -2.0, 3.0, 0.0])
    measures = Means(MEASURES)
    loss = KtoLoss(VOCABULARY, beta=BETA, weights=WEIGHTS, measures=measures)(
        Readout(hidden, weight), MicroBatch(labels, labels, reference=reference, rewards=rewards)
    )

    logs = F.linear(hidden, weight[:11]).log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    ratios = logs.masked_fill(labels == IGNORED, 0).sum(1) - reference
    known, terms = ratios.detach(), []
    for answer, (ratio, reward) in enumerate(zip(ratios, rewards.tolist(), strict=True)):
        others = known[3:] if answer < 3 else known[:3]
        divergence = sum(max(float(other), 0.0) for other in others) / 3
        factor = WEIGHTS[0] if reward > 0 else WEIGHTS[1] if reward < 0 else 0.0
        terms.append(factor * (1 - torch.sigmoid(BETA * reward * (ratio - divergence))))
    expected = torch.stack(terms).sum() / 6
    torch.testing.assert_close(loss, expected)
    theirs = torch.autograd.grad(expected, [hidden, weight])
    torch.testing.assert_close(torch.autograd.grad(loss, [hidden, weight]), theirs)

    means = measures.over_ranks(Mesh(ALONE, ALONE, ALONE, ALONE), torch.device("cpu"))
    assert list(means) == list(MEASURES)
    agrees = [ratio * reward > 0 for ratio, reward in zip(known.tolist(), rewards.tolist(), strict=True) if reward]
    assert means["reward_acc"] == pytest.approx(sum(agrees) / 5)
    assert means["neg_ref_logp"] == pytest.approx(float(reference[[1, 3]].mean()), rel=1e-5)
    assert means["kl"] == pytest.approx(float(known.sum() / (labels != IGNORED).sum()), rel=1e-5)


def test_a_measure_of_which_a_batch_has_no_answer_is_left_out() -> None:
    torch.manual_seed(0)
    measures = Means(MEASURES)
    tokens = torch.randint(0, 11, (2, 5))
    targets = MicroBatch(tokens, tokens, reference=torch.zeros(2), rewards=torch.ones(2))
    KtoLoss(VOCABULARY, measures=measures)(Readout(torch.randn(2, 5, 8), torch.randn(16, 8)), targets)
    means = measures.over_ranks(Mesh(ALONE, ALONE, ALONE, ALONE), torch.device("cpu"))
    assert set(MEASURES) - set(means) == {"neg_ref_logp", "neg_policy_logp"}
