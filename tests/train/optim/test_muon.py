"""Muon makes updates of whole matrices orthogonal, the same ones on every layout and as torch.optim.Muon."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deepspeed
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from neoxargs.facts.lr_schedule import rates
from neoxargs.facts.muon import flops, muon_matrices
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.optim.muon import orthogonal
from neoxargs.train.parallel.layers import join_slices
from neoxargs.train.process import setup
from tests.support.layouts import BF16, FP16
from tests.support.ranks import run_ranks
from tests.support.small_gpt import batch, build
from tests.support.trials import SAMPLES, Losses, Training, Trial, resume, resumed, saved_after_three, started, train

MUON = {"optimizer.type": "Muon", "lr": 0.02, "optimizer.params.lr": 0.02}
#: Grouped queries and a gated MLP: weights that consist of several matrices.
FUSED = {"num_kv_heads": 2, "activation": "swiglu"}
RATE = 0.02


def muon(
    stage: int = 0, json: dict[str, Any] | None = None, zero: dict[str, Any] | None = None, **config: Any
) -> Trial:
    partitioned = {"zero_optimization": {"stage": stage} | (zero or {})} if stage else {}
    return Trial({**MUON, "zero_optimization.stage": stage, **config}, {**(json or {}), **partitioned})


OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
LAYOUTS = {
    **{f"ZeRO-{stage}": muon(stage) for stage in range(4)},
    "ZeRO-3, small groups": muon(3, zero={"sub_group_size": 3000}),
    "ZeRO-2 offload": muon(2, zero=OFFLOAD, **{"zero_optimization.offload_optimizer.device": "cpu"}),
    "pp": muon(pipe_parallel_size=2),
    "pipeline": muon(pipe_parallel_size=1),
    "pipeline ZeRO-1": muon(1, pipe_parallel_size=1),
    "tp": muon(model_parallel_size=2),
    "bf16 tp": muon(0, BF16, model_parallel_size=2),
    "bf16": muon(0, BF16),
    "bf16 ZeRO-2": muon(2, BF16),
    "bf16 ZeRO-3": muon(3, BF16),
    "bf16 pp": muon(0, BF16, pipe_parallel_size=2),
    "fp16": muon(0, FP16),
}
EXPERTS = {"moe_num_experts": 4, **FUSED}


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6), (3, 7, 12)])
@pytest.mark.parametrize("gram", [True, False])
def test_the_iteration_makes_matrices_orthogonal(shape: tuple[int, ...], gram: bool) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = orthogonal(x, gram)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    assert found.shape == x.shape
    singular = torch.linalg.svdvals(found)
    assert singular.min() > 0.6 and singular.max() < 1.3
    # The same directions: only the singular values change.
    aligned = u.mT @ found @ v.mT
    assert (aligned - torch.diag_embed(torch.diagonal(aligned, dim1=-2, dim2=-1))).abs().max() < 1e-3


def changes(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the change of each weight in the first step, in learning rates; and reported rates."""
    setup.start("gloo", seed=1)
    built = Training(Trial({**MUON, "weight_decay": 0.0, "lr_decay_style": "constant", **config}))
    weights = named_weights(built.engine.deepspeed.module)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    reports = built.engine.train_step(built.batches).reports
    moved = {name: (before[name] - weight.detach()) / RATE for name, weight in weights.items()}
    return moved | {name: torch.tensor(value / RATE) for name, value in reports.items()}


@pytest.mark.shows("optimizer")
@pytest.mark.parametrize("method", ["gram", "standard"])
@pytest.mark.parametrize("engine", [0, 1])
def test_a_step_is_orthogonal_in_fp32_without_zero(engine: int, method: str) -> None:
    config = {**EXPERTS, "no_weight_tying": True, "pipe_parallel_size": engine, "optimizer.params.ns_method": method}
    [moved] = run_ranks(changes, 1, config)
    # 4 queries of 8 elements in 2 groups, each with one key and one value.
    by_group = moved["layers.0.attention.query_key_value.weight"].unflatten(0, (2, -1))
    query, key, value = (part.flatten(0, 1) for part in by_group.split([16, 8, 8], dim=1))
    experts = moved["layers.1.mlp.experts.dense_h_to_4h.weight"]
    for matrix in (query, key, value, moved["layers.0.attention.dense.weight"], *experts.chunk(2, dim=1)):
        singular = torch.linalg.svdvals(matrix) / max(1.0, matrix.size(-2) / matrix.size(-1)) ** 0.5
        assert singular.median() > 0.4 and singular.max() < 1.3
    for name in (
        "embedding.word_embeddings.weight",
        "output.weight",
        "final_norm.weight",
        "layers.0.attention.dense.bias",
    ):
        largest = moved[name].abs().max()
        assert largest == pytest.approx(1, abs=1e-2), name  # Adam's first step


