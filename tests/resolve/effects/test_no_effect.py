"""Parameters without effect are reported with their line and the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neoxargs.base.problems import Problem, render
from neoxargs.checks.trainer import trainer_problems
from neoxargs.registry import ABSENT, REGISTRY, Parameter
from tests.support.configure import configure
from tests.support.snapshots import pinned


def warnings(*texts: str) -> list[Problem]:
    return [problem for problem in trainer_problems(configure(*texts)) if problem.severity == "warning"]


EXPERTS = "train.py divides the experts of its own model, according to the moe_* parameters"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mask_prob: 0.2", "mask_prob (0.2) has no effect: only BERT, ICT and REALM read it"),
        ("DDP_impl: torch", 'DDP_impl ("torch") has no effect: DeepSpeed averages the gradients'),
        ("pipeline: {seed_layers: true}", "pipeline.seed_layers (true) has no effect: DeepSpeed does not read it"),
        ("expert_parallel: {top_k: 2}", f"expert_parallel.top_k (2) has no effect: {EXPERTS}"),
        ("bf16: {enabled: true, loss_scale: 4}", "bf16.loss_scale (4.0) has no effect: bfloat16 needs no loss scaling"),
    ],
)  # fmt: skip
def test_the_words(text: str, what: str) -> None:
    (problem,) = warnings(text)
    assert problem.what == what
    assert problem.hint == f"remove {what.partition(' ')[0]}"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("bf16: {enabled: true, loss_scale: 4, hysteresis: 2, min_loss_scale: 1}",
         "bf16.loss_scale (4.0), bf16.hysteresis (2) and bf16.min_loss_scale (1.0) have no effect: bfloat16 needs no "
         "loss scaling", "remove bf16.loss_scale, bf16.hysteresis and bf16.min_loss_scale"),
        ("{mask_prob: 0.2, short_seq_prob: 0.2}",
         "mask_prob (0.2) and short_seq_prob (0.2) have no effect: only BERT, ICT and REALM read them",
         "remove mask_prob and short_seq_prob"),
        ("elasticity: {min_gpus: 2, max_gpus: 4}",
         "elasticity.min_gpus (2) and elasticity.max_gpus (4) have no effect: they are used only for elastic batch "
         "sizes, which train.py does not support", "remove elasticity.min_gpus and elasticity.max_gpus"),
    ],
)  # fmt: skip
def test_parameters_with_the_same_reason_are_one_warning(text: str, what: str, hint: str) -> None:
    (problem,) = warnings(text)
    assert (problem.what, problem.hint) == (what, hint)


def test_a_warning_names_its_line() -> None:
    pinned(render(warnings("num_layers: 4\nmask_prob: 0.2")).splitlines()[0])


@pytest.mark.parametrize(
    "text",
    [
        "mask_prob: 0.15",
        "DDP_impl: local",
        "fp16: {enabled: true, fp16: true}",
        "amp: {enabled: false, opt_level: O2}",
    ],
)
def test_no_warning_for_defaults_and_disabled_sections(text: str) -> None:
    assert warnings(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "{moe_num_experts: 4, moe_glu: true, moe_type: deepspeed, moe_top_k: 2}",
        "amp: {enabled: true, opt_level: O2}",
        "data_efficiency: {enabled: true, data_routing: {random_ltd: {total_layer_num: 4}}}",
    ],
)
def test_parameters_of_a_refused_group_are_one_problem(text: str) -> None:
    problems = trainer_problems(configure(text))
    assert [problem.severity for problem in problems] == ["error"]


def other(parameter: Parameter) -> Any:
    """Return a value other than the default; None if there is no simple one."""
    kind, default = parameter.annotation.split(" |")[0], parameter.default
    if default is ABSENT or isinstance(default, dict | list):
        return None
    guesses = {"bool": not default, "str": "a", "int": 3, "Count": 3, "Natural": 3, "float": 0.5, "Fraction": 0.5}
    guess = guesses.get(kind)
    return guess if guess != default else None


#: Set alone, these are refused, or have an effect because they are switches.
NOT_ALONE = ("bf16.", "fp16.", "weight_quantization.enabled")
INERT = [p for p in REGISTRY.parameters.values() if p.effect == "none" and not p.name.startswith(NOT_ALONE)]
GUESSED = {p.name: value for p in INERT if (value := other(p)) is not None}


@pytest.mark.parametrize("name", GUESSED)
def test_every_parameter_without_effect_is_reported(name: str) -> None:
    value: Any = GUESSED[name]
    for part in reversed(name.split(".")):
        value = {part: value}
    found = [problem.what for problem in warnings(json.dumps(value))]
    assert [what for what in found if what.startswith(f"{name} (")], found


def test_most_parameters_without_effect_are_tried() -> None:
    assert len(GUESSED) > 100
