"""Routing: which experts process a token, with which weights, and what balances them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from neoxargs.registry.moe import Moe
from neoxargs.train.model.experts.router import BALANCE, LOAD, Router, Z, added_losses, choose, sinkhorn
from neoxargs.train.ops import dispatch
from neoxargs.train.ops.dispatch import Choice
from neoxargs.train.parallel.init import METHODS
from neoxargs.train.parallel.layers import Weights


def options(**values: object) -> Moe:
    return Moe(**{"moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk", **values})


def logits(tokens: int = 12, experts: int = 4, spread: float = 1.0) -> Tensor:
    return spread * torch.randn(tokens, experts, generator=torch.Generator().manual_seed(1))


def test_topk_weights_are_probabilities_or_sum_to_one() -> None:
    x = logits()
    experts, weights = choose(x, options(), training=True)
    expected = x.softmax(-1).sort(-1, descending=True)
    assert torch.equal(experts, expected.indices[:, :2])
    torch.testing.assert_close(weights, expected.values[:, :2])
    normalized = choose(x, options(moe_normalize_expert_weights=True), training=True)
    torch.testing.assert_close(normalized.weights, weights / weights.sum(-1, keepdim=True))


@pytest.mark.slow  # importing megatron-core takes seconds
def test_sinkhorn_is_the_fixed_point_of_megatron_core() -> None:
    moe_utils = pytest.importorskip("megatron.core.transformer.moe.moe_utils")
    x = logits(64, 8, spread=2.0)
    # Its default tolerance stops after two rounds.
    torch.testing.assert_close(sinkhorn(x, rounds=200), moe_utils.sinkhorn(x, tol=1e-9), rtol=1e-3, atol=1e-7)


def test_sinkhorn_balances_rows_and_columns() -> None:
    result = sinkhorn(logits(64, 8, spread=3.0))
    torch.testing.assert_close(result.sum(0), torch.full((8,), 1 / 8), rtol=1e-4, atol=0)
    torch.testing.assert_close(result.sum(1), torch.full((64,), 1 / 64), rtol=0.1, atol=0)


def test_sinkhorn_balances_in_training_only() -> None:
    skewed = logits(64) + torch.tensor([2.0, 0, 0, 0])
    given = options(moe_router_type="sinkhorn", moe_top_k=1)
    training, evaluation = (choose(skewed, given, training) for training in (True, False))
    loads = [torch.bincount(choice.experts.flatten(), minlength=4).max() for choice in (training, evaluation)]
    assert loads[0] < 24 < loads[1]
    torch.testing.assert_close(training.weights, skewed.sigmoid().gather(1, training.experts))


def test_losses_by_their_definitions() -> None:
    x = logits().requires_grad_()
    choice = choose(x, options(), training=True)
    terms = added_losses(x, choice.experts, options(moe_aux_loss_coeff=0.1, moe_z_loss_coeff=0.2))
    shares = [(choice.experts == expert).sum() / choice.experts.numel() for expert in range(4)]
    means = x.softmax(-1).mean(0)
    torch.testing.assert_close(terms[BALANCE].value, 4 * sum(f * p for f, p in zip(shares, means, strict=True)))
    torch.testing.assert_close(terms[Z].value, (x.exp().sum(-1).log() ** 2).mean())
    assert terms[LOAD].value == 4 * max(shares)
    assert [term.weight for term in terms.values()] == [0.1, 0.2, 0.0]
    assert terms[BALANCE].value.requires_grad


def test_balanced_loads_have_the_least_balancing_loss() -> None:
    even = torch.arange(8).view(4, 2) % 4
    assert float(added_losses(torch.zeros(4, 4), even, options())[BALANCE].value) == pytest.approx(1)


def test_jitter_is_noise_of_training() -> None:
    torch.manual_seed(1)
    router = Router(options(moe_jitter_eps=0.1), 8, METHODS["normal"](1.0, 2, 8), Weights())
    x = torch.randn(1, 5, 8)
    noisy, exact = router.train()(x), router.eval()(x)
    assert torch.equal(exact, x[0] @ router.weight.t())
    assert not torch.equal(noisy, exact)
    bound = 0.1 * x[0].abs() @ router.weight.abs().t()
    assert ((noisy - exact).abs() <= bound + 1e-6).all()


def test_assignments_are_sorted_by_expert() -> None:
    choice = Choice(torch.tensor([[2, 0], [0, 1], [2, 1]]), torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.7, 0.3]]))
    tokens, weights, counts = dispatch.assign(choice, 4)
    assert tokens.tolist() == [0, 1, 1, 2, 0, 2]
    assert weights.tolist() == pytest.approx([0.4, 0.9, 0.1, 0.3, 0.6, 0.7])
    assert counts.tolist() == [2, 2, 2, 0]
    part = dispatch.part(dispatch.Assignments(tokens, weights, counts), range(1, 3))
    assert (part.tokens.tolist(), part.counts.tolist()) == ([1, 2, 0, 2], [2, 2])


def test_capacity_keeps_the_highest_weights() -> None:
    choice = Choice(torch.tensor([[0], [0], [1], [0]]), torch.tensor([[0.5], [0.9], [0.7], [0.6]]))
    tokens, weights, counts = dispatch.assign(choice, 2, dispatch.within_capacity(choice, 2, capacity=2))
    assert (tokens.tolist(), counts.tolist()) == ([1, 3, 2], [2, 1])
    assert weights.tolist() == pytest.approx([0.9, 0.6, 0.7])
    given = options(moe_token_dropping=True, moe_train_capacity_factor=1.25, moe_eval_capacity_factor=2.0)
    assert dispatch.capacity(given, 12, training=True) == 8  # 12 x 2 / 4 x 1.25, rounded up
    assert dispatch.capacity(given, 12, training=False) == 12
    assert dispatch.capacity(given, 1, training=True) == 4
    assert dispatch.capacity(options(), 12, training=True) is None


@pytest.mark.parametrize("counts", [[3, 0, 4], [7, 0, 0], [0, 0, 7]])
def test_the_grouped_product_is_one_product_per_expert(counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    rows, weight = (torch.randn(size, generator=generator) for size in ((7, 5), (3, 6, 5)))
    parts = zip(rows.split(counts), weight, strict=True)
    expected = torch.cat([part @ matrix.t() for part, matrix in parts])
    inputs = rows.requires_grad_(), weight.requires_grad_()
    found = dispatch.grouped_product(*inputs, torch.tensor(counts))
    torch.testing.assert_close(found, expected)
    double = [x.detach().double().requires_grad_() for x in inputs]
    torch.autograd.gradcheck(lambda a, b: dispatch.grouped_product(a, b, torch.tensor(counts)), double)


def test_rows_of_tokens() -> None:
    """Tokens may have several rows or none; some ranks have no rows at all."""
    generator = torch.Generator().manual_seed(1)
    for token in (torch.tensor([2, 0, 2, 1, 2]), torch.tensor([], dtype=torch.long)):
        rows, count = dispatch.RowsOfTokens.of(token, 4), len(token)
        x, outputs = (torch.randn(size, 3, generator=generator).double().requires_grad_() for size in (4, count))
        weights = torch.rand(count, generator=generator).double().requires_grad_()
        assert torch.equal(rows.copies(x), x[token])
        expected = torch.zeros(4, 3).double().index_add(0, token, outputs * weights[:, None])
        torch.testing.assert_close(rows.weighted_sums(outputs, weights), expected)
        if count:
            torch.autograd.gradcheck(rows.copies, (x,))
            torch.autograd.gradcheck(rows.weighted_sums, (outputs, weights))


def test_sums_of_16_bit_rows_are_rounded_once() -> None:
    """Added one by one in bf16, 512 ones are 256."""
    rows = dispatch.RowsOfTokens.of(torch.zeros(512, dtype=torch.long), 1)
    assert rows.weighted_sums(torch.ones(512, 1, dtype=torch.bfloat16), torch.ones(512)) == 512


def test_torch_has_the_kernel_that_gpus_use() -> None:
    """On a CPU torch computes it too, with rows and gradients in the same order as the loop."""
    generator = torch.Generator().manual_seed(1)
    rows, weight = (torch.randn(size, generator=generator).bfloat16() for size in ((32, 16), (4, 8, 16)))
    counts = torch.tensor([8, 0, 16, 8])
    ends = counts.cumsum(0, dtype=torch.int32)
    found = torch._grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    torch.testing.assert_close(found, dispatch.grouped_product(rows, weight, counts))
