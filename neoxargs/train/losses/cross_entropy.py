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
from neoxargs.facts.model import compiles_cross_entropy, tokens_at_once
from neoxargs.files.token_files import index
from neoxargs.train.autograd import apply
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.ops.fused import should_compile
from neoxargs.train.parallel.communicate import enter_region, gather_positions, gather_sequence
from neoxargs.train.parallel.layers import Ranks
from neoxargs.train.parallel.positions import WHOLE, Positions
from neoxargs.train.process.collectives import gather
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
    """hidden_BSD"""
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
    sequence: Axis = ALONE
    """Sequence parallel ranks, each with a shard of the hidden states; the labels cover the full sequence."""
    over_padding: bool = False
    """The padding rows take part in the softmax (`softmax_over_padding`)."""
    softcap: float = 0.0
    """The bound on logits (`final_logit_softcapping`); 0 means none."""
    compiled: bool = False
    """On GPUs, compute the losses and gradients of a slice in kernels of torch.compile, which read and write the logits
    three times instead of a dozen times. Not with tensor parallel ranks, which communicate in between."""
    positions: Positions = WHOLE
    """Of this context parallel rank's hidden states; the labels cover the full sequence."""

    @classmethod
    def of(cls, config: Config, vocabulary: Vocabulary, ranks: Ranks) -> Loss:
        """Make the loss that the configuration describes, for these ranks."""
        options = config.precision.fp16_lm_cross_entropy, config.post_training.z_loss
        embedding = config.embedding
        bounded = embedding.softmax_over_padding, embedding.final_logit_softcapping or 0.0
        compiled = compiles_cross_entropy(config)
        return cls(vocabulary, ranks.tensor, *options, ranks.sequence, *bounded, compiled, ranks.positions)

    @property
    def rows(self) -> int:
        """Rows of the vocabulary that take part in the softmax."""
        return self.vocabulary.padded if self.over_padding else self.vocabulary.size

    def __call__(self, readout: Readout, batch: MicroBatch) -> Tensor:
        """Return the mean over this rank's labels such that the mean over the context ranks is that over all labels."""
        own = self.positions.of(batch.labels)
        arguments = (self._hidden(readout), readout.weight, own.flatten(), self, torch.is_grad_enabled())
        mean = apply(_CrossEntropy, *arguments)
        if self.positions.context.size > 1:
            # They may have unequal numbers of labels that count.
            counts, total = (own != IGNORED).sum(), (batch.labels != IGNORED).sum().clamp(min=1)
            mean = mean * (counts * self.positions.context.size / total)
        return mean if batch.factor is None else mean * batch.factor

    def log_probabilities(self, readout: Readout, labels_BS: Tensor) -> Tensor:
        """Return the log-probability of every label, (B, S), with gradients; 0 where the label is IGNORED.

        For losses other than the mean cross entropy, such as those of preference training.
        """
        own_BS = self.positions.of(labels_BS)
        arguments = (self._hidden(readout), readout.weight, own_BS.flatten(), replace(self, z=0.0))
        logs_T = apply(_LogProbabilities, *arguments)
        return gather_positions(logs_T.view(own_BS.shape), self.positions)

    def _hidden(self, readout: Readout) -> Tensor:
        """Return hidden_TD of all positions of this context parallel rank."""
        # Each rank multiplies with its rows of the weight, so the gradients are summed over the ranks.
        whole_BSD = enter_region(readout.hidden, self.tensor, self.sequence)
        return whole_BSD.flatten(0, -2)

    def logits(self, readout: Readout) -> Tensor:
        """Return logits_BSV, equal on every tensor parallel rank, without gradient."""
        return self.softmax_logits(readout)[..., : self.vocabulary.size]

    def bounded(self, logits: Tensor) -> Tensor:
        """Return the logits bounded by `softcap`, if there is one; may overwrite them."""
        return logits.div_(self.softcap).tanh_().mul_(self.softcap) if self.softcap else logits

    def softmax_logits(self, readout: Readout) -> Tensor:
        """Return what `logits` does, but of all rows that take part in the softmax."""
        with torch.no_grad():
            local_BSV = self.bounded(F.linear(gather_sequence(readout.hidden, self.sequence), readout.weight))
            if self.tensor.size == 1:
                return local_BSV[..., : self.rows]
            return torch.cat(gather(local_BSV, self.tensor.group).unbind(), dim=-1)[..., : self.rows]


