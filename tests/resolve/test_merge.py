"""Files and `--set`s are merged into one table."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.base.problems import render
from neoxargs.resolve import File
from neoxargs.resolve.merge import Draft, draft
from neoxargs.resolve.merge.judge import MAX_SUGGESTIONS
from tests.support.snapshots import pinned


def drafted(*texts: str, sets: tuple[str, ...] = ()) -> Draft:
    return draft([File(f"{name}.yml", text) for name, text in zip("abc", texts, strict=False)], sets)


def values(*texts: str, sets: tuple[str, ...] = ()) -> dict[str, Any]:
    found = drafted(*texts, sets=sets)
    assert not found.problems, render(found.problems)
    return {name: value.value for name, value in found.values.items()}


def problem(*texts: str, sets: tuple[str, ...] = ()) -> str:
    (only,) = drafted(*texts, sets=sets).problems
    return render([only])


def test_files_and_sections_are_merged() -> None:
    assert values("num-layers: 2\nfp16: {enabled: true}", "seed: 1\nfp16: {loss_scale: 0}") == {
        "num_layers": 2,
        "fp16.enabled": True,
        "seed": 1,
        "fp16.loss_scale": 0.0,
    }


def test_dashes_are_underscores_at_every_depth() -> None:
    assert values("zero-optimization: {offload-param: {pin-memory: true}}") == {
        "zero_optimization.offload_param.pin_memory": True
    }


def test_keys_inside_a_value_stay_as_they_are() -> None:
    text = "autotuning: {arg_mappings: {train-batch: --train_batch_size, 'steps ': -s}}"
    assert values(text) == {"autotuning.arg_mappings": {"train-batch": "--train_batch_size", "steps ": "-s"}}


def test_retired_spellings_set_the_current_name() -> None:
    found = drafted("save-interval: 500\nbfloat16: {enabled: true}")
    assert not found.problems
    assert found.values["checkpoint_factor"].value == 500
    assert str(found.values["checkpoint_factor"].source) == "a.yml:1:1"
    assert found.values["bf16.enabled"].value is True
    assert found.sections == {"bf16"}


def test_a_source_spans_key_and_value() -> None:
    place = drafted('{"seed" : 12, "fp16": {\n  "enabled": true}}').values["seed"].source.where
    assert place is not None
    assert place.text[place.column - 1 :][: place.width] == '"seed" : 12'


@pytest.mark.parametrize("text", ["fp16:", "fp16: {}", "fp16: null", "fp16: ~"])
def test_an_empty_section_counts_as_present(text: str) -> None:
    found = drafted(text)
    assert (found.sections, found.values, found.problems) == ({"fp16"}, {}, [])


def test_the_parents_of_a_section_are_present_too() -> None:
    assert drafted("zero_optimization: {offload_param: {}}").sections == {
        "zero_optimization",
        "zero_optimization.offload_param",
    }
    assert drafted("", sets=("optimizer.params.lr=1",)).sections >= {"optimizer", "optimizer.params"}


def test_auto_counts_as_not_set_for_parameters_of_deepspeed() -> None:
    found = drafted("train_batch_size: auto\nzero_optimization: {reduce_bucket_size: auto}\nseed: 1")
    assert set(found.values) == {"seed"}
    assert found.auto == {"train_batch_size", "zero_optimization.reduce_bucket_size"}


def test_a_section_that_is_set_twice_is_one_problem() -> None:
    found = drafted("fp16: {enabled: true}\nfp16: {enabled: true, hysteresis: 2}")
    assert [problem.what for problem in found.problems] == ["fp16 is set twice"]


@pytest.mark.parametrize(
    "text",
    ["num_kv_heads: null", "precision: ~", "include:", "lr-decay-iters: None", "hostfile: None", "num_gpus: null"],
)
def test_null_counts_as_not_set_where_gpt_neox_accepts_it(text: str) -> None:
    found = drafted(text)
    assert (found.values, found.problems) == ({}, [])


def test_null_is_an_error_elsewhere() -> None:
    pinned(drafted("num_layers:\nhidden_dropout: null").problems)


def test_a_setting_of_an_optimizer_is_checked_without_optimizer_type() -> None:
    (problem,) = drafted("optimizer: {type: null, params: {max_coeff: much}}").problems
    assert problem.what.startswith('optimizer.params.max_coeff ("much") must be a number')


def test_auto_is_an_ordinary_value_elsewhere() -> None:
    assert 'num_layers ("auto") must be a whole number' in problem("num_layers: auto")
    assert values("pipeline: {stages: auto}") == {"pipeline.stages": "auto"}


def test_set_overrides_files() -> None:
    found = drafted("seed: 1\nfp16: {enabled: true}", sets=("seed=2", "fp16.enabled=no", "data-path=a b"))
    assert not found.problems
    assert {name: value.value for name, value in found.values.items()} == {
        "seed": 2,
        "fp16.enabled": False,
        "data_path": "a b",
    }
    assert str(found.values["seed"].source) == "--set seed=2"
    assert found.values["seed"].source.kind == "set"


@pytest.mark.parametrize("name", ["seed", "num_layers", "intermediate_size", "attention_config"])
def test_set_to_null_unsets_the_value_of_a_file(name: str) -> None:
    text = "seed: 1\nnum_layers: 2\nintermediate_size: 8\nattention_config: [[[global], 2]]"
    found = drafted(text, sets=(f"{name}=null",))
    assert not found.problems
    assert {"seed", "num_layers", "intermediate_size", "attention_config"} - set(found.values) == {name}


@pytest.mark.parametrize(
    ("argument", "name", "value"),
    [
        ("lr=1e-4", "lr", 1e-4),
        ("optimizer.params.betas=[0.9, 0.95]", "optimizer.params.betas", [0.9, 0.95]),
        ("optimizer={type: Adam}", "optimizer.type", "Adam"),
        ("zero-optimization.stage=1", "zero_optimization.stage", 1),
        ("data_path = a=b", "data_path", "a=b"),
        ("split=949,50,1", "split", "949,50,1"),
        ("include=worker-0@worker-1:0,2", "include", "worker-0@worker-1:0,2"),
        ("save=", "save", None),
        ("save=#1", "save", None),
        ('save="#1"', "save", "#1"),
        ("save_interval=7", "checkpoint_factor", 7),
    ],
)
def test_forms_of_set(argument: str, name: str, value: Any) -> None:
    assert values("seed: 1", sets=(argument,)) == {"seed": 1, name: value}


def test_set_to_auto_unsets_the_value_of_a_file() -> None:
    found = drafted("train_batch_size: 8", sets=("train_batch_size=auto",))
    assert (found.values, found.auto) == ({}, {"train_batch_size"})
    found = drafted("train_batch_size: auto", sets=("train_batch_size=8",))
    assert (found.values["train_batch_size"].value, found.auto) == (8, frozenset())


def test_values_that_replace_those_of_files_and_of_sets() -> None:
    """As if by `--set`, without a parser: a search makes hundreds of drafts from one."""
    changes = {
        "hidden_size": 16,
        "zero_optimization.stage": 3,
        "checkpoint_activations": "selective",
        "fp16.enabled": True,
    }
    found = drafted("hidden_size: 8\nseed: 2", sets=("hidden_size=4", "lr=1e-4"))
    changed = found.with_values({**changes, "fp16.enabled": True})
    sets = ["lr=1e-4", "hidden_size=16", "zero_optimization.stage=3", "checkpoint_activations=selective"]
    asked = drafted("hidden_size: 8\nseed: 2", sets=(*sets, "fp16.enabled=true"))
    assert (changed.values, changed.dialect, changed.section_places) == (
        asked.values,
        asked.dialect,
        asked.section_places,
    )
    assert found.values["hidden_size"].value == 4  # it is another draft


def test_a_value_of_a_wrong_type_is_reported_as_if_set() -> None:
    (by_value,) = drafted("seed: 1").with_values({"hidden_size": "big"}).problems
    assert by_value == drafted("seed: 1", sets=("hidden_size=big",)).problems[0]


def test_each_file_may_say_its_dialect() -> None:
    assert drafted("dialect: neox-2026\nlr: 1", "dialect: neox-2026\nseed: 1").problems == []
    assert problem("dialect: neox-2026", "dialect: neox-2021-02").startswith("b.yml:1:1: error: dialect is set twice")
    assert "dialect is set twice" in problem("dialect: neox-2026\ndialect: neox-2026")


def test_dash_and_underscore_are_one_key() -> None:
    assert "num_layers is set twice" in problem("num-layers: 1\nnum_layers: 1")
    assert "zero_optimization is set twice" in problem("zero-optimization: {}\nzero_optimization: {}")


def test_all_problems_of_all_files_at_once() -> None:
    assert len(drafted("hiden: 1\nnum_layers: x", "a: [", sets=("b",)).problems) == 4


def test_parameters_made_unknown_by_a_mistake() -> None:
    found = drafted("hiden_size: 1\nnum_layers: x\nzero_optimisation: {stage: 1}")
    assert found.broken >= {"hidden_size", "num_layers", "zero_optimization"}


def test_an_unreadable_file_is_remembered() -> None:
    assert not drafted("a: [").readable
    assert not drafted("").readable
    assert drafted("num_layers: x").readable


def test_a_key_similar_to_one_that_is_set() -> None:
    pinned(problem("hidden_size: 2\nfidden_sizzes: 2\n"), "[unknown-key]")


def test_a_key_used_as_a_comment() -> None:
    pinned(problem("_comment: as in the paper\n"), "[unknown-key]")


def test_a_holder_of_anchors_is_ignored() -> None:
    assert values("x-shared: &a {num_layers: 2, other: 1}\nseed: 1\n<<: {hidden_size: 8}") == {
        "seed": 1,
        "hidden_size": 8,
    }
    for text in (
        "shared: &a {num_layers: 2}",
        "base: &b {type: Adam}\noptimizer: {<<: *b}",
        "my_rate: &r 1.0e-4\nlr: *r",
    ):
        pinned(problem(text))


def test_a_bad_value_of_another_optimizers_setting() -> None:
    (problem,) = drafted("optimizer: {type: SGD, params: {betas: much}}").problems
    assert problem.hint.startswith("remove betas; SGD accepts lr, weight_decay")


def test_an_unknown_section_of_parameters_is_recognised() -> None:
    pinned(problem("model: {num_layers: 2, hidden_size: 4, kind: 1}\n"), "[misplaced-key]")
    assert "belong at the top level" not in problem("fp8: {enabled: true, hysteresis: 2}\n")


def test_the_number_of_suggestions_is_limited() -> None:
    text = "num_layers: 2\n" + "".join(f"seed_{number}: 1\n" for number in range(MAX_SUGGESTIONS + 10))
    problems = drafted(text).problems
    assert len(problems) == MAX_SUGGESTIONS + 10
    assert [problem.hint for problem in problems[:1]] == ["did you mean seed?"]
    assert {problem.hint for problem in problems[MAX_SUGGESTIONS:]} == {""}
