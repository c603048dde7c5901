"""Models with Mamba or RWKV layers learn the same on every layout, in every precision, and when they are resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.layouts import BF16, FP16, PIPE, RECOMPUTE, TENSOR, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.trials import Losses, Trial, assert_same_curve, curves, resume, staged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 5
MAMBA: dict[str, Any] = {"attention_config": ["mamba", "global"], "mamba_inner_size": 64, "norm": "rmsnorm"}
RWKV: dict[str, Any] = {
    "attention_config": ["rwkv", "global", "rwkv"], "num_layers": 3, "dim_att": 64, "head_size": 16, "ffn_dim": 96,
}  # fmt: skip
DOCUMENTS = RWKV | {"reset_attention_mask": True}
KINDS = {"mamba": MAMBA, "rwkv": RWKV}
ONE = {
    f"{kind}{name}": Trial(model | layout)
    for kind, model in KINDS.items()
    for name, layout in (
        ("", {}), (", recomputed", RECOMPUTE), (", selective", {"checkpoint_activations": "selective"}),
    )
} | {
    "documents": Trial(DOCUMENTS),
    "mamba, pipeline": Trial(MAMBA | PIPE | RECOMPUTE),
    "rwkv, one stage": Trial(RWKV | PIPE),
}  # fmt: skip
TWO = {f"{kind}, ZeRO-{stage}": staged(stage, model) for kind, model in KINDS.items() for stage in (1, 2, 3)} | {
    "mamba, tp2": Trial(MAMBA | TENSOR),
    "mamba, tp2, sequence parallel": Trial(MAMBA | TENSOR | {"sequence_parallel": True}),
    "mamba, pp2": Trial(MAMBA | TWO_STAGES),
    "mamba, ZeRO-3, recomputed": staged(3, MAMBA | RECOMPUTE),
    "rwkv, pp2": Trial(RWKV | TWO_STAGES),
    "rwkv, pp2, recomputed": Trial(RWKV | RECOMPUTE | TWO_STAGES),
    "rwkv, ZeRO-3, recomputed": staged(3, RWKV | RECOMPUTE),
    "documents, pp2": Trial(DOCUMENTS | TWO_STAGES),
    "documents, dp2": Trial(DOCUMENTS),
}
HALF = {
    "mamba, bf16": Trial(MAMBA, BF16),
    "mamba, bf16, ZeRO-2": staged(2, MAMBA, **BF16),
    "mamba, fp16": Trial(MAMBA, FP16),
    "rwkv, bf16": Trial(RWKV, BF16),
    "rwkv, fp16": Trial(RWKV, FP16),
}


@pytest.fixture(scope="module")
def losses() -> dict[str, Losses]:
    return curves({1: ONE | HALF, 2: TWO}, STEPS)


@pytest.mark.parametrize("name", [name for name in ONE | TWO if "," in name])
def test_the_same_curve(losses: dict[str, Losses], name: str) -> None:
    assert_same_curve(losses[name], losses[name.partition(",")[0]])


def test_it_learns_and_documents_are_apart(losses: dict[str, Losses]) -> None:
    for kind in KINDS:
        assert losses[kind].held_out < losses[kind].train[0] - 0.03
    assert abs(losses["documents"].train[0] - losses["rwkv"].train[0]) > 1e-4


@pytest.mark.parametrize("name", HALF)
def test_half_precision_learns_nearly_the_same(losses: dict[str, Losses], name: str) -> None:
    kind = name.partition(",")[0]
    assert losses[name].train == pytest.approx(losses[kind].train, abs=0.03 if kind == "mamba" else 0.02)


def test_a_checkpoint_continues(tmp_path: Path) -> None:
    of_rwkv = {name: TWO[name] for name in ("rwkv, pp2", "rwkv, ZeRO-1")}
    for whole, resumed in run_ranks(resume, 2, of_rwkv, str(tmp_path), timeout=300)[0].values():
        assert resumed == whole
    of_mamba = {name: (ONE | HALF)[name] for name in ("mamba", "mamba, bf16")}
    for whole, resumed in run_ranks(resume, 1, of_mamba, str(tmp_path), timeout=250)[0].values():
        assert resumed == pytest.approx(whole, abs=1e-6)
