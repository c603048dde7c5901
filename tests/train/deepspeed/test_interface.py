"""What is used of DeepSpeed is there on every engine, and an engine or optimizer that differs is refused."""

from __future__ import annotations

from inspect import isfunction
from typing import Any

import pytest

from neoxargs.base.problems import Problems
from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.interface import USED, WEIGHTS, faults, require
from tests.support.deepspeed_version import HAS_ONEBIT
from tests.support.layouts import BF16, zero
from tests.support.ranks import run_ranks
from tests.support.trials import Training, Trial, allow_fp16

#: The protocols by which objects are told apart.
TOLD_APART: list[Any] = [kind for kind in {*USED.values(), *WEIGHTS.values()} if kind is not interface.PlainEngine]
#: Together they have every engine and wrapper.
LAYOUTS = [
    Trial({"pipe_parallel_size": 1}),
    Trial({"zero_optimization.stage": 2}, zero(2)),
    Trial({"zero_optimization.stage": 3}, zero(3)),
    Trial({"pipe_parallel_size": 1, "precision": "bfloat16"}, BF16 | {"data_types": {"grad_accum_dtype": "fp32"}}),
]
#: The only optimizers whose fp16 wrapper is used.
ONEBIT = Trial(
    {"precision": "fp16", "optimizer.type": "OneBitAdam", "optimizer.params.freeze_step": 1},
    {"fp16": {"enabled": True, "loss_scale": 8}},
)


def installed() -> dict[str, tuple[list[str], list[str]]]:
    """Return the faults of each object that DeepSpeed builds, and the protocols that it fits, by their classes."""
    from neoxargs.train.process import mesh, setup

    setup.start("gloo", seed=1)
    allow_fp16()
    found: dict[str, tuple[list[str], list[str]]] = {}
    for trial in LAYOUTS + [ONEBIT] * HAS_ONEBIT:
        engine: Any = Training(trial).engine.deepspeed
        optimizer, name = engine.optimizer, type(engine.optimizer).__name__
        weight = next(engine.module.parameters())
        for key, built, used in (
            (type(engine).__name__, engine, USED.get(type(engine).__name__)),
            (name, optimizer, USED.get(name)),
            (f"weights of {name}", weight, WEIGHTS.get(name)),
        ):
            fitted = [kind.__name__ for kind in TOLD_APART if isinstance(built, kind)]
            found[key] = list(faults(built, used)), fitted
        mesh.destroy_groups()
    return found


@pytest.mark.slow
def test_every_engine_and_wrapper_fits_its_protocol_and_no_other() -> None:
    [found] = run_ranks(installed, 1)
    assert (set(USED) <= set(found)) >= HAS_ONEBIT
    assert {name: lacks for name, (lacks, _) in found.items() if lacks} == {}
    used = USED | {f"weights of {name}": kind for name, kind in WEIGHTS.items()}
    if not HAS_ONEBIT:
        used = {name: kind for name, kind in used.items() if name != "FP16_UnfusedOptimizer"}
    kinds = {name: [kind.__name__] if kind in TOLD_APART else [] for name, kind in used.items()}
    assert {name: fitted for name, (_, fitted) in found.items() if name in used} == kinds
    assert {name: fitted for name, (_, fitted) in found.items() if name not in used and fitted} == {}


def members(protocol: Any) -> dict[str, Any]:
    """Return the members of a protocol: functions, and None for an attribute."""
    kinds = [kind for kind in reversed(protocol.__mro__) if kind.__module__ == protocol.__module__]
    attributes: dict[str, Any] = {key: None for kind in kinds for key in kind.__annotations__}
    functions = {key: value for kind in kinds for key, value in vars(kind).items() if isfunction(value)}
    return attributes | {key: value for key, value in functions.items() if value.__module__ == protocol.__module__}


def made(name: str, members: dict[str, Any]) -> Any:
    return type(name, (), members)()


def of_nobody(self: Any, *, unknown: Any) -> None: ...


@pytest.mark.parametrize("name", USED)
def test_an_object_without_a_member_or_with_a_wrong_signature_is_refused(name: str) -> None:
    complete = members(USED[name])
    assert list(faults(made(name, complete), USED[name])) == []
    for member, value in complete.items():
        [fault] = faults(made(name, {**complete, member: of_nobody}), USED[name]) if value else [""]
        assert fault == f"{name}.{member} has the parameters (*, unknown: 'Any') -> 'None'" * bool(value)
        [fault] = faults(made(name, {key: value for key, value in complete.items() if key != member}), USED[name])
        assert fault == f"{name}.{member} is missing"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "optimizer", "linked", "fault"),
    [
        ({}, {}, True, ""),
        ({"load_checkpoint": lambda self, load_dir, tag: None}, {}, True, "DeepSpeedEngine.load_checkpoint has"),
        ({}, {"step": lambda self, gradients: None}, True, "BF16_Optimizer.step has the parameters (gradients)"),
        ({}, {}, False, "Weight._hp_mapping is missing"),
    ],
)
def test_a_start_with_another_deepspeed_is_refused(engine: Any, optimizer: Any, linked: bool, fault: str) -> None:
    from torch import nn

    trained = nn.Parameter()
    trained.__class__ = type("Weight", (nn.Parameter,), {})
    if linked:
        vars(trained)["_hp_mapping"] = None
    module = nn.Module()
    module.weight = trained
    wrapper = made("BF16_Optimizer", members(interface.Bf16) | optimizer)
    built = made("DeepSpeedEngine", members(interface.PlainEngine) | engine)
    built.module, built.optimizer, built.basic_optimizer = module, wrapper, wrapper
    if not fault:
        return require(built)
    with pytest.raises(Problems) as stop:
        require(built)
    [problem] = stop.value.problems
    assert problem.id == "deepspeed-differs"
    assert fault in problem.what


def test_arguments_that_are_passed_by_name_keep_their_names() -> None:
    class PipelineEngine:
        def eval_batch(self, data_iter: Any, micro_batches: int = 1) -> None: ...

    assert any("eval_batch has the parameters" in fault for fault in faults(PipelineEngine(), USED["PipelineEngine"]))
