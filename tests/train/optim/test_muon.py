"""Muon makes updates of whole matrices orthogonal, the same ones on every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.optim.muon import orthogonal
from neoxargs.train.process import setup
from tests.support.layouts import BF16, FP16
from tests.support.ranks import run_ranks
from tests.support.trials import Losses, Training, Trial, resume, train

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
    """Return the change of each weight in the first step, in learning rates."""
    setup.start("gloo", seed=1)
    built = Training(Trial({**MUON, "weight_decay": 0.0, "lr_decay_style": "constant", **config}))
    weights = named_weights(built.engine.deepspeed.module)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    built.step()
    return {name: (before[name] - weight.detach()) / RATE for name, weight in weights.items()}


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


@pytest.mark.shows("optimizer")
def test_the_settings_take_effect() -> None:
    [base], [other] = (
        run_ranks(changes, 1, config)
        for config in ({}, {"optimizer.params.muon_lr": 3 * RATE, "optimizer.params.adam_lr": RATE / 2})
    )
    for name, factor in (("layers.0.attention.dense.weight", 3), ("final_norm.weight", 0.5)):
        torch.testing.assert_close(other[name], factor * base[name], rtol=1e-3, atol=1e-4)


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
    found = run_ranks(train, 2, trials, 4, timeout=200)[0]
    assert found["ZeRO-1"].train == pytest.approx(found["ZeRO-0"].train, rel=1e-5)
    assert found["ZeRO-3"].train == pytest.approx(found["ZeRO-0"].train, rel=1e-5)


@pytest.mark.slow
def test_a_run_continues_from_its_checkpoint(tmp_path: Any) -> None:
    trials = {name: LAYOUTS[name] for name in ("ZeRO-0", "ZeRO-1", "ZeRO-3", "bf16", "pp")}
    found = run_ranks(resume, 2, trials, str(tmp_path), timeout=250)[0]
    for name, (uninterrupted, resumed) in found.items():
        assert resumed == uninterrupted, name
