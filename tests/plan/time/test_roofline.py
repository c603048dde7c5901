"""The time of a layer's kernels, against published measurements that no assumption was fitted to."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.plan.command import plan_of
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.options import PlanOptions
from tests.support.paths import CONFIGS
from tests.support.plans import planned

#: Narayanan et al. 2021 (arXiv:2104.04473, table 1): layers, hidden, heads, tensor, pipeline, GPUs, batch, TFLOP/s of
#: each A100 with recomputation. The micro batch is not in the table: it is as large as fits.
TABLE = [
    (24, 2304, 24, 1, 1, 32, 512, 137, 16), (40, 6144, 48, 8, 1, 256, 1024, 135, 8),
    (60, 10240, 80, 8, 4, 1024, 1792, 140, 4), (96, 16384, 128, 8, 16, 1920, 2160, 155, 2),
    (128, 25600, 160, 8, 64, 3072, 3072, 163, 1),
]  # fmt: skip


def plan_with(folder: Path, lines: dict[str, object], gpus: int, **options: object) -> Plan:
    path = folder / "run.yml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in lines.items()))
    return planned(str(path), gpus=gpus, device="A100", **options)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}x{row[1]}")
def test_published_rates_of_gpt_on_a100(row: tuple[int, ...], tmp_path: Path) -> None:
    layers, hidden, heads, tensor, pipe, gpus, batch, measured, micro = row
    steps = batch // micro // (gpus // tensor // pipe)
    lines: dict[str, object] = {
        "num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "seq_length": 2048,
        "max_position_embeddings": 2048, "padded_vocab_size": 51200, "model_parallel_size": tensor,
        "pipe_parallel_size": pipe, "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps,
        "precision": "fp16", "checkpoint_activations": True, "train_iters": 1, "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
    }  # fmt: skip
    # the table was measured with care for every loss, so that the model of kernels and messages gives it
    plan = plan_with(tmp_path, lines, gpus, attention="unfused", assume=["slowdown=1"])
    assert plan.speed.tflops_per_device * 4 / 3 == pytest.approx(measured, rel=0.12)


SMALL: dict[str, object] = {
    "num_layers": 4, "hidden_size": 2048, "num_attention_heads": 16, "padded_vocab_size": 50304, "pos_emb": "rotary",
    "precision": "bfloat16", "train_iters": 1,
}  # fmt: skip


def rate(folder: Path, **changes: object) -> float:
    return plan_with(folder, {**SMALL, **changes}, 1).speed.tflops_per_device


def test_long_sequences_cost_half_of_their_scores(tmp_path: Path) -> None:
    """Model FLOPs count all scores; a fused causal kernel computes half of them, at its own rate."""
    plan = plan_with(tmp_path, {**SMALL, "seq_length": 131072, "max_position_embeddings": 131072,
                              "train_micro_batch_size_per_gpu": 1}, 1)  # fmt: skip
    assumed, device = plan.target.assumed, plan.target.device
    products = 7 * 2 * 131072**2 * 2048 * 4 / 2 / (device.half * assumed.attention * 131072 / (131072 + 400))
    assert 0.75 < products / plan.speed.compute < 0.95


def test_a_dimension_that_tensor_cores_do_not_like_is_slow(tmp_path: Path) -> None:
    common = {"seq_length": 2048, "max_position_embeddings": 2048, "train_micro_batch_size_per_gpu": 8}
    aligned, odd = rate(tmp_path, **common), rate(tmp_path, **common, hidden_size=2056, num_attention_heads=4)
    assert odd < 0.85 * aligned


def test_small_micro_batches_are_slow(tmp_path: Path) -> None:
    common = {"max_position_embeddings": 2048, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
    assert rate(tmp_path, **common, seq_length=64) < 0.5 * rate(tmp_path, **common, seq_length=2048)


def test_a_slow_network_counts_only_between_hosts(tmp_path: Path) -> None:
    lines = {**SMALL, "seq_length": 1024, "max_position_embeddings": 1024, "train_micro_batch_size_per_gpu": 4,
             "zero_optimization": "{stage: 1}"}  # fmt: skip
    one_host, two_hosts = (
        [plan_with(tmp_path, lines, gpus, network=rate).speed.data for rate in (50e9, 1.25e9)] for gpus in (8, 16)
    )
    assert one_host[0] == one_host[1] and two_hosts[1] > 5 * two_hosts[0]


@pytest.mark.parametrize(("model", "layout"), [("gpt-3-1.3b", "data-parallel"), ("pythia-1.4b", "data-parallel"),
                                               ("llama-2-7b", "zero3")])  # fmt: skip
def test_shipped_files_reach_two_fifths_of_the_peak_rate_of_an_h100(model: str, layout: str) -> None:
    folders = (("models", model), ("layouts", layout), ("machines", "a100"))
    files = [str(CONFIGS / folder / f"{name}.yml") for folder, name in folders]
    plan = plan_of(PlanOptions(files, gpus=8, device="H100"))
    assert plan.fits
    assert plan.speed.tflops_per_device * 1e12 > 0.42 * plan.target.device.half


def test_one_kernel_rotates_with_less_traffic_than_several(tmp_path: Path) -> None:
    """More so the more dimensions are rotated; a layer that is compiled does not gain."""
    fused, share = {"rope_fusion": True}, {"rotary_pct": 0.25}
    common: dict[str, object] = {"seq_length": 2048, "max_position_embeddings": 2048}
    common["train_micro_batch_size_per_gpu"] = 8
    gains = [
        rate(tmp_path, **common, **more, **fused) / rate(tmp_path, **common, **more)
        for more in ({}, share, {"compile_layers": True})
    ]
    assert gains[0] > gains[1] > 1 and gains[2] == 1
