"""Sorting tokens by expert, and the products of each expert's tokens with its matrix.

Experts have as many tokens as chose them: the rows of a product are those of all experts, one expert after the other
(Gale et al. 2022, "MegaBlocks", arXiv:2211.15841). No token is dropped and nothing is padded, unless there is a
capacity.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from neoxargs.registry.moe import Moe
from neoxargs.train.autograd import apply, linear

#: Major version of the compute capability.
HOPPER = 9


class Choice(NamedTuple):
    """The experts of each token, and the weights of their outputs, both (T, top_k)."""

    experts: Tensor
    weights: Tensor


class Assignments(NamedTuple):
    """The pairs of a token and an expert that process it, sorted by expert."""

    tokens: Tensor
    """(R): the index of the token."""
    weights: Tensor
    """(R): the weight of the expert's output."""
    counts: Tensor
    """(E): the number of pairs of each expert."""


def assign(choice: Choice, count: int, kept: Tensor | None = None) -> Assignments:
    """Sort a choice by expert. count: number of experts. kept: the pairs that count, (T, top_k); None: all."""
    experts_R, weights_R = choice.experts.flatten(), choice.weights.flatten()
    # Stable: the pairs of an expert stay in the order of the tokens, so that results do not depend on the sort.
    order_R = experts_R.argsort(stable=True)
    if kept is not None:
        order_R = order_R[kept.flatten()[order_R]]
        experts_R = experts_R[order_R]
    # Pairs are numbered token by token, `top_k` each.
    tokens_R, weights_R = order_R // choice.experts.shape[1], weights_R.index_select(0, order_R)
    return Assignments(tokens_R, weights_R, pairs_of_experts(experts_R, count))


def within_capacity(choice: Choice, count: int, capacity: int) -> Tensor:
    """Return which pairs are among the `capacity` with the highest weights of their expert, (T, top_k)."""
    experts_R = choice.experts.flatten()
    counts_E = pairs_of_experts(experts_R, count)
    # Sorted by weight first and then, stably, by expert: each expert's pairs are in descending order of weight.
    order_R = choice.weights.detach().flatten().argsort(descending=True, stable=True)
    order_R = order_R[experts_R[order_R].argsort(stable=True)]
    # The place of each pair within its expert: 0 is the one with the highest weight.
    first_E = counts_E.cumsum(0) - counts_E
    place_R = torch.arange(len(order_R), device=order_R.device) - first_E[experts_R[order_R]]
    kept_R = torch.empty_like(order_R, dtype=torch.bool)
    kept_R[order_R] = place_R < capacity
    return kept_R.view_as(choice.experts)


def pairs_of_experts(experts_R: Tensor, count: int) -> Tensor:
    """Return how often each of `count` experts was chosen, (E)."""
    # Not bincount, for which the host waits for the GPU: it returns as many numbers as the largest value says.
    return experts_R.new_zeros(count).index_add_(0, experts_R, torch.ones_like(experts_R))


def part(assignments: Assignments, experts: range) -> Assignments:
    """Return the assignments to some consecutive experts."""
    tokens, weights, counts = assignments
    # No slicing, for which int() below would wait for the GPU.
    if len(experts) == len(counts):
        return assignments
    first, size = int(counts[: experts.start].sum()), int(counts[experts.start : experts.stop].sum())
    here = slice(first, first + size)
    return Assignments(tokens[here], weights[here], counts[experts.start : experts.stop])


def capacity(options: Moe, tokens: int, training: bool) -> int | None:
    """Return how many tokens an expert processes at most, for a micro batch of `tokens`; None if it is unlimited."""
    if not options.moe_token_dropping:
        return None
    factor = options.moe_train_capacity_factor if training else options.moe_eval_capacity_factor
    share = tokens * options.moe_top_k / options.moe_num_experts
    return max(math.ceil(share * factor), options.moe_min_capacity)


def grouped_product(rows_RD: Tensor, weight_EFD: Tensor, counts_E: Tensor) -> Tensor:
    """Multiply each expert's rows with its matrix: rows_RD x weight_EFD -> (R, F)."""
    if _has_grouped_kernel(rows_RD, weight_EFD):
        # The kernel takes where each expert's rows end, as int32 on the device; the host need not know the counts.
        ends = counts_E.cumsum(0, dtype=torch.int32)
        return torch._grouped_mm(rows_RD, weight_EFD.transpose(1, 2), offs=ends)
    # The loop on the host needs the counts, for which a GPU is waited for.
    return apply(_Loop, rows_RD, weight_EFD, counts_E.tolist())