class _CrossEntropy(torch.autograd.Function):
    """Mean loss; V is the rows of the vocabulary on this rank."""

    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, labels_T: Tensor, loss: Loss, train: bool) -> Tensor:
        slices = _Slices(hidden_TD, weight_VD, labels_T, loss, frozen=not ctx.needs_input_grad[1])
        # The gradients are finished before the backward pass begins, so nothing else has to be stored for it.
        slices.add_all(train)
        ctx.gradients = slices.gradient_TD, slices.gradient_VD
        ctx.count = slices.count
        return slices.losses_T.sum() / slices.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Scaled here and not in the forward pass: in fp16 the loss scale in `gradient` must be applied before the
        # division by the number of tokens, which would underflow.
        scale = gradient / ctx.count
        # No longer held by ctx, so that their memory is freed as soon as autograd has used them.
        gradient_TD, gradient_VD = ctx.gradients
        ctx.gradients = None
        return gradient_TD.mul_(scale), None if gradient_VD is None else gradient_VD.mul_(scale), None, None, None


class _LogProbabilities(torch.autograd.Function):
    """Log-probabilities of the labels, (T); V is the rows of the vocabulary on this rank.

    The backward pass computes the logits again, because the gradient of each token is not known before.
    """

    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, labels_T: Tensor, loss: Loss) -> Tensor:
        slices = _Slices(hidden_TD, weight_VD, labels_T, loss)
        slices.add_all(train=False)
        ctx.save_for_backward(hidden_TD, weight_VD, labels_T)
        ctx.loss = loss
        return -slices.losses_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_T: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TD, weight_VD, labels_T = ctx.saved_tensors
        slices = _Slices(
            hidden_TD, weight_VD, labels_T, ctx.loss, frozen=not ctx.needs_input_grad[1], factors_T=-gradient_T
        )
        slices.add_all(train=True)
        gradient_VD = slices.gradient_VD
        return slices.gradient_TD, None if gradient_VD is None else gradient_VD.to(weight_VD.dtype), None, None


class _Slices:
    """Losses of tokens, and the gradients of their sum, accumulated over slices; that of a frozen weight is None.

    factors_T: what each token's loss is multiplied with in the gradients; None: 1. V: rows of this rank.
    """

    def __init__(
        self,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        labels_T: Tensor,
        loss: Loss,
        frozen: bool = False,
        factors_T: Tensor | None = None,
    ) -> None:
        self.hidden_TD, self.weight_VD, self.loss, self.frozen = hidden_TD, weight_VD, loss, frozen
        rows = weight_VD.shape[0]
        first = loss.tensor.rank * rows
        self.rows = min(rows, max(0, loss.rows - first))  # that take part in the softmax
        self.counted_T1 = (labels_T != IGNORED).unsqueeze(-1)
        local = (labels_T - first).unsqueeze(-1)
        self.is_local_T1 = self.counted_T1 & (local >= 0) & (local < rows)  # whether this rank holds the label's row
        self.label_T1 = local.where(self.is_local_T1, 0)
        self.count = self.counted_T1.sum().clamp(min=1)
        # Where no factor is given, it is 1 for the tokens that count.
        self.factors_T1 = self.counted_T1 if factors_T is None else self.counted_T1 * factors_T.unsqueeze(-1)
        self.losses_T = torch.zeros(len(labels_T), device=hidden_TD.device)
        self.gradient_TD: Tensor | None = None
        self.gradient_VD: Tensor | None = None

    def parts(self) -> Iterator[slice]:
        """Yield slices of the tokens, of which the logits fit into memory."""
        at_once = tokens_at_once(LOGITS_AT_ONCE.get(self.hidden_TD.device.type, 2**27), self.weight_VD.shape[0])
        for start in range(0, len(self.hidden_TD), at_once):
            yield slice(start, start + at_once)

    def add_all(self, train: bool) -> None:
        for part in self.parts():
            self.add(part, train)

    def add(self, part: slice, train: bool) -> None:
        """Compute the losses of the tokens of `part`, and with `train` add its gradients."""
        logits_TV = F.linear(self.hidden_TD[part], self.weight_VD)  # everything below works in this memory
        if train and self.loss.compiled and should_compile(logits_TV.device.type):
            of_part = self.label_T1[part], self.counted_T1[part], self.factors_T1[part]
            self.losses_T[part], gradient_TV = _compiled()(
                logits_TV, *of_part, self.rows, self.loss.z, self.loss.softcap
            )
            self._add_gradients(gradient_TV, part)
            return
        logits_TV = self.loss.bounded(logits_TV if self.loss.half else logits_TV.float())
        # d bounded / d logit, the only other tensor of the size of the logits
        slope_TV = (logits_TV / self.loss.softcap).square_().neg_().add_(1) if self.loss.softcap and train else None
        # exp() makes these 0, so they neither count in the sum nor get a gradient.
        logits_TV[:, self.rows :] = -torch.inf
        # The maximum over all ranks is subtracted so that exp() does not overflow.
        peak_T1 = self._over_ranks(logits_TV.amax(-1, keepdim=True).float(), dist.ReduceOp.MAX)
        label_logit_T1 = logits_TV.gather(1, self.label_T1[part]).where(self.is_local_T1[part], 0)
        # From here on the memory of the logits holds the exponentials, and below their gradient.
        exponentials_TV = logits_TV.sub_(peak_T1).exp_()
        sums = torch.cat((exponentials_TV.sum(-1, keepdim=True, dtype=torch.float32), label_logit_T1.float()), dim=1)
        # The second all-reduce of the slice: the sum, and the label's logit, which only one rank has.
        total_T1, label_logit_T1 = self._over_ranks(sums, dist.ReduceOp.SUM).chunk(2, dim=1)
        log_z_T1 = total_T1.log() + peak_T1
        self.losses_T[part] = (log_z_T1 - label_logit_T1).where(self.counted_T1[part], 0).squeeze(-1)
        if train:
            # d loss / d logits = softmax x (1 + 2 z log Z) - one_hot(label); 0 where the label does not count.
            gradient_TV = exponentials_TV.mul_(self.factors_T1[part] * (1 + 2 * self.loss.z * log_z_T1) / total_T1)
            # -1 at the label, on the rank that holds it; elsewhere -0 at index 0.
            at_label = self.factors_T1[part] * self.is_local_T1[part]
            gradient_TV.scatter_add_(1, self.label_T1[part], -at_label.to(gradient_TV.dtype))
            if slope_TV is not None:
                gradient_TV *= slope_TV
            self._add_gradients(gradient_TV.to(self.weight_VD.dtype), part)

    def _add_gradients(self, gradient_TV: Tensor, part: slice) -> None:
        # Each slice writes its own rows, so no sum is needed, unlike for the weight.
        if self.gradient_TD is None:
            self.gradient_TD = torch.empty_like(self.hidden_TD)
        torch.mm(gradient_TV, self.weight_VD, out=self.gradient_TD[part])
        if self.frozen:
            return
        if self.gradient_VD is None:
            self.gradient_VD = (gradient_TV.t() @ self.hidden_TD[part]).float()
        elif self.weight_VD.dtype == torch.float32:
            self.gradient_VD.addmm_(gradient_TV.t(), self.hidden_TD[part])
        # 16-bit weights: sum over the slices in fp32
        elif gradient_TV.is_cuda and hasattr(torch.ops.aten.addmm, "dtype_out"):
            total = self.gradient_VD
            torch.addmm(total, gradient_TV.t(), self.hidden_TD[part], out_dtype=total.dtype, out=total)
        else:
            self.gradient_VD += gradient_TV.t() @ self.hidden_TD[part]

    def _over_ranks(self, values: Tensor, operation: Any) -> Tensor:
        if self.loss.tensor.size > 1:
            dist.all_reduce(values, operation, group=self.loss.tensor.group)
        return values


