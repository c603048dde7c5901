"""Weights, gradients and optimizer state shrink with ZeRO, offloading and parallel ranks."""

from __future__ import annotations

from neoxargs.tools.plan import plan_and_suggest
from neoxargs.tools.plan.options import PlanOptions


def test_what_is_offloaded_to_a_disk_is_not_in_the_host(middle: str) -> None:
    def host(*changes: str) -> dict[str, int]:
        section = "zero_optimization.offload_"
        stage = [f"{section}{change}" for change in changes] + ["zero_optimization.sub_group_size=1000000"]
        made, _ = plan_and_suggest(PlanOptions([middle], ["zero_optimization.stage=3", *stage], gpus=8))
        return made.fullest.host

    state, weights = host("optimizer.device=cpu"), host("param.device=cpu")
    on_disk = host("optimizer.device=nvme", "optimizer.nvme_path=/disk")
    assert on_disk["offloaded"] == 4 * 1_000_000 * 4 < state["offloaded"]  # buffers, of a sub-group, in fp32
    assert weights["pinned"] == weights["offloaded"]  # no buffers of NVMe's
    on_disk = host("param.device=nvme", "param.nvme_path=/disk", "param.max_in_cpu=1000", "param.buffer_size=5000")
    assert (on_disk["offloaded"], on_disk["pinned"]) == (1000 * 2, 5 * 5000 * 2)


def test_a_part_of_the_optimizer_can_stay_on_the_device(middle: str) -> None:
    def held(ratio: float) -> int:
        changes = ["stage=3", "offload_optimizer.device=cpu", f"offload_optimizer.ratio={ratio}"]
        made, _ = plan_and_suggest(PlanOptions([middle], [f"zero_optimization.{change}" for change in changes], gpus=8))
        return made.fullest.phases["step"]["optimizer"]

    assert held(1.0) == 0 < held(0.75) < held(0.5)


def test_each_step_of_zero_takes_less(middle: str) -> None:
    peaks = []
    for stage in range(4):
        changes = [f"zero_optimization.stage={stage}", "zero_optimization.reduce_bucket_size=50000000",
                   "pipe_parallel_size=0", "checkpoint_activations=true"]  # fmt: skip
        peaks.append(plan_and_suggest(PlanOptions([middle], changes, gpus=64))[0].fullest.total("step"))
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 4


def test_more_parallel_ranks_take_less_each(middle: str) -> None:
    def peak(*changes: str) -> int:
        return plan_and_suggest(PlanOptions([middle], changes, gpus=8))[0].fullest.peak

    assert peak("model_parallel_size=4") < peak("model_parallel_size=2") < peak()
    assert peak("checkpoint_activations=true") < peak()
    assert peak("pipe_parallel_size=4", "gradient_accumulation_steps=8") < peak("pipe_parallel_size=1")