class RowsOfTokens(NamedTuple):
    """Which rows (R) each token (T) has; rows are sorted by expert.

    Rows are summed by `embedding_bag`, which adds in fp32 in the order of the experts. On a GPU, torch's `index_add`
    adds in 16 bits, in any order, and took a sixth of a step of OLMoE on an H200.
    """

    token: Tensor
    """(R): the token of each row."""
    row: Tensor
    """(R): the rows, sorted by token."""
    first: Tensor
    """(T): where a token's rows begin in `row`."""

    @classmethod
    def of(cls, token_R: Tensor, tokens: int) -> RowsOfTokens:
        row_R = token_R.argsort(stable=True)
        numbers = torch.arange(tokens, device=token_R.device)
        return cls(token_R, row_R, torch.searchsorted(token_R.index_select(0, row_R), numbers))

    def copies(self, tokens_TD: Tensor) -> Tensor:
        """Return a row for each pair of a token and an expert, (R, D)."""
        return linear(tokens_TD, lambda x: x.index_select(0, self.token), self.sums)

    def weighted_sums(self, outputs_RD: Tensor, weights_R: Tensor) -> Tensor:
        """Return each token's sum of weight x output over its experts, (T, D)."""
        return apply(_WeightedSums, outputs_RD, weights_R, self)

    def sums(self, rows_RD: Tensor) -> Tensor:
        """Return the sum of each token's rows, (T, D). Has no gradient."""
        return functional.embedding_bag(self.row, rows_RD, self.first, mode="sum")


class _WeightedSums(torch.autograd.Function):
    """Does not store the weighted rows."""

    @staticmethod
    def forward(ctx: Any, outputs_RD: Tensor, weights_R: Tensor, rows: RowsOfTokens) -> Tensor:
        ctx.save_for_backward(outputs_RD, weights_R)
        ctx.rows = rows
        return rows.sums(outputs_RD * weights_R.to(outputs_RD.dtype).unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, gradient_TD: Tensor) -> tuple[Tensor, Tensor, None]:
        outputs_RD, weights_R = ctx.saved_tensors
        gradient_RD = gradient_TD.index_select(0, ctx.rows.token)
        gradient_R = (gradient_RD * outputs_RD).sum(1, dtype=weights_R.dtype)
        return gradient_RD.mul_(weights_R.to(gradient_RD.dtype).unsqueeze(1)), gradient_R, None


def _has_grouped_kernel(rows_RD: Tensor, weight_EFD: Tensor) -> bool:
    """Whether torch computes these products in one kernel: in bf16 on Hopper, with aligned rows.

    Not on Blackwell, where the gradients of experts without rows were not 0 (pytorch/pytorch#172439), or NaN (#193633).
    """
    if not rows_RD.is_cuda or rows_RD.dtype != torch.bfloat16 or weight_EFD.dtype != torch.bfloat16 or not len(rows_RD):
        return False
    aligned = all(size % 8 == 0 for size in weight_EFD.shape[1:])  # rows of whole 16 bytes
    return aligned and hasattr(torch, "_grouped_mm") and torch.cuda.get_device_capability(rows_RD.device)[0] == HOPPER


class _Loop(torch.autograd.Function):
    """One product per expert. Gradients of the matrices are written in place, not stacked."""

    @staticmethod
    def forward(ctx: Any, rows_RD: Tensor, weight_EFD: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(rows_RD, weight_EFD)
        ctx.counts = counts
        output_RF = rows_RD.new_empty(len(rows_RD), weight_EFD.shape[1])
        for expert, here in _slices(counts):
            torch.mm(rows_RD[here], weight_EFD[expert].t(), out=output_RF[here])
        return output_RF

    @staticmethod
    def backward(ctx: Any, gradient_RF: Tensor) -> tuple[Tensor, Tensor, None]:
        rows_RD, weight_EFD = ctx.saved_tensors
        gradient_RD, gradient_EFD = torch.empty_like(rows_RD), torch.zeros_like(weight_EFD)
        for expert, here in _slices(ctx.counts):
            torch.mm(gradient_RF[here], weight_EFD[expert], out=gradient_RD[here])
            torch.mm(gradient_RF[here].t(), rows_RD[here], out=gradient_EFD[expert])
        return gradient_RD, gradient_EFD, None


def _slices(counts: list[int]) -> list[tuple[int, slice]]:
    """Return the experts that have rows, each with its rows."""
    ends = torch.tensor(counts).cumsum(0).tolist()
    return [
        (expert, slice(end - size, end)) for expert, (size, end) in enumerate(zip(counts, ends, strict=True)) if size
    ]
