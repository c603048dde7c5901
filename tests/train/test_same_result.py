"""What `deepy diff` promises of a setting holds: pairs of runs are trained and compared with the table.

Here on a path of each engine, ZeRO stage and precision, for the settings that are changed most; bench/same_result.py
tries every setting on every path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neoxargs.resolve.compare.same_result import path_of
from tests.support import paths_tried
from tests.support.paths_tried import BF16, FP16, FP32, Values, Z

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
#: A path, and the settings that are tried on it.
PART: list[tuple[Values, list[str]]] = [
    ({Z + "stage": 1} | FP32, [Z + "stage", Z + "reduce_bucket_size", Z + "contiguous_gradients",
                               "checkpoint_activations", "train_micro_batch_size_per_gpu", "model_parallel_size",
                               "context_parallel_size", "context_parallel_style"]),
    ({Z + "stage": 2} | FP16, [Z + "overlap_comm", Z + "round_robin_gradients", "fp16.loss_scale_window"]),
    ({Z + "stage": 3} | BF16, [Z + "stage", Z + "offload_optimizer.device", Z + "stage3_param_persistence_threshold",
                               "checkpoint_activations"]),
    ({Z + "stage": 3} | FP16, ["fp16.loss_scale_window"]),
    ({Z + "stage": 1, "pipe_parallel_size": 2} | BF16, ["pipe_parallel_size", "train_micro_batch_size_per_gpu",
                                                       "pipeline.pipe_partitioned"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("same")
    paths_tried.write_data(made)
    return made


@pytest.mark.parametrize(("path", "names"), PART, ids=[path_of(paths_tried.BASE | path) for path, _ in PART])
def test_each_setting_alone(path: Values, names: list[str], folder: Path) -> None:
    cells = paths_tried.measured(path, folder, names)
    assert {cell.name for cell in cells} == {*names}
    assert paths_tried.contradictions(paths_tried.read_table(), cells) == []


@pytest.mark.parametrize("path", [{Z + "stage": 1} | BF16])
def test_settings_that_change_no_bit_together(path: Values, folder: Path) -> None:
    name = path_of(paths_tried.resolved(path, folder))
    assert sorted(paths_tried.unequal(path, folder)) == paths_tried.read_table()["together"]["paths"][name]


def scale_small_buckets() -> None:
    """Make DeepSpeed scale the gradients of buckets that are smaller than its default."""
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    reduce = DeepSpeedZeroOptimizer.reduce_ipg_grads

    def scaled(self: Any, *arguments: Any, **options: Any) -> None:
        for bucket in self.ipg_buckets.values() if self.reduce_bucket_size < 10_000 else ():
            for gradient in bucket.grads:
                gradient.mul_(1.01)
        reduce(self, *arguments, **options)

    DeepSpeedZeroOptimizer.reduce_ipg_grads = scaled


def recompute_with_other_dropout() -> None:
    from torch.utils.checkpoint import checkpoint

    from neoxargs.train.engine import recompute

    other = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    recompute._deepspeed_checkpoint = lambda mesh: other


def unscale_by_the_next_scale() -> None:
    """Leave DeepSpeed's order of dividing by the loss scale and updating it."""
    from neoxargs.train.deepspeed import half_precision

    half_precision.grow_scale_after_step = lambda optimizer: None


def draw_while_logging() -> None:
    """Make the console draw a random number at each line of its log, which comes every step or, by default, never."""
    import torch

    from neoxargs.train.track.console import Console

    shown = Console.on_step

    def drawing(self: Any, step: Any) -> None:
        if self.interval == 1:
            torch.rand(1)
        shown(self, step)

    Console.on_step = drawing  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("fault", "path", "name"),
    [
        (scale_small_buckets, {Z + "stage": 2} | FP32, Z + "reduce_bucket_size"),
        (recompute_with_other_dropout, {Z + "stage": 2} | FP32, "checkpoint_activations"),
        (unscale_by_the_next_scale, {Z + "stage": 3} | FP16, "fp16.loss_scale_window"),
    ],
)
def test_a_planted_fault_contradicts_the_table(
    fault: Callable[[], None], path: Values, name: str, folder: Path
) -> None:
    cells = paths_tried.measured(path, folder, {Z + "overlap_comm", name}, fault)
    assert {cell.name for cell in cells} == {Z + "overlap_comm", name}
    [wrong] = paths_tried.contradictions(paths_tried.read_table(), cells)
    assert wrong.startswith(f"{name}: ")


def test_a_log_that_changes_training_is_found(folder: Path) -> None:
    names = ["log_interval", "log_grad_norm", "eval_iters", "temperature"]
    assert paths_tried.unequal({Z + "stage": 1}, folder, names, draw_while_logging) == ["log_interval"]
