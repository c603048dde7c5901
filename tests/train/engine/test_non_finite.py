"""A gradient that is infinite or NaN ends the run in the same step, with its place, and is never saved.

Where results are read late, as on GPUs, the next step has been started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from neoxargs.base.problems import Problems
from neoxargs.facts.position import Position
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.train.checkpoint import saving
from neoxargs.train.deepspeed.optimizer_view import stored_tensors
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.process import mesh, setup
from tests.support.deepspeed_version import HAS_ONEBIT
from tests.support.loops import loop_of
from tests.support.ranks import run_ranks
from tests.support.trials import SAMPLES, Training, Trial, allow_fp16

BF16: dict[str, Any] = {"bf16": {"enabled": True}}
FP16: dict[str, Any] = {"fp16": {"enabled": True, "initial_scale_power": 2, "hysteresis": 1, "min_loss_scale": 1}}
#: The step whose gradient is planted, and after which a checkpoint is due like after every other.
BAD = 3
PIPE = {"pipe_parallel_size": 2}


def trial(deepspeed: dict[str, Any], stage: int = 0, **config: Any) -> Trial:
    zero = {"zero_optimization": {"stage": stage}} if stage else {}
    return Trial({"zero_optimization.stage": stage, **config}, {**deepspeed, **zero})


EXPERTS = {"moe_num_experts": 4, "moe_expert_parallel_size": 2}
LORA = {"lora.rank": 4}
LAYOUTS = {
    **{f"fp32 ZeRO-{stage}": trial({}, stage) for stage in range(4)},
    **{f"bf16 ZeRO-{stage}": trial(BF16, stage) for stage in range(4)},
    **{f"fp16 ZeRO-{stage}": trial(FP16, stage) for stage in range(4)},
    "fp32 not clipped": trial({"gradient_clipping": 0.0}),
    "fp32 tp": trial({}, model_parallel_size=2),
    "fp32 pp": trial({}, **PIPE),
    "bf16 pp": trial(BF16, **PIPE),
    "fp16 pp": trial(FP16, **PIPE),
    "fp32 pipeline ZeRO-1": trial({}, 1, pipe_parallel_size=1),
    "fp32 ZeRO-1 offload": trial({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
                                 **{"zero_optimization.stage": 1, "zero_optimization.offload_optimizer.device": "cpu"}),
    "fp32 experts": trial({}, **EXPERTS),
    "bf16 experts ZeRO-1": trial(BF16, 1, **EXPERTS),
    "fp32 LoRA": trial({}, **LORA),
    "bf16 LoRA": trial(BF16, **LORA),
    **({"fp32 one bit": trial({}, **{"optimizer.type": "OneBitAdam", "optimizer.params.freeze_step": 1})}
       if HAS_ONEBIT else {}),
    "fp32 background": trial({}, save_in_background=True),
    **{f"{name}, read late": one for name, one in (
        ("fp32 ZeRO-0", trial({}, checkpoint_factor=100)), ("bf16 ZeRO-1", trial(BF16, 1, checkpoint_factor=100)),
        ("fp32 ZeRO-3", trial({}, 3, checkpoint_factor=100)), ("bf16 pp", trial(BF16, checkpoint_factor=100, **PIPE)),
    )},
    "bf16 skip": trial(BF16, on_divergence="skip", max_skipped_steps=1),
}  # fmt: skip


class Ended(NamedTuple):
    """How a run ended on one rank."""

    id: str
    message: str
    weight: str
    """Whose gradient was planted on rank 1."""
    broken: list[str]
    """Tensors of the checkpoints that are not finite."""


def train(trials: dict[str, Trial], root: str) -> dict[str, Ended]:
    """Train each until the planted gradient ends it."""
    process = setup.start("gloo", seed=1)
    allow_fp16()
    found = {}
    for name, one in trials.items():
        found[name] = _ended(one, process, str(Path(root, name)), read_every=100 if "late" in name else 1)
        mesh.destroy_groups()
    return found


def _ended(one: Trial, process: Any, folder: str, read_every: int) -> Ended:
    saving = {"save": folder, "checkpoint_factor": 1, "keep_last_n_checkpoints": 1, "train_iters": 9}
    built = Training(Trial(saving | one.config, one.deepspeed))
    saver = built.checkpoints(process)
    loop = loop_of(built, saver, read_every=read_every)
    weights = named_weights(built.engine.deepspeed.module)
    name = [name for name, weight in weights.items() if weight.requires_grad and len(_shape(weight)) > 1][-2]

    def plant(gradient: torch.Tensor) -> torch.Tensor:
        broken = gradient.clone()
        broken.view(-1)[3] = float("nan") if loop.position.iteration == BAD - 1 or "fp16" in one.deepspeed else 0
        return broken if loop.position.iteration >= BAD - 1 else gradient

    if process.rank == 1:
        weights[name].register_hook(plant)
    try:
        loop.run()
    except Problems as problems:
        [problem] = problems.problems
        assert loop.position.iteration == BAD + (read_every > 1) or "fp16" in one.deepspeed
        saver.close()  # which removes old checkpoints on rank 0
        return Ended(problem.id, problem.what, name, list(_not_finite(Path(folder))) if process.main else [])
    return Ended("", "", name, [])


def _shape(weight: Any) -> torch.Size:
    return getattr(weight, "ds_shape", weight.shape)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Ended]], Path]:
    root = tmp_path_factory.mktemp("runs")
    return run_ranks(train, 2, LAYOUTS, str(root), timeout=550), root


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_gradient_that_is_nan_is_named_and_never_saved(runs: tuple[list[dict[str, Ended]], Path], name: str) -> None:
    (first, second), root = runs
    ended = second[name]
    assert (first[name].id, first[name].message) == (ended.id, ended.message)
    usual = "fp16-keeps-overflowing" if "fp16" in name else "gradient-not-finite"
    assert ended.id == ("steps-keep-diverging" if "skip" in name else usual)
    # Tensor parallel ranks have equal gradients of most weights, and share their errors.
    assert f"the gradient of {ended.weight} is NaN" in ended.message
    assert "first found on rank 1 on " in ended.message
    assert ("(pipeline stage 1)" in ended.message) == (" pp" in name)
    assert f"at iteration {BAD}" in ended.message or "fp16" in name
    if "late" in name:
        assert not checkpoint_folder.checkpoints(root / name)
        return
    [saved] = checkpoint_folder.checkpoints(root / name)
    # Steps with an overflow change nothing, and may be saved.
    assert saved.name == f"global_step{BAD - 1}" or "fp16" in name
    assert checkpoint_folder.verify(saved) == ""
    assert first[name].broken == []


STORED = {name: LAYOUTS[name] for name in (
    "fp32 ZeRO-0", "fp32 ZeRO-1", "fp32 ZeRO-3", "bf16 ZeRO-0", "bf16 ZeRO-2", "fp16 ZeRO-0", "fp32 pp", "fp32 experts",
    "bf16 LoRA", "fp32 background",
)}  # fmt: skip


class Stored(NamedTuple):
    """What one rank saw of a weight that is NaN when a checkpoint is due."""

    saving: list[str]
    """The problem of the save, and what the folder then has."""
    loading: list[str]
    """The problem of a run that loads a checkpoint with such a weight, as earlier versions wrote."""


def store(trials: dict[str, Trial], root: str) -> dict[str, Stored]:
    """Break a number of each run on rank 1 after a step; save it, and load it where the save does not look."""
    process = setup.start("gloo", seed=1)
    allow_fp16()
    found = {}
    for name, one in trials.items():
        folder = Path(root, name)
        built = Training(one, save=str(folder))
        saver = built.checkpoints(process)
        built.step()
        saver.save(Position(1, SAMPLES))
        saver.finish()
        *_, (weight, state) = stored_tensors(built.engine.deepspeed)
        if process.rank == 1:
            state.detach().view(-1)[0] = float("inf")
        at_save = _problem(lambda saver=saver: saver.save(Position(2, 2 * SAMPLES)))
        files = sorted(path.name for path in folder.iterdir() if path.is_dir())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saving, "first_non_finite", lambda engine: "")
            saver.save(Position(2, 2 * SAMPLES))
            saver.finish()
        mesh.destroy_groups()
        second = Training(one, load=str(folder))
        at_load = _problem(second.checkpoints(process).load)
        mesh.destroy_groups()
        found[name] = Stored([*at_save, *files, weight], at_load)
    return found


def _problem(of: Callable[[], Any]) -> list[str]:
    try:
        of()
    except Problems as problems:
        [problem] = problems.problems
        return [problem.id, problem.what]
    return ["", ""]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_weight_or_state_that_is_not_finite_is_neither_saved_nor_loaded(tmp_path: Path) -> None:
    ranks = run_ranks(store, 2, STORED, str(tmp_path), timeout=350)
    for name in STORED:
        first, second = ranks[0][name], ranks[1][name]
        id, what, *_, weight = second.saving
        assert (id, first.saving[:2]) == ("weights-not-finite", [id, what]), name
        assert f"optimizer state of {weight} on rank 1 of " in what
        # As rank 0 saw it, which begins the next save.
        assert first.saving[2:-1] == ["global_step1"]
        # Without ZeRO, rank 0 writes the checkpoint, whose states are finite.
        assert second.loading[0] in ("checkpoint-not-finite", ""), name
        assert second.loading[0] or "ZeRO-0" in name or name in ("fp32 background", "fp32 experts"), name


def _not_finite(folder: Path) -> Iterator[str]:
    for file in folder.rglob("*.pt"):
        yield from (f"{file.name}: {key}" for key in _keys(torch.load(file, weights_only=False), ""))


def _keys(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.isfinite().all():
        yield key
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _keys(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _keys(item, f"{key}.{number}")
