"""What ranks send each other in a step, counted in residual streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.tools.plan import plan_and_suggest
from neoxargs.tools.plan.memory.activations import ActivationSizes
from neoxargs.tools.plan.options import PlanOptions
from neoxargs.tools.plan.plan import Plan
from tests.support import smallest


def made(folder: Path, *changes: str) -> tuple[Plan, float]:
    """The plan, and the bytes of a step's residual streams of one layer."""
    path = folder / "middle.yml"
    path.write_text(smallest.BILLION)
    found, _ = plan_and_suggest(PlanOptions([str(path)], changes, gpus=8))
    batches = found.config.batch.gradient_accumulation_steps
    return found, ActivationSizes(found.config).hidden * batches


@pytest.mark.parametrize(
    ("changes", "sums"),
    [
        ([], 4),
        (["checkpoint_activations=true"], 6),
        (["checkpoint_activations=true", "partition_activations=true"], 6.5),
        (["gpt_j_residual=true"], 3),
        (["gpt_j_residual=true", "checkpoint_activations=true"], 4),
        (["sequence_parallel=true"], 5),
        (["sequence_parallel=true", "gpt_j_residual=true"], 4),
    ],
)
def test_sums_over_tensor_parallel_ranks(changes: list[str], sums: float, tmp_path: Path) -> None:
    plan, stream = made(tmp_path, "model_parallel_size=2", *changes)
    around = 2 * (2 - 1) / 2
    assert plan.speed.volume.tensor == pytest.approx(sums * around * stream * plan.config.shape.num_layers)


@pytest.mark.parametrize(
    ("changes", "share"),
    [([], 1 / 2), (["pipeline.grad_partitioned=false"], 3 / 4), (["sequence_parallel=true"], 1 / 2)],
)
def test_what_stages_send_each_other(changes: list[str], share: float, tmp_path: Path) -> None:
    plan, stream = made(tmp_path, "pipe_parallel_size=2", "model_parallel_size=2", *changes)
    assert plan.speed.volume.pipe == pytest.approx(2 * share * stream)
