"""Next-token cross entropy, computed together with the output layer's matrix product.

The logits (tokens x vocabulary) are by far the largest tensor of a small model. Here they exist for a slice of the
tokens at a time and only in the forward pass, which computes the loss and the gradients of each slice in place, in the
memory of its logits (as Liger Kernel does, arXiv:2410.10989). On two CPU cores this takes the time of its three matrix
products; F.linear + F.cross_entropy takes a fifth to a half longer (vocabulary 50,304).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from neoxargs.config.config import Config
from neoxargs.files.token_files import index
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.ops.fused import should_compile
from neoxargs.train.parallel.communicate import copy_to_ranks, gather
from neoxargs.train.parallel.layers import Make
from neoxargs.train.process.collectives import all_reduce
from neoxargs.train.process.mesh import ALONE, Axis

#: Label of a token that does not count toward the loss: padding, or removed by a loss mask.
IGNORED = index.IGNORED
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


@dataclass(frozen=True)
class Loss:
    """Mean cross entropy over the labels that are not IGNORED, times the micro batch's factor; 0 if all are.

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
    compiled: bool = False
    """On GPUs, compute the losses and gradients of a slice in kernels of torch.compile, which read and write the logits
    three times instead of a dozen times. Not with tensor parallel ranks, which communicate in between."""

    @classmethod
    def of(cls, config: Config, vocabulary: Vocabulary, make: Make) -> Loss:
        """Make the loss that the configuration describes, for the ranks of `make`."""
        options = config.precision.fp16_lm_cross_entropy, config.post_training.z_loss
        embedding = config.embedding
        bounded = embedding.softmax_over_padding, embedding.final_logit_softcapping or 0.0
        compiled = config.fusion.compile_layers and make.tensor.size == 1 and not options[0]
        return cls(vocabulary, make.tensor, *options, make.shards, *bounded, compiled)

    @property
    def rows(self) -> int:
        """Rows of the vocabulary that take part in the softmax."""
        return self.vocabulary.padded if self.over_padding else self.vocabulary.size

    def __call__(self, readout: Readout, batch: MicroBatch) -> Tensor:
        hidden, weight = readout
        # Each rank multiplies with its rows of the weight, so the gradients of `hidden` are summed over the ranks.
        hidden = gather(hidden, self.shards) if self.shards.size > 1 else copy_to_ranks(hidden, self.tensor)
        hidden = hidden.flatten(0, -2)
        arguments = (hidden, weight, batch.labels.flatten(), self, torch.is_grad_enabled())
        mean: Tensor = _CrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
        return mean if batch.factor is None else mean * batch.factor

    def log_probabilities(self, readout: Readout, labels: Tensor) -> Tensor:
        """Return the log-probability of every label (batch, seq), with gradients; 0 where the label is IGNORED.

        For losses other than the mean cross entropy, such as those of preference training.
        """
        hidden, weight = readout
        hidden = gather(hidden, self.shards) if self.shards.size > 1 else copy_to_ranks(hidden, self.tensor)
        arguments = (hidden.flatten(0, -2), weight, labels.flatten(), replace(self, z=0.0))
        logs: Tensor = _LogProbabilities.apply(*arguments)  # type: ignore[no-untyped-call]
        return logs.view(labels.shape)

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
        # The gradients are finished before the backward pass begins, so nothing else has to be stored for it.
        for part in slices.parts():
            slices.add(part, train)
        ctx.gradients = slices.hidden_gradient, slices.weight_gradient
        ctx.count = slices.count
        return slices.losses.sum() / slices.count

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