def products(trials: dict[str, Trial]) -> dict[str, tuple[int, int]]:
    """Return the operations of the matrix products in an optimizer step, as torch counts them and as computed."""
    found = {}
    for name, training in started(trials):
        optimizer = training.engine.deepspeed.optimizer
        step, counter = optimizer.step, FlopCounterMode(display=False)

        def counted(*given: Any, step: Any = step, counter: Any = counter) -> Any:
            with counter:
                return step(*given)

        optimizer.step = counted
        training.step()
        params, layers = training.config.optimizer_params, range(training.config.shape.num_layers)
        each = [flops(some, params.ns_method == "gram", params.ns_steps)
                for layer in layers for some in muon_matrices(training.config, layer)]  # fmt: skip
        found[name] = counter.get_total_flops(), sum(each)
    return found


def test_the_operations_of_the_iteration_are_those_that_are_counted() -> None:
    trials = {
        f"{name} {method}": muon(**config, **{"optimizer.params.ns_method": method})
        for method in ("gram", "standard")
        for name, config in {
            "plain": {}, "fused": FUSED, "one matrix": {**FUSED, "optimizer.params.split_qkv": False},
            "experts": {**EXPERTS, "moe_expert_interval": 2, "moe_num_shared_experts": 2},
            "4 steps": {"optimizer.params.ns_steps": 4},
        }.items()
    }  # fmt: skip
    [found] = run_ranks(products, 1, trials)
    assert all(counted == computed > 0 for counted, computed in found.values()), found


@pytest.mark.shows("optimizer")
def test_the_settings_take_effect() -> None:
    [base], [other] = (
        run_ranks(changes, 1, config)
        for config in ({}, {"optimizer.params.muon_lr": 3 * RATE, "optimizer.params.adam_lr": RATE / 2})
    )
    for name, factor in (("layers.0.attention.dense.weight", 3), ("final_norm.weight", 0.5)):
        torch.testing.assert_close(other[name], factor * base[name], rtol=1e-3, atol=1e-4)
    assert {name: float(rate) for name, rate in other.items() if name not in base} == {"lr/muon": 3, "lr/adam": 0.5}


STEPS = 5
#: Arguments of torch.optim.Muon, and the same for ours.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "as AdamW": ({"adjust_lr_fn": "match_rms_adamw", "nesterov": False, "momentum": 0.9, "ns_steps": 4},) * 2,
    # What Megatron-LM's flags say: its `spectral` is the factor of `match_rms_adamw` without 0.2.
    "spectral": ({"adjust_lr_fn": "match_rms_adamw"}, {"adjust_lr_fn": "spectral", "extra_scale_factor": 0.2}),
    "whole qkv": ({}, {"split_qkv": False}),
    # It squares the matrix first, and so rounds its small singular values.
    "gram": ({}, {"ns_method": "gram"}),
}


def variant(name: str, stage: int = 0, **config: Any) -> Trial:
    params = {f"optimizer.params.{key}": value for key, value in {"ns_method": "standard", **VARIANTS[name][1]}.items()}
    return muon(stage, **FUSED, **params, use_bias_in_attn_linear=False, **config)