def gradient_of_slice(loss: Loss, tokens: int, kind: torch.dtype, device: torch.device) -> Tensor:
    """Return the gradient of the hidden states, (T, 64), of random tokens: as many as a slice of `tokens` has."""
    torch.manual_seed(0)
    weight_VD = torch.randn(loss.vocabulary.padded, 64, device=device, dtype=kind) / 8
    hidden_TD = torch.randn(tokens, 64, device=device, dtype=kind)
    labels_T = torch.randint(loss.rows, (tokens,), device=device)
    slices = _Slices(hidden_TD, weight_VD, labels_T, loss, frozen=True)
    first = next(slices.parts())
    slices.add(first, train=True)
    assert slices.gradient_TD is not None
    return slices.gradient_TD[first]


@cache
def _compiled() -> Any:
    return torch.compile(_losses_and_gradient, dynamic=False)


def _losses_and_gradient(
    logits_TV: Tensor, label_T1: Tensor, counted_T1: Tensor, factors_T1: Tensor, rows: int, z: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """Return what `_Slices.add` computes on one rank, without in-place operations: losses, and d loss / d logits.

    rows: of the padded vocabulary, those that take part.
    """
    bounded_TV = softcap * torch.tanh(logits_TV.float() / softcap) if softcap else logits_TV.float()
    row_V = torch.arange(logits_TV.shape[1], device=logits_TV.device)
    values_TV = bounded_TV.where(row_V < rows, -torch.inf)
    log_z_T1 = values_TV.logsumexp(-1, keepdim=True)
    losses_T = (log_z_T1 - values_TV.gather(1, label_T1)).where(counted_T1, 0).squeeze(-1)
    gradient_TV = factors_T1 * ((values_TV - log_z_T1).exp() * (1 + 2 * z * log_z_T1) - (row_V == label_T1).float())
    if softcap:
        gradient_TV = gradient_TV * (1 - (bounded_TV / softcap).square())
    return losses_T, gradient_TV.to(logits_TV.dtype)
