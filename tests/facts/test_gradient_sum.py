"""How gradients are summed over replicas, in words, and the rounding error of a ring."""

from __future__ import annotations

import pytest

from neoxargs.base.record import replace
from neoxargs.checks.trainer import trainer_problems
from neoxargs.facts.gradient_sum import GradientSum, bucket_elements, gradient_sum, ring_error
from tests.support.configure import configure
from tests.support.snapshots import pinned

torch = pytest.importorskip("torch")

STEPS = "precision: bf16\ntrain_micro_batch_size_per_gpu: 1\ngradient_accumulation_steps: 4\n"
CASES = {
    "one replica": ("precision: bf16", 1),
    "fp32": ("precision: fp32", 8),
    "fp16": ("precision: fp16", 8),
    "bf16": (STEPS, 64),
    "bf16, one micro batch": ("precision: bf16", 64),
    "bf16 pipeline": (STEPS + "pipe_parallel_size: 2", 64),
    "not overlapped": (STEPS + "zero_optimization: {stage: 1, overlap_comm: false}", 64),
    "in bf16": (STEPS + "communication_data_type: bf16\nzero_optimization: {stage: 1, reduce_scatter: false}", 64),
    "buckets without reduce_scatter": (STEPS + "zero_optimization: {stage: 1, reduce_scatter: false}", 64),
    "ZeRO-2": (STEPS + "zero_stage: 2", 8),
    "ZeRO-3": (STEPS + "zero_stage: 3", 8),
    "offloaded": (STEPS + "zero_optimization: {stage: 1, offload_optimizer: {device: cpu}}", 8),
    "context parallel": (STEPS + "context_parallel_size: 4", 8),
    "context parallel, one replica": (STEPS + "context_parallel_size: 4", 4),
    "one bit": ("precision: fp32\noptimizer: {type: OneBitAdam}", 8),
}


def test_ways() -> None:
    lines = []
    for name, (text, gpus) in CASES.items():
        config = configure(text, gpus=gpus)
        found = [problem for problem in trainer_problems(config) if problem.id in ("no-effect", "gradients-rounded")]
        lines += [f"{name}: {gradient_sum(config).describe()}", *(f"    {problem.what}" for problem in found)]
    pinned("\n".join(lines))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("ranks", [2, 8, 64, 256])
def test_the_error_of_a_ring_is_that_of_a_simulated_one(ranks: int, dtype: str) -> None:
    small = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    random = torch.Generator().manual_seed(1)
    summands = torch.randn(ranks, 20_000, generator=random)
    total = summands[0].to(small)
    for summand in summands[1:]:
        total = total + summand.to(small)
    exact = summands.double().sum(0)
    measured = float((total.double() - exact).norm() / exact.norm())
    assert ring_error(ranks, dtype) == pytest.approx(measured, rel=0.1)


def test_buckets_grow_with_the_ranks_up_to_the_users_size() -> None:
    assert [bucket_elements(500_000_000, ranks) for ranks in (8, 1024)] == [40_000_000, 500_000_000]
    assert bucket_elements(1000, 8) == 1000


def test_the_type_counts_only_where_it_has_fewer_bits() -> None:
    found = GradientSum("ZeRO", "bf16", 8, 1, 1, False, False, "fp32", 2)
    assert found.rounds and not replace(found, accumulated="bf16").rounds
