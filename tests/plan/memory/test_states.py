"""Weights, gradients and optimizer state with ZeRO, offloading and parallel ranks."""

from __future__ import annotations

from neoxargs.facts.trained import trained_parameters
from neoxargs.resolve import resolve
from tests.support.plans import planned


def test_state_on_nvme_takes_buffers_of_host_memory_only(middle: str) -> None:
    def host(*changes: str) -> dict[str, int]:
        section = "zero_optimization.offload_"
        stage = [f"{section}{change}" for change in changes] + ["zero_optimization.sub_group_size=1000000"]
        return planned(middle, "zero_optimization.stage=3", *stage).fullest.host

    state, weights = host("optimizer.device=cpu"), host("param.device=cpu")
    on_disk = host("optimizer.device=nvme", "optimizer.nvme_path=/disk")
    assert on_disk["offloaded"] == 4 * 1_000_000 * 4 < state["offloaded"]  # buffer_count x sub_group_size x fp32
    assert weights["pinned"] == weights["offloaded"]  # no NVMe buffers
    on_disk = host("param.device=nvme", "param.nvme_path=/disk", "param.max_in_cpu=1000", "param.buffer_size=5000")
    assert (on_disk["offloaded"], on_disk["pinned"]) == (1000 * 2, 5 * 5000 * 2)


def test_the_ratio_of_offloaded_optimizer_state(middle: str) -> None:
    def held(ratio: float) -> int:
        changes = ["stage=3", "offload_optimizer.device=cpu", f"offload_optimizer.ratio={ratio}"]
        plan = planned(middle, *(f"zero_optimization.{change}" for change in changes))
        return plan.fullest.phases["step"]["optimizer"]

    assert held(1.0) == 0 < held(0.75) < held(0.5)


def test_each_zero_stage_takes_less_memory(middle: str) -> None:
    peaks = []
    for stage in range(4):
        changes = [f"zero_optimization.stage={stage}", "zero_optimization.reduce_bucket_size=50000000",
                   "pipe_parallel_size=0", "checkpoint_activations=true"]  # fmt: skip
        peaks.append(planned(middle, *changes, gpus=64).fullest.total("step"))
    assert peaks[0] == peaks[1] > peaks[2] > peaks[3]  # 16 bits with stage 0 run as stage 1


def test_more_parallel_ranks_take_less_memory_each(middle: str) -> None:
    def peak(*changes: str) -> int:
        return planned(middle, *changes).fullest.peak

    assert peak("model_parallel_size=4") < peak("model_parallel_size=2") < peak()
    assert peak("checkpoint_activations=true") < peak()
    assert peak("pipe_parallel_size=4", "gradient_accumulation_steps=8") < peak("pipe_parallel_size=1")


def test_several_micro_batches_of_bf16_are_summed_in_fp32(middle: str) -> None:
    def gradients(*changes: str) -> int:
        plan = planned(middle, "precision=bf16", "pipe_parallel_size=0", *changes)
        return plan.fullest.phases["step"]["gradients"]

    in_buckets, whole = gradients("gradient_accumulation_steps=4"), gradients()
    # Sums of 4 bytes; in buckets, a gradient of 2 bytes is freed as soon as it is added.
    assert 2 * whole < in_buckets < 2.05 * whole
    assert gradients("gradient_accumulation_steps=4", "communication_data_type=bf16") == 3 * whole
    assert gradients("gradient_accumulation_steps=4", "data_types.grad_accum_dtype=bf16") == gradients()
    in_two = "zero_optimization.stage=2"
    assert gradients("gradient_accumulation_steps=4", in_two) == 2 * gradients(in_two)


def test_the_host_holds_the_model_only_if_its_cpu_draws_it(middle: str) -> None:
    def host(*changes: str) -> int:
        return planned(middle, "pipe_parallel_size=0", *changes).fullest.host["construction"]

    assert host() == 0 < host("use_cpu_initialization=true")


ADAPTERS = ["lora.rank=8", "lora.targets=[q_proj, v_proj]", "base_checkpoint=base"]
PROMPT = ["soft_prompt_tuning.enabled=true", "base_checkpoint=base"]


def test_a_frozen_model_has_neither_gradients_nor_optimizer_state(middle: str) -> None:
    def parts(*changes: str) -> dict[str, int]:
        return planned(middle, *changes, gpus=1).fullest.phases["step"]

    def trained(changes: list[str]) -> int:
        return trained_parameters(resolve([middle], changes, gpus=1), 0)

    full = parts("precision=fp32")
    for changes in (ADAPTERS, PROMPT):
        frozen, count = parts("precision=fp32", *changes), trained(changes)
        assert 0 < count < 1e7
        assert (frozen["gradients"], frozen["optimizer"]) == (4 * count, 8 * count)
        assert full["weights"] < frozen["weights"] == full["weights"] + 4 * count
    in_half = ("zero_optimization.stage=3", "pipe_parallel_size=0")
    whole, frozen = parts(*in_half), parts(*in_half, *ADAPTERS)
    assert frozen["weights"] == whole["weights"] + 2 * trained(ADAPTERS)
    assert frozen["optimizer"] == 12 * trained(ADAPTERS)


def test_adapters_are_on_the_ranks_of_their_layers(middle: str) -> None:
    def trained(*changes: str) -> list[int]:
        plan = planned(middle, *ADAPTERS, "gradient_accumulation_steps=4", *changes)
        return [rank.stage.parts["adapters"] for rank in plan.stage_memory]

    [whole] = trained("pipe_parallel_size=1")
    assert trained("pipe_parallel_size=2") == [whole // 2] * 2
    # A of a column layer is replicated, B is sharded.
    hidden = resolve([middle], gpus=1).shape.hidden_size
    [half] = trained("pipe_parallel_size=1", "model_parallel_size=2")
    layers = resolve([middle], gpus=1).shape.num_layers
    assert whole - half == layers * 8 * (2 * hidden) // 2


def test_a_dense_model_has_no_experts_to_divide(middle: str) -> None:
    def state(ranks: int) -> int:
        return planned(middle, f"moe_expert_parallel_size={ranks}").fullest.phases["step"]["optimizer"]

    assert state(64) == state(1)
