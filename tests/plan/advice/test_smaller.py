"""Suggested changes fit and preserve the global batch size."""

from __future__ import annotations

import pytest

from neoxargs.plan.command import plan_and_suggest, print_plan
from neoxargs.plan.given.options import PlanOptions
from tests.support.paths import NEOX_HEAD, ROOT, needs_corpus
from tests.support.snapshots import pinned

NEOX_20B = NEOX_HEAD / "20B.yml"


@needs_corpus
def test_neox_20b_does_not_fit_on_20_gb_and_each_suggestion_does() -> None:
    options = PlanOptions([str(NEOX_20B)], gpus=96, gpu_memory=20)
    plan, suggestions = plan_and_suggest(options)
    assert not plan.fits and plan.overflows_in == "backward"
    assert suggestions
    for suggestion in suggestions:
        again, _ = plan_and_suggest(PlanOptions([str(NEOX_20B)], suggestion.overrides, gpus=96, gpu_memory=20))
        assert again.fits, suggestion.overrides
        assert again.config.batch.train_batch_size == plan.config.batch.train_batch_size
    assert [suggestion.cost for suggestion in suggestions] == sorted(suggestion.cost for suggestion in suggestions)


@needs_corpus
def test_a_large_model_gets_more_tensor_and_pipeline_ranks() -> None:
    options = PlanOptions([str(NEOX_20B.with_name("175B.yml"))], gpus=1024, device="H100")
    plan, suggestions = plan_and_suggest(options)
    assert not plan.fits
    both = next(suggestion for suggestion in suggestions if "model_parallel_size" in suggestion.changes)
    layout = both.plan.layout
    assert both.plan.fits and layout.tensor > 1 and layout.pipe > 1
    assert both.plan.config.batch.train_batch_size == plan.config.batch.train_batch_size


def test_long_sequences_are_divided_and_others_are_not() -> None:
    for length, memory, expected in ((131_072, 80, True), (8_192, 40, False)):
        batch = ["train_batch_size=32", "train_micro_batch_size_per_gpu=1", "zero_optimization.stage=1"]
        sizes = [f"seq_length={length}", f"max_position_embeddings={length}", "precision=bfloat16"]
        options = PlanOptions(
            [str(ROOT / "configs" / "models" / "llama-3.1-8b.yml")],
            [*batch, *sizes, "checkpoint_activations=true"],
            gpus=32,
            device="H100",
            gpu_memory=memory,
        )
        plan, suggestions = plan_and_suggest(options)
        assert not plan.fits
        found = [each for each in suggestions if "context_parallel_size" in each.changes]
        assert bool(found) == expected
        assert all(each.plan.fits and each.plan.layout.ranks == 32 for each in found)


def test_selective_recomputation_is_suggested_where_it_is_enough(middle: str) -> None:
    full, selective = ({"checkpoint_activations": kind} for kind in (True, "selective"))
    found = {}
    for memory in range(16, 60, 2):
        plan, suggestions = plan_and_suggest(PlanOptions([middle], gpus=8, gpu_memory=memory))
        for suggestion in suggestions if not plan.fits else ():
            if suggestion.changes in (full, selective):
                found[memory] = suggestion
    kinds = [suggestion.changes for _, suggestion in sorted(found.items())]
    assert kinds == sorted(kinds, key=[full, selective].index) and full in kinds and selective in kinds
    assert all(found[memory].cost > 1 for memory in found)
    assert all(found[memory].cost < 1.1 for memory in found if found[memory].changes == selective)


@pytest.mark.parametrize("memory", [30, 24, 16])
def test_suggestions_fit(middle: str, memory: float) -> None:
    plan, suggestions = plan_and_suggest(PlanOptions([middle], gpus=8, gpu_memory=memory))
    assert not plan.fits and suggestions
    for suggestion in suggestions:
        assert plan_and_suggest(PlanOptions([middle], suggestion.overrides, gpus=8, gpu_memory=memory))[0].fits


def test_a_suggestion_replaces_an_override(middle: str) -> None:
    set_before = ["train_micro_batch_size_per_gpu=16"]
    plan, suggestions = plan_and_suggest(PlanOptions([middle], set_before, gpus=8, gpu_memory=40))
    smaller = next(suggestion for suggestion in suggestions if "train_micro_batch_size_per_gpu" in suggestion.changes)
    assert smaller.plan.config.batch.train_batch_size == plan.config.batch.train_batch_size == 128


def test_a_suggestion_does_not_repeat_what_is_set(middle: str) -> None:
    set_before = ["zero_optimization.stage=2", "gradient_accumulation_steps=1", "train_micro_batch_size_per_gpu=4"]
    for memory in range(8, 24, 4):
        _, suggestions = plan_and_suggest(PlanOptions([middle], set_before, gpus=8, gpu_memory=memory))
        assert suggestions
        for suggestion in suggestions:
            assert not set(set_before) & set(suggestion.overrides)


def test_without_a_fitting_change_larger_devices_are_suggested(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_plan(PlanOptions([middle], gpus=1, gpu_memory=2)) == 1
    pinned(capsys.readouterr().out, "none of")
