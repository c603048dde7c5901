"""A checkpoint restores the dynamic loss scale of fp16 on any layout: its value and when it changes next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neoxargs.train.deepspeed import half_precision
from neoxargs.train.process import mesh, setup
from tests.support.layouts import PIPE
from tests.support.ranks import run_ranks
from tests.support.trials import Training, Trial, allow_fp16, staged, started

pytestmark = pytest.mark.slow

#: It falls until nothing overflows any more, and rises again after three good steps.
FP16 = {
    "enabled": True, "initial_scale_power": 26, "loss_scale_window": 3, "hysteresis": 2, "consecutive_hysteresis": True,
}  # fmt: skip
LAYOUTS = {
    "plain": Trial({}, {"fp16": FP16}),
    "pipeline": Trial(PIPE, {"fp16": FP16}),
    "ZeRO-1": staged(1, fp16=FP16),
    "ZeRO-3": staged(3, fp16=FP16),
}
BEFORE, AFTER = 6, 8
Scales = dict[str, list[float]]


def steps(built: Training, count: int) -> list[float]:
    """Return the loss scale after each of `count` steps."""
    found = []
    for _ in range(count):
        built.step()
        found.append(float(built.engine.deepspeed.optimizer.loss_scale))
    return found


def write(root: str) -> Scales:
    """Return each layout's loss scale after every step; save a checkpoint in between."""
    process, found = setup.start("gloo", seed=1), {}
    allow_fp16()
    for name, trial in LAYOUTS.items():
        built = Training(trial, save=str(Path(root, name)))
        found[name] = steps(built, BEFORE)
        built.save(process, BEFORE)
        found[name] += steps(built, AFTER)
        mesh.destroy_groups()
    return found


def read(root: str, names: list[str]) -> dict[str, Scales]:
    """Return the loss scale after every step that follows loading each checkpoint on each of these layouts."""
    process, found = setup.start("gloo", seed=1), {}
    allow_fp16()
    for name in names:
        found[name] = {}
        for source in LAYOUTS:
            built = Training(LAYOUTS[name], load=f"{root}/{source}")
            built.load(process)
            found[name][source] = steps(built, AFTER)
            mesh.destroy_groups()
    return found


@pytest.fixture(scope="module")
def scales(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scales, dict[str, Scales]]:
    root = str(tmp_path_factory.mktemp("scales"))
    before = run_ranks(write, 1, root)[0]
    two = {f"{name} of two": there for name, there in run_ranks(read, 2, root, ["ZeRO-1"])[0].items()}
    return before, run_ranks(read, 1, root, list(LAYOUTS))[0] | two


def test_the_loss_scale_falls_and_rises_in_the_compared_steps(scales: tuple[Scales, dict[str, Scales]]) -> None:
    for name, found in scales[0].items():
        rest = found[BEFORE:]
        assert rest[0] > min(rest) < rest[-1], name


@pytest.mark.parametrize("there", LAYOUTS)
@pytest.mark.parametrize("here", [*LAYOUTS, "ZeRO-1 of two"])
def test_the_loss_scale_is_restored_on_any_layout(
    scales: tuple[Scales, dict[str, Scales]], here: str, there: str
) -> None:
    before, after = scales
    assert after[here][there] == before[there][BEFORE:]


def fixed() -> dict[str, list[bool]]:
    """Return for each layout whether its steps say that a fixed loss scale overflowed."""
    too_large = {"fp16": {"enabled": True, "loss_scale": 2.0**30}}
    trials = {name: Trial(trial.config, trial.deepspeed | too_large) for name, trial in LAYOUTS.items()}
    found = {}
    for name, built in started(trials):
        results = [built.engine.train_step(built.batches) for _ in range(3)]
        found[name] = [result.skipped and result.overflowed and result.scale_is_fixed for result in results]
    return found


def test_steps_say_that_a_fixed_loss_scale_overflowed() -> None:
    assert run_ranks(fixed, 1)[0] == {name: [True] * 3 for name in LAYOUTS}


def curves(layouts: list[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Return for each layout the losses with a loss scale that doubles in every step, and with a fixed one."""
    # Without Adam and clipping, which both hide the length of a gradient.
    plain: dict[str, Any] = {"optimizer.type": "SGD", "lr": 0.5, "optimizer.params.lr": 0.5, "weight_decay": 0.0}
    scales = {"grows": {"initial_scale_power": 4, "loss_scale_window": 1}, "fixed": {"loss_scale": 16}}
    trials = {
        f"{name} {scale}": Trial(
            LAYOUTS[name].config | plain,
            LAYOUTS[name].deepspeed | {"gradient_clipping": 0, "fp16": {"enabled": True, **fp16}},
        )
        for name in layouts
        for scale, fp16 in scales.items()
    }
    found = {name: [built.step() for _ in range(4)] for name, built in started(trials)}
    return {name: (found[f"{name} grows"], found[f"{name} fixed"]) for name in layouts}


@pytest.mark.parametrize("fault", [False, True])
def test_a_step_that_doubles_the_scale_is_as_long_as_others(fault: bool) -> None:
    for name, (grows, fixed) in run_ranks(with_fault if fault else curves, 1, [*LAYOUTS])[0].items():
        assert (grows == pytest.approx(fixed, rel=1e-4)) != fault, name


def with_fault(layouts: list[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Do the same with DeepSpeed's own order, which divides by the scale of the next step."""
    half_precision.grow_scale_after_step = lambda optimizer: None
    return curves(layouts)
