"""What is used of DeepSpeed is there on every engine, and an engine or optimizer that differs is refused."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.base.problems import Problems
from neoxargs.train.deepspeed.interface import USED, faults, require
from tests.support.ranks import run_ranks
from tests.support.trials import Training, Trial, allow_fp16

ZERO = {stage: {"zero_optimization": {"stage": stage}} for stage in (1, 2, 3)}
HALF: dict[str, Any] = {"bf16": {"enabled": True}}
#: Together they have every engine and wrapper.
LAYOUTS = [
    Trial({"pipe_parallel_size": 1}),
    Trial({"zero_optimization.stage": 2}, ZERO[2]),
    Trial({"zero_optimization.stage": 3}, ZERO[3]),
    Trial({"pipe_parallel_size": 1, "precision": "bfloat16"}, HALF | {"data_types": {"grad_accum_dtype": "fp32"}}),
    Trial(
        {"precision": "fp16", "optimizer.type": "OneBitAdam", "optimizer.params.freeze_step": 1},
        {"fp16": {"enabled": True, "loss_scale": 8}},
    ),
]


def installed() -> dict[str, list[str]]:
    """Return the faults of each engine and optimizer that DeepSpeed builds, by their classes."""
    from neoxargs.train.process import mesh, setup

    setup.start("gloo", seed=1)
    allow_fp16()
    found: dict[str, list[str]] = {}
    for trial in LAYOUTS:
        engine: Any = Training(trial).engine.deepspeed
        for built in (engine, engine.optimizer):
            name = type(built).__name__
            found[name] = list(faults(built, USED.get(name)))
        mesh.destroy_groups()
    return found


@pytest.mark.slow
def test_every_engine_and_wrapper_fits() -> None:
    [found] = run_ranks(installed, 1)
    assert set(USED) <= set(found)
    assert {name: lacks for name, lacks in found.items() if lacks} == {}


class Wrapper:
    """A BF16_Optimizer with the right names."""

    optimizer = grad_acc_dtype = clip_grad = bf16_groups = fp32_groups_gradients = fp32_groups_flat_partition = None
    fp32_groups_gradient_flat_partition = None

    def step(self, closure: Any = None) -> None: ...

    def update_lp_params(self) -> None: ...

    def clear_hp_grads(self) -> None: ...

    def _lazy_init_hp_params_optimizer_state(self) -> None: ...


def named(name: str, **members: Any) -> Any:
    return type(name, (Wrapper,), members)()


@pytest.mark.slow
def test_a_wrapper_with_the_right_names_and_a_wrong_signature_is_refused() -> None:
    require(named("BF16_Optimizer"))
    require(named("OfAnUnknownName", step=lambda self, gradients: None))
    with pytest.raises(Problems) as stop:
        require(named("BF16_Optimizer", step=lambda self, gradients: None))
    [problem] = stop.value.problems
    assert problem.id == "deepspeed-differs"
    assert "BF16_Optimizer.step has the parameters (gradients)" in problem.what


@pytest.mark.parametrize("member", ["clip_grad", "clear_hp_grads"])
def test_a_wrapper_without_a_member_is_refused(member: str) -> None:
    lacking = {key: value for key, value in vars(Wrapper).items() if key != member and not key.startswith("__")}
    [fault] = faults(type("Lacking", (), lacking)(), USED["BF16_Optimizer"])
    assert fault == f"Lacking.{member} is missing"


def test_arguments_that_are_passed_by_name_keep_their_names() -> None:
    class PipelineEngine:
        def eval_batch(self, data_iter: Any, micro_batches: int = 1) -> None: ...

    assert any("eval_batch has the parameters" in fault for fault in faults(PipelineEngine(), USED["PipelineEngine"]))