class _LogProbabilities(torch.autograd.Function):
    """hidden (tokens, hidden), weight (rows, hidden), labels (tokens) -> log-probabilities of the labels (tokens).

    The backward pass computes the logits again, because the gradient of each token is not known before.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, loss: Loss) -> Tensor:
        slices = _Slices(hidden, weight, labels, loss)
        for part in slices.parts():
            slices.add(part, train=False)
        ctx.save_for_backward(hidden, weight, labels)
        ctx.loss = loss
        return -slices.losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, labels = ctx.saved_tensors
        slices = _Slices(hidden, weight, labels, ctx.loss, frozen=not ctx.needs_input_grad[1], factors=-gradient)
        for part in slices.parts():
            slices.add(part, train=True)
        of_weight = slices.weight_gradient
        return slices.hidden_gradient, None if of_weight is None else of_weight.to(weight.dtype), None, None


class _Slices:
    """Losses of tokens, and the gradients of their sum, accumulated over slices; that of a frozen weight is None.

    factors: (tokens), what each token's loss is multiplied with in the gradients; None: 1.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        loss: Loss,
        frozen: bool = False,
        factors: Tensor | None = None,
    ) -> None:
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
        # (tokens, 1) like `counted`, which is the factor of each token where no other is given.
        self.factors = self.counted if factors is None else self.counted * factors.unsqueeze(-1)
        self.losses = torch.zeros(len(labels), device=hidden.device)
        self.hidden_gradient: Tensor | None = None
        self.weight_gradient: Tensor | None = None

    def parts(self) -> Iterator[slice]:
        """Yield slices of the tokens, of which the logits fit into memory."""
        at_once = max(1, LOGITS_AT_ONCE.get(self.hidden.device.type, 2**27) // self.weight.shape[0])
        # Whole tiles of a GPU's matrix product.
        at_once = at_once // 256 * 256 or at_once
        for start in range(0, len(self.hidden), at_once):
            yield slice(start, start + at_once)

    def add(self, part: slice, train: bool) -> None:
        """Compute the losses of the tokens of `part`, and with `train` add its gradients."""
        logits = F.linear(self.hidden[part], self.weight)  # (tokens, rows); everything below works in this memory
        if train and self.loss.compiled and should_compile(logits.device.type):
            of_part = self.label[part], self.counted[part], self.factors[part]
            self.losses[part], gradient = _compiled()(logits, *of_part, self.rows, self.z, self.loss.softcap)
            self._add_gradients(gradient, part)
            return
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
        self.losses[part] = (log_z - label_logit).where(self.counted[part], 0).squeeze(-1)
        if train:
            # d loss / d logits = softmax x (1 + 2 z log Z) - one_hot(label); 0 where the label does not count.
            gradient = exponentials.mul_(self.factors[part] * (1 + 2 * self.z * log_z) / total)
            # -1 at the label, on the rank that holds it; elsewhere -0 at index 0.
            at_label = self.factors[part] * self.is_local[part]
            gradient.scatter_add_(1, self.label[part], -at_label.to(gradient.dtype))
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
        # 16-bit weights: sum over the slices in fp32
        elif gradient.is_cuda and hasattr(torch.ops.aten.addmm, "dtype_out"):
            total = self.weight_gradient
            torch.addmm(total, gradient.t(), self.hidden[part], out_dtype=total.dtype, out=total)
        else:
            self.weight_gradient += gradient.t() @ self.hidden[part]

    def _over_ranks(self, values: Tensor, operation: Any) -> Tensor:
        if self.axis.size > 1:
            all_reduce(values, operation, group=self.axis.group)
        return values


@cache
def _compiled() -> Any:
    return torch.compile(_losses_and_gradient, dynamic=False)


def _losses_and_gradient(
    logits: Tensor, label: Tensor, counted: Tensor, factors: Tensor, rows: int, z: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """Return what `_Slices.add` computes on one rank, without in-place operations: losses (tokens), d loss / d logits.

    logits: (tokens, padded vocabulary), of which the first `rows` take part; all others: (tokens, 1).
    """
    bounded = softcap * torch.tanh(logits.float() / softcap) if softcap else logits.float()
    row = torch.arange(logits.shape[1], device=logits.device)
    values = bounded.where(row < rows, -torch.inf)
    log_z = values.logsumexp(-1, keepdim=True)
    losses = (log_z - values.gather(1, label)).where(counted, 0).squeeze(-1)
    gradient = factors * ((values - log_z).exp() * (1 + 2 * z * log_z) - (row == label).float())
    if softcap:
        gradient = gradient * (1 - (bounded / softcap).square())
    return losses, gradient.to(logits.dtype)
