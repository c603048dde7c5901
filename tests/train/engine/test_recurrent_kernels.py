"""Kernels of other packages compute what our operators do, run where they can, and are refused where they differ."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.train.engine import recurrent_kernels
from neoxargs.train.engine.compiled import distance
from neoxargs.train.engine.recurrent_kernels import OFFERS, Offer, use_kernels
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, Weights
from neoxargs.train.process import mesh, setup
from tests.support import recurrent_packages, simulated_gpu
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch, randomised, small
from tests.support.trials import Training, Trial, staged

CPU, ALONE = torch.device("cpu"), Ranks()
MAMBA = {"attention_config": ["mamba", "mamba"], "mamba_inner_size": 64, "pos_emb": "none"}
RWKV = {"attention_config": ["rwkv", "rwkv"], "dim_att": 32, "head_size": 8, "ffn_dim": 96, "pos_emb": "none"}
ASKED = {offer.parameter: True for offer in OFFERS}
#: Sizes of one layer of each.
LAYERS: list[Any] = [
    SimpleNamespace(A_log=torch.empty(24, 16)), SimpleNamespace(weight=torch.empty(24, 1, 4)),
    SimpleNamespace(time_faaaa=torch.empty(2, 8)),
]  # fmt: skip
each = pytest.mark.parametrize(("offer", "layer"), [*zip(OFFERS, LAYERS, strict=True)], ids=[*ASKED])


def distances(offer: Offer, layer: Any, kernel: Callable[..., Any], seq: int = 100) -> list[float]:
    """Return the distances of output and gradients with a kernel from those of our operator."""
    torch.manual_seed(3)
    drawn = offer.examples(layer, seq)
    found = recurrent_kernels._results(lambda *inputs: offer.fused(kernel, *inputs), drawn)
    return [distance(*pair) for pair in zip(found, recurrent_kernels._results(offer.ours, drawn), strict=True)]


@each
def test_results_are_those_of_our_operator(offer: Offer, layer: Any) -> None:
    assert max(distances(offer, layer, getattr(recurrent_packages, offer.function))) < 1e-5


#: The packages' own functions in plain torch, where the package is installed.
REFERENCES = {
    "mamba_selective_scan_fusion": ("mamba_ssm.ops.selective_scan_interface", "selective_scan_ref"),
    "mamba_causal_conv_fusion": ("causal_conv1d.causal_conv1d_interface", "causal_conv1d_ref"),
    "rwkv_wkv_fusion": ("fla.ops.rwkv6.recurrent_naive", "naive_recurrent_rwkv6"),
}


@each
def test_results_are_those_of_the_packages(offer: Offer, layer: Any) -> None:
    module, name = REFERENCES[offer.parameter]
    function = getattr(pytest.importorskip(module, exc_type=ImportError), name)

    def heads_first(*inputs: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
        *tokens, u = inputs
        y, state = function(*(x.transpose(1, 2) for x in tokens), u, **named)
        return y.transpose(1, 2), state

    assert max(distances(offer, layer, heads_first if "rwkv" in name else function)) < 1e-5


def losses(
    changes: dict[str, Any], with_kernels: bool, ranks: Ranks = ALONE, offers: Sequence[Offer] = OFFERS
) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    model = randomised(GPT(small(**changes), VOCABULARY, Weights(ranks=ranks), Shared()))
    for offer in offers if with_kernels else ():
        for layer in model.modules():
            if isinstance(layer, offer.layer):
                layer.kernel = getattr(recurrent_packages, offer.function)  # type: ignore[assignment]
    loss = model(*batch(2))
    return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.shows(*ASKED)
@pytest.mark.parametrize("changes", [MAMBA, {**MAMBA, "mamba_use_bias_in_conv": False}, RWKV], ids=repr)
def test_models_compute_the_same(changes: dict[str, Any]) -> None:
    before = dict(recurrent_packages.calls)
    (loss, gradients), (expected, others) = losses(changes, True), losses(changes, False)
    assert sum(recurrent_packages.calls.values()) > sum(before.values())
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
    assert max(distance(*pair) for pair in zip(gradients, others, strict=True)) < 1e-4


def differences_of_context_ranks() -> dict[str, float]:
    """Return by how much kernels change gradients of ranks that divide a sequence."""
    found = {}
    for style in ("all_to_all", "ring"):
        ranks = Ranks.of(mesh.build_mesh(small(context_parallel_size=2, context_parallel_style=style)))
        for name, changes in (("Mamba", MAMBA), ("RWKV", RWKV)):
            before = sum(recurrent_packages.calls.values())
            pairs = zip(*(losses(changes, each, ranks, OFFERS[1:])[1] for each in (True, False)), strict=True)
            found[f"{name}, {style}"] = max(distance(*pair) for pair in pairs)
            assert sum(recurrent_packages.calls.values()) > before
    return found


@pytest.mark.slow
def test_context_ranks_compute_the_same() -> None:
    for found in run_ranks(differences_of_context_ranks, 2):
        assert all(each < 1e-4 for each in found.values()), found


@pytest.mark.parametrize("changes", [MAMBA, RWKV], ids=["Mamba", "RWKV"])
def test_documents_are_computed_by_our_operators(changes: dict[str, Any]) -> None:
    before = dict(recurrent_packages.calls)
    documents = {**changes, "reset_attention_mask": True}
    (loss, _), (expected, _) = losses(documents, True), losses(documents, False)
    assert recurrent_packages.calls == before
    assert loss == expected


def checked(offer: Offer, layer: Any, kernel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    module = SimpleNamespace(**{offer.function: kernel})
    monkeypatch.setattr(recurrent_kernels, "import_module", lambda name: module)
    before = torch.get_rng_state()
    found = recurrent_kernels._checked(offer, layer, small(), torch.float32, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    return found


class WrongGradient(torch.autograd.Function):
    """The identity, with the gradient of its double."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