def of_each_rank(trials: dict[str, Trial]) -> dict[str, dict[str, tuple[Tensor, Any]]]:
    """Return what this rank has of each weight after some steps, and which slice it is."""
    found = {}
    for name, training in started(trials):
        for _ in range(STEPS):
            training.step()
        weights = named_weights(training.engine.deepspeed.module)
        partitioned = [weight for weight in weights.values() if hasattr(weight, "ds_id")]
        with deepspeed.zero.GatheredParameters(partitioned):
            found[name] = {
                name: (weight.detach().clone(), getattr(weight, "tensor_shard", None))
                for name, weight in weights.items()
            }
    return found


def trained(world: int, trials: dict[str, Trial]) -> dict[str, dict[str, Tensor]]:
    """Return trial -> weights after some steps, whole, of all stages."""
    found: dict[str, dict[str, Tensor]] = {name: {} for name in trials}
    ranks = run_ranks(of_each_rank, world, trials, timeout=400)
    for name in trials:
        for weight in [weight for rank in ranks for weight in rank[name]]:
            slices = [rank[name][weight] for rank in ranks if weight in rank[name]]
            shard = slices[0][1]
            whole = [x for x, _ in slices[: shard.size if shard else 1]]
            found[name][weight] = join_slices(whole, shard) if shard else whole[0]
    return found


def matrices(name: str, weight: Tensor, split_qkv: bool) -> Iterator[Tensor]:
    """Yield views of the matrices of a weight of FUSED: 4 queries in 2 groups with a key and a value each, 8 wide."""
    if name.endswith("query_key_value.weight") and split_qkv:
        by_group = weight.view(2, 32, -1)
        yield from (by_group[:, rows] for rows in (slice(16), slice(16, 24), slice(24, 32)))
    elif name.endswith("dense_h_to_4h.weight"):
        yield from weight.chunk(2)
    else:
        yield weight


def with_torch(name: str) -> dict[str, Tensor]:
    """Return the weights after the same steps with torch.optim.Muon on the matrices, and AdamW for the rest."""
    setup.start("gloo", seed=1)
    arguments, config = VARIANTS[name][0], Training(variant(name)).config
    model, splits = build(config, seed=1), config.optimizer_params.split_qkv
    weights = named_weights(model)
    hidden = {key for key, weight in weights.items() if key.startswith("layers.") and weight.dim() == 2}
    views = [x for key in sorted(hidden) for x in matrices(key, weights[key].detach(), splits)]
    parts = [nn.Parameter(x.reshape(-1, x.size(-1)).clone()) for x in views]
    decayed = [w for key, w in weights.items() if key not in hidden and w.dim() > 1]
    exempt = [w for w in weights.values() if w.dim() == 1]
    rest = [{"params": decayed, "weight_decay": 0.1}, {"params": exempt, "weight_decay": 0.0}]
    optimizers = torch.optim.Muon(parts, weight_decay=0.1, **arguments), torch.optim.AdamW(rest)
    for iteration in range(STEPS):
        model.zero_grad()
        model(**vars(MicroBatch(*batch(SAMPLES, seed=iteration % 5)))).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradients = [x for key in sorted(hidden) for x in matrices(key, weights[key].grad, splits)]
        for part, gradient in zip(parts, gradients, strict=True):
            part.grad = gradient.reshape(part.shape)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rates(config)(iteration)
            # It iterates in bf16, where the order of additions shows.
            with patch.object(Tensor, "bfloat16", Tensor.clone):
                optimizer.step()
        for view, part in zip(views, parts, strict=True):
            view.copy_(part.detach().view_as(view))
    return {key: weight.detach() for key, weight in weights.items()}


