"""`used_by_types` of every optimizer parameter is the signature of the type that DeepSpeed builds."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
from deepspeed.runtime.engine import DeepSpeedEngine

from neoxargs.registry import REGISTRY, Parameter
from neoxargs.registry.deepspeed_optimizer import MUP, NEOX, TYPES, OptimizerParams
from tests.support.deepspeed_optimizers import CLASSES, arguments
from tests.support.deepspeed_spy import version_note

#: What DeepSpeed takes out of the parameters of its Adams before it builds one.
TAKEN = {"torch_adam", "adam_w_mode", "fp32_optimizer_states"}

#: What a type takes in a form that the parameter of that name does not have.
OTHERWISE = {"adafactor": {"eps"}}  # a pair


#: The same for types whose classes are not installed.
WRITTEN_OUT = {
    "sm3": {"lr", "momentum", "beta", "eps"},
    "madgrad_wd": {"lr", "momentum", "weight_decay", "eps"},
    "muadam": {"lr", "betas", "eps", "weight_decay", "decoupled_wd"},
    "muadamw": {"lr", "betas", "eps", "weight_decay", "decoupled_wd"},
    "musgd": {"lr", "momentum", "dampening", "weight_decay", "nesterov", "decoupled_wd"},
}

MUON = {"lr", "momentum", "weight_decay", "muon_lr", "ns_method", "betas", "eps", "adam_lr", *TAKEN}


def reads(group: Any, name: str) -> set[str]:
    """The parameters that a type reads."""
    parameters: dict[str, Parameter] = group.parameters
    return {a for a, p in parameters.items() if p.to and (not p.used_by_types or name in p.used_by_types)}


def test_every_type_is_compared_and_no_other_is_named() -> None:
    assert {*CLASSES, *WRITTEN_OUT, "muon"} == set(TYPES)
    assert set(WRITTEN_OUT) == {*MUP, *NEOX} - {"cpu_adam", "cpu_torch_adam"}
    named = {t for p in OptimizerParams.parameters.values() for t in p.used_by_types}
    assert named <= set(TYPES)
    assert set(DEEPSPEED_OPTIMIZERS) <= set(TYPES), version_note()


@pytest.mark.parametrize("name", CLASSES)
def test_an_optimizer_reads_what_its_constructor_takes(name: str) -> None:
    taken = TAKEN if name in ("adam", "adamw") else set()
    expected = taken.union(*(arguments(cls) for cls in CLASSES[name]))
    assert reads(OptimizerParams, name) == expected - OTHERWISE.get(name, set()), version_note()


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_an_optimizer_that_is_not_installed_reads_what_is_known_of_it(name: str) -> None:
    assert reads(OptimizerParams, name) == WRITTEN_OUT[name]


def test_muon_reads_what_the_engine_looks_for() -> None:
    assert reads(OptimizerParams, "muon") == MUON
    source = inspect.getsource(DeepSpeedEngine._configure_basic_optimizer)
    assert {key for key in MUON - TAKEN if f'"{key}"' not in source} == set(), version_note()


@pytest.mark.parametrize("name", CLASSES)
def test_defaults_are_the_constructors_where_types_agree(name: str) -> None:
    parameters = OptimizerParams.parameters
    pins = {a: parameters[a].default for a in reads(OptimizerParams, name) if parameters[a].default is not None}
    for cls in CLASSES[name]:
        defaults = {a: list(d) if isinstance(d, tuple) else d for a, d in arguments(cls).items() if a in pins}
        assert {a: pins[a] for a in defaults} == defaults, version_note()


def test_deepspeeds_schedulers_are_the_ones_to_choose_from() -> None:
    types = get_args(get_args(REGISTRY.parameters["scheduler.type"].type)[0])
    assert set(types) == set(lr_schedules.VALID_LR_SCHEDULES), version_note()
