"""The suggestion for a key that is not a parameter."""

from __future__ import annotations

import pytest

from neoxargs.base.problems import SET, Place, Problem
from neoxargs.resolve import File, draft
from neoxargs.resolve.keys.match import Key
from neoxargs.resolve.keys.unknown import NO_MATCH, match_key
from tests.support.snapshots import pinned


def only(text: str) -> Problem:
    (problem,) = draft([File("my.yml", text)]).problems
    return problem


@pytest.mark.parametrize(
    ("name", "found_by", "meant"),
    [
        ("_comment", "letters", ()),
        ("num_layers;", "letters", ("num_layers",)),
        ("n_layer", "other program", ("num_layers",)),
        ("stage", "same word", ("zero_optimization.stage",)),
        ("enabled", "same word", ()),  # in too many sections
        ("hiden_size", "similar", ("hidden_size",)),
        ("fp16.enable", "similar", ("fp16.enabled",)),
        ("optimizer.params.betax", "similar", ("optimizer.params.beta", "optimizer.params.betas")),
        ("zero_optimization.gradient_cliping", "similar", ("gradient_clipping",)),
        ("lr = 0.1", "letters", ("lr",)),
        ("validation.code.weight", "inside a value", ("validation",)),
    ],
)
def test_what_was_meant(name: str, found_by: str, meant: tuple[str, ...]) -> None:
    match = match_key(Key(name, name, Place(SET, 1, 1)))
    assert match is not None
    assert (match.found_by, match.meant) == (found_by, meant)


@pytest.mark.parametrize("name", ["attention_config[0]", "save load", "lora.*", "hidden_size,"])
def test_a_known_name_before_characters_that_keys_do_not_have(name: str) -> None:
    match = match_key(Key(name, name, Place(SET, 1, 1)))
    assert match is not None
    pinned(match.advice)


@pytest.mark.parametrize("text", [
    "checkpoint-factor: 10\nsave-intervall: 3\n", "attention-config: [global]\nuse_flash_attn: true\n",
    "seed: 1\nsed: 2\n",
])  # fmt: skip
def test_a_key_beside_the_parameter_that_it_means(text: str) -> None:
    pinned(only(text).hint)


@pytest.mark.parametrize("name", ["zzzzz", "fp16.zzzzz"])
def test_a_key_without_a_match(name: str) -> None:
    assert match_key(Key(name, name, Place(SET, 1, 1))) is None


def test_the_hint_for_a_key_without_a_match() -> None:
    assert only("zzzzz: 1").hint == NO_MATCH
    assert only("fp16: {zzzzz: 1}").hint.startswith("valid keys: ")


@pytest.mark.parametrize("text", [
    "--num-layers: 4", "zero_optimization: {-stage: 1}", "--micro-batch-size: 4", "--hiden-size: 4",
    "--no-bias-gelu-fusion: true", "no_bias_dropout_fusion: true", 'fp16: {enabled = "yes": null}',
])  # fmt: skip
def test_the_hint_for_a_flag_or_an_assignment_as_a_key(text: str) -> None:
    pinned(only(text).hint)


def test_no_single_value_is_suggested_for_a_section() -> None:
    assert "hidden_size" not in only("hidden_sizes: {a: 1}").hint
    assert only("fp16s: {enabled: true}").hint == "did you mean fp16?"


@pytest.mark.parametrize("text", [
    "fp16: {opt_level: O1}", "bf16: {opt-levl: O1}", "bf16: {auto_cast: true}", "opt_level: O1",
])  # fmt: skip
def test_a_key_is_not_moved_to_where_it_cannot_be_used(text: str) -> None:
    pinned(only(text).hint)


@pytest.mark.parametrize("text", [
    "optimizer: {type: Adam, params: {lr: 0,0006}}", "optimizer: {type: Adam, params: {lr: 6,5e-4, eps: 1e-8}}",
    "{train_iters: 1,000}", "{train_iters: 1,500, seed: 1}", "{seed: 1, train_iters: 1,000,000}",
    "extra_save_iters: [1,000, 2000]", "hidden_dropout: 0,1", "weight_decay: 1,000", "train_iters: 1.000.000",
    "train_iters: 1'000",
])  # fmt: skip
def test_a_comma_in_a_number(text: str) -> None:
    problem = only(text)
    pinned(problem)
    if not text.startswith("{"):
        key, value = text.split(": ", 1)
        (again,) = draft([], [f"{key}={value}"]).problems
        assert again.hint == problem.hint


@pytest.mark.parametrize("text", [
    "optimizer: {params: {betas: (0.9, 0.95)}}", "optimizer: {params: {betas: (0.9,0.95), lr: 1e-3}}",
    "optimizer:\n  params:\n    betas: (0.9, 0.95)", "{extra_save_iters: (1, 2, 3)}",
    "optimizer: {params: {betas: (0.9, 0.95}}",
])  # fmt: skip
def test_a_tuple_of_python(text: str) -> None:
    pinned(only(text))


def test_numbers_beside_a_comma_that_are_not_one() -> None:
    assert draft([File("my.yml", "{extra_save_iters: [1,500], seed: 1,train_iters: 2}")]).problems == []
    pinned(only("{seed: 1,a}"))
    pinned(only('{seed: "1",000}'))


@pytest.mark.parametrize(
    ("text", "id", "about"),
    [
        ("hiden_size: 1", "unknown-key", ("hidden_size",)),
        ("fp16.enabled: true", "dotted-key", ("fp16.enabled",)),
        ("fp16:\nenabled: true", "misplaced-key", ("fp16.enabled",)),
        ("bfloat16:\nenabled: true", "misplaced-key", ("bf16.enabled",)),
        ("bfloat16: true", "not-a-section", ("bf16",)),
        ("save_interval: 1\ncheckpoint_factor: 1", "duplicate-key", ("checkpoint_factor",)),
        ("model: {num_layers: 2}", "misplaced-key", ("num_layers",)),
        ("fp16: true", "not-a-section", ("fp16",)),
        ("num_layers: x", "type-mismatch", ("num_layers",)),
        ("optimizer: {type: Adam, params: {max_coeff: x}}", "setting-of-another-type",
         ("optimizer.params.max_coeff", "optimizer.type")),
        ("dialect: 1999", "dialect-unknown", ("dialect",)),
    ],
)  # fmt: skip
def test_which_problem_it_is(text: str, id: str, about: tuple[str, ...]) -> None:
    assert (id, about) in [(problem.id, problem.about) for problem in draft([File("my.yml", text)]).problems]


def test_nothing_is_said_about_the_parameters_of_an_unknown_optimizer() -> None:
    (problem,) = draft([File("my.yml", "optimizer: {type: Foo, params: {beta: [0.9, 0.95]}}")]).problems
    assert problem.id == "type-mismatch"
    assert "remove" not in problem.hint


def test_a_section_with_special_characters_of_a_pattern() -> None:
    (problem,) = draft([], ["a(b.learning_rate=1"]).problems
    assert problem.id == "unknown-key"