PLACES: dict[int, dict[str, Trial]] = {
    1: {name: variant(name) for name in VARIANTS},
    2: {
        **{f"dp2 ZeRO-{stage}": variant("defaults", stage) for stage in range(4)},
        "dp2 ZeRO-1, as AdamW": variant("as AdamW", 1),
        "pp2": variant("defaults", pipe_parallel_size=2),
        "pp2 ZeRO-1": variant("defaults", 1, pipe_parallel_size=2),
        "tp2": variant("defaults", model_parallel_size=2),
        "tp2 sequence, as AdamW": variant("as AdamW", model_parallel_size=2, sequence_parallel=True),
        "tp2 whole qkv": variant("whole qkv", model_parallel_size=2),
    },
    4: {
        **{f"dp2 tp2 ZeRO-{stage}": variant("defaults", stage, model_parallel_size=2) for stage in (1, 2, 3)},
        "dp2 pp2 ZeRO-1": variant("defaults", 1, pipe_parallel_size=2),
        "tp2 pp2": variant("defaults", model_parallel_size=2, pipe_parallel_size=2),
    },
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.shows(
    "optimizer.params.nesterov", "optimizer.params.ns_steps", "optimizer.params.adjust_lr_fn",
    "optimizer.params.extra_scale_factor", "optimizer.params.split_qkv",
)  # fmt: skip
@pytest.mark.parametrize("world", PLACES)
def test_the_weights_are_those_of_torch(world: int) -> None:
    reference = {name: run_ranks(with_torch, 1, name)[0] for name in VARIANTS}
    for place, found in trained(world, PLACES[world]).items():
        name = next((name for name in VARIANTS if place.endswith(name)), "defaults")
        expected, near = reference[name], 1e-4 if name == "gram" else 2e-6
        assert found.keys() == expected.keys()
        for weight, value in expected.items():
            apart = float((found[weight] - value).abs().max())
            assert apart <= near, f"{place}, {weight}: {apart}"


@pytest.mark.slow
def test_every_variant_has_weights_of_its_own() -> None:
    reference = [run_ranks(with_torch, 1, name)[0] for name in VARIANTS if name != "gram"]
    for one, other in itertools.combinations(reference, 2):
        names = ("layers.0.attention.query_key_value.weight", "layers.0.mlp.dense_4h_to_h.weight")
        assert any((one[name] - other[name]).abs().max() > 1e-3 for name in names)


@pytest.fixture(scope="module")
def losses() -> dict[str, Losses]:
    found: dict[str, Losses] = run_ranks(train, 2, LAYOUTS, 5, timeout=400)[0]
    return found


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "ZeRO-0"])
def test_every_layout_takes_the_same_steps(losses: dict[str, Losses], name: str) -> None:
    near = 1e-5 if "16" not in name else 3e-2
    assert losses[name].train == pytest.approx(losses["ZeRO-0"].train, rel=near)
    assert losses[name].held_out == pytest.approx(losses["ZeRO-0"].held_out, rel=near)


@pytest.mark.slow
def test_fused_weights_are_whole_with_zero() -> None:
    trials = {f"ZeRO-{stage}": muon(stage, **EXPERTS) for stage in (0, 1, 3)}
    trials["tp"] = muon(model_parallel_size=2, **EXPERTS)
    found = run_ranks(train, 2, trials, 4, timeout=200)[0]
    for name in trials:
        assert found[name].train == pytest.approx(found["ZeRO-0"].train, rel=1e-5), name


@pytest.mark.slow
def test_a_run_continues_from_its_checkpoint(tmp_path: Any) -> None:
    trials = {name: LAYOUTS[name] for name in ("ZeRO-0", "ZeRO-1", "ZeRO-3", "bf16", "pp", "tp")}
    found = run_ranks(resume, 2, trials, str(tmp_path), timeout=250)[0]
    for name, (uninterrupted, continued) in found.items():
        assert continued == uninterrupted, name


ELSEWHERE = {
    **{f"ZeRO-{stage}": variant("gram", stage) for stage in (0, 1, 3)},
    "pp": variant("gram", pipe_parallel_size=2),
    "pp ZeRO-1": variant("gram", 1, pipe_parallel_size=2),
    "tp": variant("gram", model_parallel_size=2),
}


@pytest.mark.slow
@pytest.mark.parametrize(("world", "place"), [(1, "dp1"), (2, "ZeRO-3"), (2, "tp")])
def test_a_checkpoint_is_resumed_in_every_layout(world: int, place: str, tmp_path: Path) -> None:
    """The momentum of matrices and the moments of other weights are those of the run that saved them."""
    alone = run_ranks(saved_after_three, world, ELSEWHERE.get(place, variant("gram")), str(tmp_path))[0]
    for name, losses in run_ranks(resumed, 2, ELSEWHERE, str(tmp_path), timeout=250)[0].items():
        assert losses == pytest.approx(alone, rel=2e-6), name
