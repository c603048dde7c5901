"""Next-token cross entropy, computed together with the output layer's matrix product.

The logits (tokens x vocabulary) are by far the largest tensor of a small model. Here they exist for a slice of the
tokens at a time and only in the forward pass, which computes the loss and the gradients of each slice in place, in the
memory of its logits (as Liger Kernel does, arXiv:2410.10989). On two CPU cores this takes the time of its three matrix
products; F.linear + F.cross_entropy takes a fifth to a half longer (vocabulary 50,304).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from neoxargs.resolve.config import Config
from neoxargs.token_files import index
from neoxargs.train.parallel.communicate import copy_to_ranks, gather, sum_over_ranks
from neoxargs.train.parallel.make import Make
from neoxargs.train.process.collectives import all_reduce
from neoxargs.train.process.mesh import ALONE, Axis

#: Label of a token that does not count in the loss: padding, or removed by a loss mask.
IGNORED = index.IGNORED
#: Labels (batch, seq), or the pair of these and the factor on the micro batch's loss ().
Targets = Tensor | tuple[Tensor, Tensor]
#: Number of logits in one slice, by device: large enough for the matrix product to run at full speed.
LOGITS_AT_ONCE = {"cpu": 2**25, "cuda": 2**27}


class Vocabulary(NamedTuple):
    """Number of tokens, and number of rows of the embedding after padding to a multiple of the tensor parallel size."""

    size: int
    padded: int
    eod: int | None = None
    """The end-of-document token; None if not needed."""


class Readout(NamedTuple):
    """Output of the last layer: the two factors of the logits, which are hidden @ weight.T."""

    hidden: Tensor
    """(batch, seq, hidden)"""
    weight: Tensor
    """(padded vocabulary / tensor ranks, hidden)"""


def mask_labels(labels: Tensor, mask: Tensor) -> Tensor:
    """Return the labels (batch, seq) with IGNORED wherever `mask`, of the same shape, is 0."""
    return labels.masked_fill(mask == 0, IGNORED)


@dataclass(frozen=True)
class Loss:
    """Mean cross entropy over the labels that are not IGNORED: readout, labels (batch, seq) -> scalar; 0 if all are.

    The padding rows of the vocabulary get probability 0, so the loss does not depend on the padding, unless
    `over_padding`.
    """

    vocabulary: Vocabulary
    tensor: Axis = ALONE
    half: bool = False
    """Keep logits in the model's precision instead of fp32 (`fp16_lm_cross_entropy`); sums over them are fp32."""
    z: float = 0.0
    """`z_loss`: weight of log(Z)^2, with Z the softmax's denominator, in the gradient; the loss excludes the term."""
    shards: Axis = ALONE
    """Sequence parallel ranks, each with a shard of the hidden states; the labels cover the full sequence."""
    over_padding: bool = False
    """The padding rows take part in the softmax (`softmax_over_padding`)."""
    softcap: float = 0.0
    """The bound on logits (`final_logit_softcapping`); 0 means none."""

    @classmethod
    def of(cls, config: Config, vocabulary: Vocabulary, make: Make) -> Loss:
        """Make the loss that the configuration describes, for the ranks of `make`."""
        options = config.precision.fp16_lm_cross_entropy, config.post_training.z_loss
        embedding = config.embedding
        bounded = embedding.softmax_over_padding, embedding.final_logit_softcapping or 0.0
        return cls(vocabulary, make.tensor, *options, make.shards, *bounded)

    @property
    def rows(self) -> int:
        """Rows of the vocabulary that take part in the softmax."""
        return self.vocabulary.padded if self.over_padding else self.vocabulary.size

    def __call__(self, readout: Readout, targets: Targets) -> Tensor:
        labels, factor = (targets, None) if isinstance(targets, Tensor) else targets
        hidden, weight = readout
        # Each rank multiplies with its rows of the weight, so the gradients of `hidden` are summed over the ranks.
        hidden = gather(hidden, self.shards) if self.shards.size > 1 else copy_to_ranks(hidden, self.tensor)
        hidden = hidden.flatten(0, -2)
        arguments = (hidden, weight, labels.flatten(), self, torch.is_grad_enabled())
        mean: Tensor = _CrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
        return mean if factor is None else mean * factor

    def log_probabilities(self, readout: Readout, labels: Tensor) -> Tensor:
        """Return the log-probability of every label (batch, seq), with gradients; 0 where the label is IGNORED.

        For losses other than the mean cross entropy, such as those of preference training. Unlike the loss, it keeps
        the logits of this rank's part of the vocabulary until the backward pass.
        """
        hidden, weight = readout
        hidden = gather(hidden, self.shards) if self.shards.size > 1 else copy_to_ranks(hidden, self.tensor)
        logits = F.linear(hidden, weight).float()
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        first, rows = self.tensor.rank * weight.shape[0], weight.shape[0]
        # The padding rows: probability 0.
        logits = logits.masked_fill(torch.arange(first, first + rows, device=logits.device) >= self.rows, -torch.inf)
        local = labels - first
        is_local = (labels != IGNORED) & (local >= 0) & (local < rows)
        # Detached, because log(sum(exp)) does not depend on what is subtracted before.
        peak = logits.detach().amax(-1, keepdim=True)
        if self.tensor.size > 1:
            all_reduce(peak, dist.ReduceOp.MAX, group=self.tensor.group)
        # 0 where another rank has the label's row: any valid index, its value is dropped below.
        chosen = logits.gather(-1, local.where(is_local, 0).unsqueeze(-1)).squeeze(-1)
        # Both in one tensor, for one all-reduce.
        sums = torch.stack(((logits - peak).exp().sum(-1), chosen.where(is_local, torch.zeros_like(chosen))))
        total, label_logit = sum_over_ranks(sums, self.tensor)
        return (label_logit - total.log() - peak.squeeze(-1)).masked_fill(labels == IGNORED, 0)  # type: ignore[no-any-return]

    def logits(self, readout: Readout) -> Tensor:
        """Return logits (batch, seq, vocabulary), equal on every tensor parallel rank, without gradient."""
        return self.softmax_logits(readout)[..., : self.vocabulary.size]

    def bounded(self, logits: Tensor) -> Tensor:
        """Return the logits bounded by `softcap`, if there is one; may overwrite them."""
        return logits.div_(self.softcap).tanh_().mul_(self.softcap) if self.softcap else logits

    def softmax_logits(self, readout: Readout) -> Tensor:
        """Return logits (batch, seq, `rows`), like `logits` but of all rows that take part in the softmax."""
        with torch.no_grad():
            local = self.bounded(F.linear(gather(readout.hidden, self.shards), readout.weight))
            if self.tensor.size == 1:
                return local[..., : self.rows]
            slices = [torch.empty_like(local) for _ in range(self.tensor.size)]
            dist.all_gather(slices, local, group=self.tensor.group)
            return torch.cat(slices, dim=-1)[..., : self.rows]


