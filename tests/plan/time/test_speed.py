"""Communication volume of a step, in units of the residual stream."""

from __future__ import annotations

import pytest

from neoxargs.facts.gradient_sum import BYTES
from neoxargs.facts.muon import flops, muon_matrices
from neoxargs.plan.estimate import Plan
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.states import ModelStates
from neoxargs.plan.output.text import to_text
from neoxargs.plan.time.roofline import Rates
from tests.support.plans import planned
from tests.support.snapshots import pinned


def plan_and_stream(path: str, *changes: str) -> tuple[Plan, float]:
    """Return the plan, and the bytes of the residual stream over all micro batches of a step."""
    plan = planned(path, *changes)
    batches = plan.config.batch.gradient_accumulation_steps
    return plan, ActivationSizes(plan.config).hidden * batches


@pytest.mark.parametrize(
    ("changes", "all_reduces"),
    [
        ([], 4),
        (["checkpoint_activations=true"], 6),
        (["checkpoint_activations=true", "partition_activations=true"], 5.5),  # torch's stops early
        (["gpt_j_residual=true"], 3),
        (["gpt_j_residual=true", "checkpoint_activations=true"], 4),
        (["sequence_parallel=true"], 5),
        (["sequence_parallel=true", "gpt_j_residual=true"], 4),
    ],
)
def test_tensor_parallel_volume(changes: list[str], all_reduces: float, middle: str) -> None:
    plan, stream = plan_and_stream(middle, "model_parallel_size=2", *changes)
    ring = 2 * (2 - 1) / 2  # times that a ring all-reduce of two ranks sends each number
    ends = 2  # of the embedding and of the loss
    of_loss = 3 * 4 * plan.config.batch.train_batch_size // plan.layout.data * plan.config.shape.seq_length
    expected = ring * ((all_reduces * plan.config.shape.num_layers + ends) * stream + of_loss)
    assert plan.speed.volume.tensor == pytest.approx(expected)


WHOLE = ["pipeline.pipe_partitioned=false", "pipeline.grad_partitioned=false"]


@pytest.mark.parametrize(
    ("changes", "share"),
    [([], 1 / 2), (WHOLE, 1), (["sequence_parallel=true"], 1 / 2)],
)
def test_pipeline_volume(changes: list[str], share: float, middle: str) -> None:
    plan, stream = plan_and_stream(middle, "pipe_parallel_size=2", "model_parallel_size=2", *changes)
    # Of two stages, the first sends only activations, the second only gradients.
    assert plan.speed.volume.pipe == pytest.approx(share * stream)


def test_a_stage_in_the_middle_sends_activations_and_gradients(middle: str) -> None:
    plan, stream = plan_and_stream(middle, "pipe_parallel_size=4")
    assert plan.speed.volume.pipe == pytest.approx(2 * stream)


DIVIDED = "moe_num_experts=8", "moe_top_k=2", "moe_router_type=topk", "moe_expert_interval=1"


def test_expert_parallel_volume_grows_with_the_assumed_imbalance(middle: str) -> None:
    plan, stream = plan_and_stream(middle, *DIVIDED, "moe_expert_parallel_size=4")
    layers = plan.config.shape.num_layers
    # there and back in both passes, to three of four ranks; the numbers of tokens per expert are negligible
    expected = 4 * layers * 2 * 1.2 * stream * 3 / 4
    assert plan.speed.volume.experts == pytest.approx(expected, rel=1e-4)
    assert plan.speed.experts > 0
    balanced = planned(middle, *DIVIDED, "moe_expert_parallel_size=4", assume=["expert_imbalance=1"])
    assert balanced.speed.volume.experts == pytest.approx(4 * layers * 2 * stream * 3 / 4, rel=1e-4)
    assert balanced.speed.compute < plan.speed.compute


def test_experts_are_divided_and_reduced_among_the_ranks_that_have_them(middle: str) -> None:
    whole, plan = (
        planned(middle, *DIVIDED, f"moe_expert_parallel_size={size}", "zero_optimization.stage=1") for size in (1, 4)
    )
    before, after = whole.fullest.stage, plan.fullest.stage
    assert before.of_experts == 4 * after.of_experts > 0
    rest = after.parameters - after.of_experts
    assert rest == before.parameters - before.of_experts
    # 8 replicas, of which 2 have the same experts
    states = ModelStates(plan.config, after)
    gradients = BYTES[states.gradient_sum.dtype] * states.gradient_sum.passes
    assert plan.speed.volume.data == pytest.approx(
        (states.number_size + gradients) * (rest * 7 / 8 + after.of_experts / 2)
    )
    assert ModelStates(plan.config, after).partition == -(-rest // 8) + -(-after.of_experts // 2)
    pinned(to_text(plan, []), "per layer")


def test_a_run_with_growing_sequences_takes_the_time_of_its_phases(middle: str) -> None:
    """Each phase as a run of its own, of samples that are as short as its sequences, with as many tokens in a step."""
    phases = "[{until: 300, length: 256}, {until: 500, length: 1024}, {length: 2048}]"
    growing = planned(middle, "checkpoint_activations=true", f"seq_length_schedule={phases}")
    alone = {}
    for length in (256, 1024, 2048):
        cut = f"seq_length={length}", f"train_micro_batch_size_per_gpu={8 * 2048 // length}"
        alone[length] = planned(middle, "checkpoint_activations=true", *cut).speed.step
    assert alone[256] < alone[1024] < alone[2048] == growing.speed.step
    assert growing.speed.total == pytest.approx(300 * alone[256] + 200 * alone[1024] + 500 * alone[2048])
    sizes = growing.speed.sizes
    here = sizes.resumed(400, sizes.samples_after(400))
    assert growing.speed.between(here, 600) == pytest.approx(100 * alone[1024] + 100 * alone[2048])


MUON = "optimizer.type=Muon", "optimizer.params.lr=0.01"


def test_muon_s_iteration_takes_time_and_zero_1_divides_it(middle: str) -> None:
    def seconds(*changes: str) -> float:
        return planned(middle, *changes).speed.optimizer

    plan = planned(middle, *MUON, "zero_optimization.stage=3")
    config, layers = plan.config, range(plan.config.shape.num_layers)
    operations = [flops(each, True, 5) for layer in layers for each in muon_matrices(config, layer)]
    rate = Rates.of(plan.target.device, 4, config.shape.seq_length, plan.target.assumed).products
    lion, whole = (seconds(kind, "zero_optimization.stage=3") for kind in ("optimizer.type=Lion", MUON[0]))
    assert whole - lion == pytest.approx(sum(operations) / rate, rel=1e-3)
    lion_1, divided = (seconds(kind, "zero_optimization.stage=1") for kind in ("optimizer.type=Lion", MUON[0]))
    assert 1 / 8 < (divided - lion_1) / (whole - lion) < 1 / 4
    assert seconds(*MUON, "zero_optimization.stage=3", "model_parallel_size=2") >= sum(operations) / rate
