"""The sliced, vocabulary-parallel cross entropy equals torch's on whole logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from neoxargs.train.losses import cross_entropy as module
from neoxargs.train.losses.cross_entropy import IGNORED, Loss, Readout, Vocabulary
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.parallel.layers import Ranks
from neoxargs.train.process.mesh import ALONE, Axis
from tests.support.ranks import all_ranks, run_ranks
from tests.support.small_gpt import small

#: Rows from the 21st on are padding: some of the last of two ranks' 12 rows, all of the last of three ranks' 16.
SIZE, HIDDEN = 21, 8


def case(padded: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden (2, 6, hidden), weight (padded, hidden), labels (2, 6) of which three do not count."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(2, 6, HIDDEN, generator=generator).to(dtype)
    weight = F.pad(torch.randn(SIZE, HIDDEN, generator=generator), (0, 0, 0, padded - SIZE), value=3.0).to(dtype)
    labels = torch.randint(SIZE, (2, 6), generator=generator)
    labels[0, 2] = labels[1, 0] = labels[1, 5] = IGNORED
    return hidden.requires_grad_(), weight.requires_grad_(), labels


def trained_on(labels: Tensor) -> MicroBatch:
    return MicroBatch(labels, labels)


def by_torch(hidden: Tensor, weight: Tensor, labels: Tensor, rows: int = SIZE) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight[:rows]).flatten(0, 1).float(), labels.flatten())


def gradients(loss: Tensor, *tensors: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss * 3, tensors))  # 3: the loss scale and what is done after must come through


def assert_same(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, *inputs), gradients(theirs, *inputs))


@pytest.mark.parametrize("at_once", [1, 40, 10**6], ids=["a token at a time", "two slices", "all at once"])
@pytest.mark.parametrize("padded", [SIZE, 32])
def test_equals_torch(at_once: int, padded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.LOGITS_AT_ONCE, "cpu", at_once)
    hidden, weight, labels = case(padded)
    ours = Loss(Vocabulary(SIZE, padded))(Readout(hidden, weight), trained_on(labels))
    theirs = by_torch(hidden, weight, labels)
    assert_same(ours, theirs, hidden, weight)


@pytest.mark.parametrize("over_padding", [False, True])
def test_padding_rows_take_part_in_the_softmax_if_asked_for(over_padding: bool) -> None:
    hidden, weight, labels = case(32)
    config = small(softmax_over_padding=over_padding)
    loss = Loss.of(config, Vocabulary(SIZE, 32), Ranks())
    ours = loss(Readout(hidden, weight), trained_on(labels))
    theirs = by_torch(hidden, weight, labels, 32 if over_padding else SIZE)
    assert_same(ours, theirs, hidden, weight)
    assert loss.logits(Readout(hidden, weight)).shape[-1] == SIZE  # generation never draws padding


@pytest.mark.parametrize("padded", [SIZE, 32])
def test_z_loss_is_in_the_gradient_only(padded: int) -> None:
    hidden, weight, labels = case(padded)
    ours = Loss(Vocabulary(SIZE, padded), z=0.1)(Readout(hidden, weight), trained_on(labels))
    plain = by_torch(hidden, weight, labels)
    torch.testing.assert_close(ours, plain)
    log_z = F.linear(hidden, weight[:SIZE]).logsumexp(-1)
    penalised = plain + 0.1 * log_z[labels != IGNORED].square().mean()
    torch.testing.assert_close(gradients(ours, hidden, weight), gradients(penalised, hidden, weight))


@pytest.mark.parametrize("at_once", [40, 10**6])
def test_bounded_logits(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.LOGITS_AT_ONCE, "cpu", at_once)
    hidden, weight, labels = case(32)
    loss = Loss.of(small(final_logit_softcapping=1.5), Vocabulary(SIZE, 32), Ranks())
    logits = 1.5 * torch.tanh(F.linear(hidden, weight[:SIZE]) / 1.5)
    ours = loss(Readout(hidden, weight), trained_on(labels))
    theirs = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(loss.logits(Readout(hidden, weight)), logits)
    torch.testing.assert_close(gradients(ours, hidden, weight), gradients(theirs, hidden, weight))


@pytest.mark.parametrize("bound", [None, 1.5])
@pytest.mark.parametrize("z", [0.0, 0.1])
def test_the_function_that_is_compiled_computes_the_same(
    bound: float | None, z: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, labels = case(32)
    config = small(compile_layers=True, final_logit_softcapping=bound, z_loss=z)
    loss = Loss.of(config, Vocabulary(SIZE, 32), Ranks())
    assert loss.compiled
    theirs = loss(Readout(hidden, weight), trained_on(labels))
    expected = gradients(theirs, hidden, weight)
    calls: list[torch.Size] = []

    def uncompiled(logits: Tensor, *rest: Any) -> Any:
        calls.append(logits.shape)
        return module._losses_and_gradient(logits, *rest)

    monkeypatch.setattr(module, "should_compile", lambda _: True)
    monkeypatch.setattr(module, "_compiled", lambda: uncompiled)
    ours = loss(Readout(hidden, weight), trained_on(labels))
    assert calls == [(12, 32)]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, hidden, weight), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_fp32(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.LOGITS_AT_ONCE, "cpu", 40)
    hidden, weight, labels = case(32, dtype)
    ours = Loss(Vocabulary(SIZE, 32))(Readout(hidden, weight), trained_on(labels))
    theirs = by_torch(hidden, weight, labels)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    for mine, other in zip(gradients(ours, hidden, weight), gradients(theirs, hidden, weight), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, other, rtol=3e-2, atol=1e-2)


class Sizes(TorchDispatchMode):
    """The types of all tensors made with so many numbers."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers, self.types = numbers, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.numel() == self.numbers and out.is_floating_point():
            self.types.add(out.dtype)
        return out