class _CrossEntropy(torch.autograd.Function):
    """hidden (tokens, hidden), weight (rows, hidden), labels (tokens) -> mean loss."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, loss: Loss, train: bool) -> Tensor:
        slices = _Slices(hidden, weight, labels, loss, frozen=not ctx.needs_input_grad[1])
        at_once = max(1, LOGITS_AT_ONCE.get(hidden.device.type, 2**27) // weight.shape[0])
        # The gradients are finished before the backward pass begins, so nothing else has to be stored for it.
        for start in range(0, len(labels), at_once):
            slices.add(slice(start, start + at_once), train)
        ctx.gradients = slices.hidden_gradient, slices.weight_gradient
        ctx.count = slices.count
        return slices.total / slices.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Scaled here and not in the forward pass: in fp16 the loss scale in `gradient` must be applied before the
        # division by the number of tokens, which would underflow.
        scale = gradient / ctx.count
        # No longer held by ctx, so that their memory is freed as soon as autograd has used them.
        hidden, weight = ctx.gradients
        ctx.gradients = None
        return hidden.mul_(scale), None if weight is None else weight.mul_(scale), None, None, None


class _Slices:
    """Sum of the loss, and its gradients, accumulated over slices of the tokens; that of a frozen weight is None."""

    def __init__(self, hidden: Tensor, weight: Tensor, labels: Tensor, loss: Loss, frozen: bool) -> None:
        self.hidden, self.weight, self.axis, self.half, self.z = hidden, weight, loss.tensor, loss.half, loss.z
        self.loss, self.frozen = loss, frozen
        rows = weight.shape[0]
        first = loss.tensor.rank * rows
        self.rows = min(rows, max(0, loss.rows - first))  # that take part in the softmax
        self.counted = (labels != IGNORED).unsqueeze(-1)  # (tokens, 1), like all per-token tensors of this class
        local = (labels - first).unsqueeze(-1)
        self.is_local = self.counted & (local >= 0) & (local < rows)  # whether this rank holds the label's row
        self.label = local.where(self.is_local, 0)
        self.count = self.counted.sum().clamp(min=1)
        self.total = torch.zeros((), device=hidden.device)
        self.hidden_gradient: Tensor | None = None
        self.weight_gradient: Tensor | None = None

    def add(self, part: slice, train: bool) -> None:
        """Add the loss of the tokens of `part`, and with `train` its gradients."""
        logits = F.linear(self.hidden[part], self.weight)  # (tokens, rows); everything below works in this memory
        logits = self.loss.bounded(logits if self.half else logits.float())
        # d bounded / d logit, the only other tensor of the size of the logits
        slope = (logits / self.loss.softcap).square_().neg_().add_(1) if self.loss.softcap and train else None
        # exp() makes these 0, so they neither count in the sum nor get a gradient.
        logits[:, self.rows :] = -torch.inf
        # The maximum over all ranks is subtracted so that exp() does not overflow.
        peak = self._over_ranks(logits.amax(-1, keepdim=True).float(), dist.ReduceOp.MAX)
        label_logit = logits.gather(1, self.label[part]).where(self.is_local[part], 0)
        # From here on the memory of the logits holds the exponentials, and below their gradient.
        exponentials = logits.sub_(peak).exp_()
        sums = torch.cat((exponentials.sum(-1, keepdim=True, dtype=torch.float32), label_logit.float()), dim=1)
        # The second all-reduce of the slice: the sum, and the label's logit, which only one rank has.
        total, label_logit = self._over_ranks(sums, dist.ReduceOp.SUM).chunk(2, dim=1)
        log_z = total.log() + peak
        self.total += (log_z - label_logit).where(self.counted[part], 0).sum()
        if train:
            # d loss / d logits = softmax x (1 + 2 z log Z) - one_hot(label); 0 where the label does not count.
            gradient = exponentials.mul_(self.counted[part] * (1 + 2 * self.z * log_z) / total)
            # -1 at the label, on the rank that holds it; elsewhere -0 at index 0.
            gradient.scatter_add_(1, self.label[part], -self.is_local[part].to(gradient.dtype))
            if slope is not None:
                gradient *= slope
            self._add_gradients(gradient.to(self.weight.dtype), part)

    def _add_gradients(self, gradient: Tensor, part: slice) -> None:
        # Each slice writes its own rows, so no sum is needed, unlike for the weight.
        if self.hidden_gradient is None:
            self.hidden_gradient = torch.empty_like(self.hidden)
        torch.mm(gradient, self.weight, out=self.hidden_gradient[part])
        if self.frozen:
            return
        if self.weight_gradient is None:
            self.weight_gradient = (gradient.t() @ self.hidden[part]).float()
        elif self.weight.dtype == torch.float32:
            self.weight_gradient.addmm_(gradient.t(), self.hidden[part])
        else:  # 16-bit weights: sum over the slices in fp32
            self.weight_gradient += gradient.t() @ self.hidden[part]

    def _over_ranks(self, values: Tensor, operation: Any) -> Tensor:
        if self.axis.size > 1:
            all_reduce(values, operation, group=self.axis.group)
        return values
