"""Suggestions for a run that fits: changes that fit too and are faster."""

from __future__ import annotations

import pytest

from neoxargs.plan.command import plan_and_suggest, print_plan
from neoxargs.plan.given.options import PlanOptions

WIDE = ("precision=bfloat16", "zero_optimization.stage=1", "seq_length=512")


def levers(path: str, *changes: str, gpus: int = 16, network: float | None = None) -> dict[str, float]:
    """Return override -> relative step time, in order."""
    given = {each.partition("=")[0]: each for each in (*WIDE, *changes)}
    options = PlanOptions([path], list(given.values()), gpus=gpus, device="H100", network=network)
    plan, suggestions = plan_and_suggest(options)
    assert plan.fits and all(suggestion.plan.fits for suggestion in suggestions)
    return {" ".join(suggestion.overrides): suggestion.cost for suggestion in suggestions}


def test_recomputation_that_memory_does_not_need_is_named_first(middle: str) -> None:
    found = levers(middle, "checkpoint_activations=true")
    assert list(found)[:2] == ["checkpoint_activations=false", "checkpoint_activations=selective"]
    assert 0.7 < found["checkpoint_activations=false"] < 0.85
    assert list(found.values()) == sorted(found.values())
    assert 0.8 < found["compile_layers=true"] < 0.98


def test_the_fused_rotation_is_named_where_it_saves_enough(middle: str) -> None:
    found = levers(middle, "pos_emb=rotary")
    assert found["compile_layers=true"] < found["rope_fusion=true"] < 0.98
    without = (["pos_emb=rotary", "rope_fusion=true"], ["pos_emb=rotary", "compile_layers=true"], ["pos_emb=none"])
    assert not any("rope_fusion=true" in levers(middle, *changes) for changes in without)


def test_overlap_is_named_where_communication_takes_time(middle: str) -> None:
    slow = levers(middle, network=1.25e9)
    assert slow["zero_optimization.overlap_comm=true"] < 0.98
    assert "zero_optimization.overlap_comm=true" not in levers(middle, "gradient_accumulation_steps=16", gpus=8)


def test_small_buckets_are_named_between_hosts_only(middle: str) -> None:
    small = "zero_optimization.reduce_bucket_size=100000"
    assert "zero_optimization.reduce_bucket_size=500000000" in levers(middle, small)
    assert "zero_optimization.reduce_bucket_size=500000000" not in levers(middle, small, gpus=8)


def test_nothing_is_suggested_without_a_known_device(middle: str) -> None:
    assert plan_and_suggest(PlanOptions([middle], ["checkpoint_activations=true"], gpus=16))[1] == []


def test_the_text_names_them(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(PlanOptions([middle], [*WIDE, "checkpoint_activations=true"], gpus=16, device="H100"))
    output = capsys.readouterr().out
    assert "faster" in output and "1. --set checkpoint_activations=false" in output and "would fit" not in output
