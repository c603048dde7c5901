"""Warnings for values that nobody means, and none for any that somebody has used."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.base.problems import Problem, Problems
from neoxargs.registry import REGISTRY
from neoxargs.resolve import complete, draft, read_files
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.rules.usual import USUAL
from tests.support.configure import configure
from tests.support.paths import ROOT, corpus_files, needs_corpus

IDS = ("values-are-plausible", "second-beta-is-the-larger")


def found(problems: list[Problem]) -> list[str]:
    return [problem.about[0] for problem in problems if problem.id in IDS]


def warned(text: str) -> list[str]:
    return found(configure(text).warnings)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("lr: 6", ["lr"]),
        ("optimizer: {type: Adam, params: {lr: 6e4}}", ["lr"]),
        ("optimizer: {type: SGD, params: {lr: 1.0}}", []),
        ("optimizer: {type: Adam, params: {eps: 1e8}}", ["adam_eps"]),
        ("optimizer: {type: Adam, params: {betas: [0.95, 0.9]}}", ["optimizer.params.betas"]),
        ("{adam_beta1: 0.99, adam_beta2: 0.9}", ["adam_beta1"]),
        ("optimizer: {type: Lion, params: {betas: [0.95, 0.98]}}", []),
        ("{precision: fp16, fp16: {initial_scale_power: 65536}}", ["fp16.initial_scale_power"]),
        ("{precision: fp16, fp16: {initial_scale_power: 32}}", []),
        ("hidden_dropout: 0.95", ["hidden_dropout"]),
        ("init_method_std: 20", ["init_method_std"]),
        ("weight_decay: 100", ["weight_decay"]),
        ("layernorm_epsilon: 1e5", ["layernorm_epsilon"]),
        ("{lr: 0, weight_decay: 0, hidden_dropout: 0, gradient_clipping: 0}", []),
    ],
)
def test_values_far_from_the_usual(text: str, names: list[str]) -> None:
    assert warned(text) == names


@pytest.mark.parametrize("name", USUAL)
def test_every_range_contains_the_default_and_ends_where_the_type_does_not(name: str) -> None:
    """Both ends of the range that a warning names are accepted, and so is the default."""
    usual, parameter = USUAL[name], REGISTRY.parameters[name]
    ends = [float(number.replace(",", "")) for number in usual.range.split(" to ")]
    assert usual.least <= ends[0] < ends[1] <= usual.most or ends[0] == 0
    if isinstance(parameter.default, int | float):
        assert parameter.default == 0 or usual.least <= parameter.default <= usual.most


def of_file(path: Path) -> list[str]:
    try:
        return found(complete(draft(read_files([path])), 8).warnings)
    except Unresolved as stop:  # a part of a configuration
        return found(stop.problems)
    except Problems:
        return []


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yml")), ids=lambda path: path.stem)
def test_no_shipped_configuration_is_unusual(path: Path) -> None:
    assert of_file(path) == []


@needs_corpus
def test_no_published_configuration_is_unusual() -> None:
    assert {str(path): names for path in corpus_files() if (names := of_file(path))} == {}
