"""Communication volume of a step, in units of the residual stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.tools.plan import plan_and_suggest
from neoxargs.tools.plan.memory.activation_sizes import ActivationSizes
from neoxargs.tools.plan.options import PlanOptions
from neoxargs.tools.plan.plan import Plan
from tests.support import smallest


def plan_and_stream(folder: Path, *changes: str) -> tuple[Plan, float]:
    """Return the plan, and the bytes of the residual stream over all micro batches of a step."""
    path = folder / "middle.yml"
    path.write_text(smallest.BILLION)
    plan, _ = plan_and_suggest(PlanOptions([str(path)], changes, gpus=8))
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
def test_tensor_parallel_volume(changes: list[str], all_reduces: float, tmp_path: Path) -> None:
    plan, stream = plan_and_stream(tmp_path, "model_parallel_size=2", *changes)
    ring = 2 * (2 - 1) / 2  # times that a ring all-reduce of two ranks sends each number
    ends = 2  # of the embedding and of the loss
    of_loss = 3 * 4 * plan.config.batch.train_batch_size // plan.layout.data * plan.config.shape.seq_length
    expected = ring * ((all_reduces * plan.config.shape.num_layers + ends) * stream + of_loss)
    assert plan.speed.volume.tensor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "share"),
    [([], 1 / 2), (["pipeline.grad_partitioned=false"], 3 / 4), (["sequence_parallel=true"], 1 / 2)],
)
def test_pipeline_volume(changes: list[str], share: float, tmp_path: Path) -> None:
    plan, stream = plan_and_stream(tmp_path, "pipe_parallel_size=2", "model_parallel_size=2", *changes)
    assert plan.speed.volume.pipe == pytest.approx(2 * share * stream)