@pytest.mark.shows("fp16-lm-cross-entropy")
@pytest.mark.parametrize("half", [False, True])
def test_logits_may_stay_in_fp16(half: bool) -> None:
    hidden, weight, labels = case(32, torch.float16)
    with Sizes(12 * 32) as sizes:
        ours = Loss(Vocabulary(SIZE, 32), half=half)(Readout(hidden, weight), trained_on(labels))
    assert sizes.types == ({torch.float16} if half else {torch.float16, torch.float32})
    theirs = by_torch(hidden, weight, labels)
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(gradients(ours, hidden, weight), gradients(theirs, hidden, weight), rtol=3e-2, atol=1e-2)


def test_no_label_counts() -> None:
    hidden, weight, labels = case(SIZE)
    loss = Loss(Vocabulary(SIZE, SIZE))(Readout(hidden, weight), trained_on(torch.full_like(labels, IGNORED)))
    assert loss == 0
    assert not any(gradient.any() for gradient in gradients(loss, hidden, weight))


def test_even_logits_give_the_logarithm_of_the_vocabulary_without_its_padding() -> None:
    hidden, weight, labels = case(32)
    loss = Loss(Vocabulary(SIZE, 32))(Readout(torch.zeros_like(hidden), weight), trained_on(labels))
    assert loss.item() == pytest.approx(math.log(SIZE))


def test_evaluation_computes_no_gradients() -> None:
    hidden, weight, labels = case(SIZE)
    with torch.no_grad():
        loss = Loss(Vocabulary(SIZE, SIZE))(Readout(hidden, weight), trained_on(labels))
    assert not loss.requires_grad
    torch.testing.assert_close(loss, by_torch(hidden, weight, labels).detach())


def on_ranks(padded: int, over_padding: bool) -> tuple[Tensor, list[Tensor], Tensor]:
    axis = all_ranks()
    hidden, weight, labels = case(padded)
    mine = weight.detach().chunk(axis.size)[axis.rank].clone().requires_grad_()
    loss_function = Loss(Vocabulary(SIZE, padded), axis, over_padding=over_padding)
    loss = loss_function(Readout(hidden, mine), trained_on(labels))
    return loss.detach(), gradients(loss, hidden, mine), loss_function.logits(Readout(hidden, mine))


@pytest.mark.parametrize("over_padding", [False, True])
@pytest.mark.parametrize(("ranks", "padded"), [(2, 24), (3, 48)], ids=["partly padding", "one rank only padding"])
def test_the_same_on_tensor_parallel_ranks(ranks: int, padded: int, over_padding: bool) -> None:
    hidden, weight, labels = case(padded)
    theirs = by_torch(hidden, weight, labels, padded if over_padding else SIZE)
    of_hidden, of_weight = gradients(theirs, hidden, weight)
    results = run_ranks(on_ranks, ranks, padded, over_padding)
    for loss, (mine, _), logits in results:
        torch.testing.assert_close(loss, theirs.detach())
        torch.testing.assert_close(mine, of_hidden)
        torch.testing.assert_close(logits, F.linear(hidden, weight[:SIZE]).detach())
    torch.testing.assert_close(torch.cat([of_mine for _, (_, of_mine), _ in results]), of_weight)


def weighted_logs(ranks_of: Axis, padded: int, softcap: float) -> list[Tensor]:
    """Log-probabilities, and the gradients of a sum of them with a weight of each token."""
    hidden, weight, labels = case(padded)
    mine = weight.detach().chunk(ranks_of.size)[ranks_of.rank].clone().requires_grad_()
    loss = Loss(Vocabulary(SIZE, padded), ranks_of, softcap=softcap)
    logs = loss.log_probabilities(Readout(hidden, mine), labels)
    return [logs.detach(), *gradients((logs * weights_of_tokens(logs)).sum(), hidden, mine)]


def weights_of_tokens(logs: Tensor) -> Tensor:
    return torch.arange(1.0, logs.numel() + 1).view_as(logs)


def log_softmax(padded: int, softcap: float) -> list[Tensor]:
    hidden, weight, labels = case(padded)
    logits = F.linear(hidden, weight[:SIZE])
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    of_labels = logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    logs = of_labels.masked_fill(labels == IGNORED, 0)
    return [logs.detach(), *gradients((logs * weights_of_tokens(logs)).sum(), hidden, weight)]


def logs_on_ranks(padded: int, softcap: float) -> list[Tensor]:
    return weighted_logs(all_ranks(), padded, softcap)


@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_log_probabilities_of_labels(softcap: float) -> None:
    torch.testing.assert_close(weighted_logs(ALONE, 24, softcap), log_softmax(24, softcap))


def test_log_probabilities_on_tensor_parallel_ranks() -> None:
    logs, of_hidden, of_weight = log_softmax(24, 0.0)
    results = run_ranks(logs_on_ranks, 2, 24, 0.0)
    for found, mine, _ in results:
        torch.testing.assert_close(found, logs)
        torch.testing.assert_close(mine, of_hidden)
    torch.testing.assert_close(torch.cat([part for _, _, part in results]), of_weight)
