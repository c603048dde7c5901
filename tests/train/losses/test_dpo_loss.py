"""DPO's loss: the formula, its gradients, and what it reports."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from neoxargs.train.losses.cross_entropy import IGNORED, Loss, Readout, Vocabulary
from neoxargs.train.losses.dpo import MEASURES, DpoLoss
from neoxargs.train.losses.kto import KtoLoss
from neoxargs.train.losses.means import Means
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process.mesh import ALONE, Mesh

VOCABULARY, PAIRS, BETA = Vocabulary(11, 16), 3, 0.7


def test_loss_and_gradients_are_those_of_the_formula() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(2 * PAIRS, 5, 8, requires_grad=True)
    weight = torch.randn(16, 8, requires_grad=True)
    labels = torch.randint(0, 11, (2 * PAIRS, 5))
    labels[:, :2] = IGNORED
    reference = torch.randn(2 * PAIRS)
    measures = Means(MEASURES)
    loss = DpoLoss(VOCABULARY, beta=BETA, measures=measures)(
        Readout(hidden, weight), MicroBatch(labels, labels, reference=reference)
    )

    logs = F.linear(hidden, weight[:11]).log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    ratios = logs.masked_fill(labels == IGNORED, 0).sum(1) - reference
    margins = BETA * (ratios[:PAIRS] - ratios[PAIRS:])
    expected = -torch.log(torch.sigmoid(margins)).mean()
    torch.testing.assert_close(loss, expected)
    theirs = torch.autograd.grad(expected, [hidden, weight])
    torch.testing.assert_close(torch.autograd.grad(loss, [hidden, weight]), theirs)

    means = measures.over_ranks(Mesh(ALONE, ALONE, ALONE, ALONE), torch.device("cpu"))
    assert list(means) == list(MEASURES)
    assert means["margins"] == pytest.approx(float(margins.detach().mean()), rel=1e-5)
    assert means["reward_acc"] == pytest.approx(float((margins > 0).float().mean()))
    assert means["ref_neg"] == pytest.approx(float(reference[PAIRS:].mean()), rel=1e-5)


@pytest.mark.parametrize("kind", [DpoLoss, KtoLoss])
def test_labels_without_reference_give_the_cross_entropy(kind: type[Loss]) -> None:
    """Samples that are no pairs, such as that of checkpoint_validation_with_forward_pass."""
    torch.manual_seed(0)
    readout, labels = Readout(torch.randn(1, 5, 8), torch.randn(16, 8)), torch.randint(0, 11, (1, 5))
    batch = MicroBatch(labels, labels)
    assert torch.equal(kind(VOCABULARY)(readout, batch), Loss(VOCABULARY)(readout, batch))