@each
def test_a_kernel_that_differs_is_not_used(offer: Offer, layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(recurrent_packages, offer.function)

    def planted(change: Callable[[Tensor], Tensor], of_state: bool = False) -> Callable[..., Any]:
        def kernel(*inputs: Any, **named: Any) -> Any:
            found = right(*inputs, **named)
            if not isinstance(found, tuple):
                return change(found)
            return (found[0], change(found[1])) if of_state else (change(found[0]), found[1])

        return kernel

    assert checked(offer, layer, right, monkeypatch) == (right, "")
    for change in (lambda y: y / 0, lambda y: y.flip(-1), WrongGradient.apply):
        for of_state in (False, True):
            kernel, reason = checked(offer, layer, planted(change, of_state), monkeypatch)
            assert kernel is None
            assert "differ" in reason
    kernel, reason = checked(offer, layer, planted(lambda y: y.nothing), monkeypatch)
    assert kernel is None
    assert "nothing" in reason


def asked(config: Config) -> list[str]:
    return use_kernels(GPT(config, VOCABULARY, Weights(), Shared()), config, CPU)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({}, "CPU"), ({"deterministic": True}, "deterministic"), ({"reset_attention_mask": True}, "document"),
     ({"zero_optimization.stage": 3}, "ZeRO")],
)  # fmt: skip
def test_the_reason_for_our_operators_is_told(changes: dict[str, Any], word: str) -> None:
    lines = asked(small(**MAMBA, **ASKED, **changes))
    assert [line.partition(":")[0] for line in lines] == list(ASKED)[:2]  # no line about layers that are not there
    assert all(word in line for line in lines)
    assert asked(small(**MAMBA)) == []


def test_a_kernel_without_gradients_of_its_state_computes_no_part_of_a_sequence() -> None:
    scan, convolution = asked(small(**MAMBA, **ASKED, context_parallel_size=2))
    assert "state" in scan and "CPU" in convolution


def test_a_package_that_is_missing_is_told() -> None:
    if importlib.util.find_spec("mamba_ssm"):
        pytest.skip("mamba-ssm is installed")
    kernel, reason = recurrent_kernels._checked(OFFERS[0], LAYERS[0], small(), torch.float32, CPU)
    assert kernel is None
    assert "mamba-ssm cannot be imported" in reason


#: Lines about kernels, losses, and calls of each kernel.
Outcome = tuple[list[str], list[float], dict[str, int]]


def train_on_gpu(trials: dict[str, Trial], packages: bool) -> dict[str, Outcome]:
    if packages:
        recurrent_packages.install()
    setup.start("nccl", seed=1)
    found = {}
    for name, trial in trials.items():
        recurrent_packages.calls |= dict.fromkeys(recurrent_packages.calls, 0)
        training = Training(trial)
        steps = [training.step() for _ in range(2)]
        found[name] = training.engine.kernels, steps, dict(recurrent_packages.calls)
        mesh.destroy_groups()
    return found


@pytest.mark.slow
@pytest.mark.compiler
def test_they_train_on_a_simulated_gpu() -> None:
    """The functions of tests/support/recurrent_packages.py stand for the packages."""
    trials = {
        "Mamba": Trial(MAMBA | ASKED),
        "Mamba, bf16": staged(1, MAMBA | ASKED | {"precision": "bfloat16"}, bf16={"enabled": True}),
        "RWKV": Trial(RWKV | ASKED),
        "RWKV, recomputed": Trial(RWKV | ASKED | {"checkpoint_activations": True}),
    }
    [found] = run_ranks(train_on_gpu, 1, trials, True, timeout=400, on=simulated_gpu.MACHINE)
    [missing] = run_ranks(train_on_gpu, 1, trials, False, timeout=400, on=simulated_gpu.MACHINE)
    for name, (lines, steps, calls) in found.items():
        expected = list(ASKED)[:2] if "Mamba" in name else list(ASKED)[2:]
        assert [line.partition(":")[0] for line in lines] == expected
        assert all(line.endswith("1.0") for line in lines), lines
        assert min(sorted(calls.values())[-len(expected) :]) > 4
        others, without, none = missing[name]
        assert all("cannot be imported" in line for line in others)
        assert not any(none.values())
        assert steps == pytest.approx(without, abs=2e-3 if "bf16" in name else 1e-5)
