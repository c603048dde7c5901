"""What `load` restores, what it leaves out, and when it is refused; in one process, with a new engine for each case."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neoxargs.facts.position import Position
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.checksums import digest_of
from neoxargs.train.checkpoint import random_states, save_load
from neoxargs.train.checkpoint.weights_by_name import saved_layout
from neoxargs.train.process import setup
from tests.support.ranks import run_ranks
from tests.support.snapshots import pinned
from tests.support.trials import SAMPLES, Training, Trial

Case = Callable[[Path], Any]


class Foreign:
    """An object whose pickle creates a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def watch_reading(unsafe: list[str]) -> None:
    """Let torch.load add the files that it reads without `weights_only` to a list."""
    load = torch.load

    def watched(file: Any, *arguments: Any, **options: Any) -> Any:
        if not options.get("weights_only"):
            unsafe.append(str(file))
        return load(file, *arguments, **options)

    torch.load = watched


def rewrite_digests(checkpoint: Path) -> None:
    files = {path.name: path for path in checkpoint.iterdir() if path.name != checkpoint_folder.FILES}
    checkpoint_folder.write_digests(checkpoint, {name: digest_of(path) for name, path in files.items()})


def damage(folder: Path, loaded: Callable[..., None], found: dict[str, Any]) -> None:
    """Load after each kind of damage to the weights of iteration 3."""
    states, executed = folder / "global_step3" / "mp_rank_00_model_states.pt", folder / "executed"
    whole = states.read_bytes()
    states.write_bytes(whole[:5000] + bytes(byte ^ 0xFF for byte in whole[5000:5040]) + whole[5040:])
    loaded("40 bytes flipped", folder)
    loaded("40 bytes flipped, asked for", folder, iteration=3)
    torch.save({"module": Foreign(executed)}, states)
    rewrite_digests(states.parent)
    loaded("foreign", folder)
    loaded("foreign, another layout", folder, **{"zero_optimization.stage": 1})
    found["foreign: executed"] = executed.exists()
    states.write_bytes(b"")
    loaded("damaged", folder)


def runs(folder: Path, start: Callable[..., Any]) -> tuple[checkpoint_folder.Written, list[int]]:
    """Return what the checkpoint of a run records, and where runs begin that load it: the same, another, a new one."""
    _, checkpoints = start(save=str(folder))
    checkpoints.written = checkpoint_folder.Written("first", 1, "a job")
    checkpoints.save(Position(2, 2 * SAMPLES))
    recorded, began = checkpoint_folder.written_by(checkpoints.last), []
    for run, finetune in (("first", False), ("second", False), ("third", True)):
        _, checkpoints = start(load=str(folder), finetune=finetune)
        checkpoints.written = checkpoint_folder.Written(run)
        checkpoints.load()
        began.append(checkpoints.written.start)
    return recorded, began


def cases(root: str) -> dict[str, Any]:
    """Return the result of every case; each folder has checkpoints of iterations 2 and 3."""
    process = setup.start("gloo", seed=1)
    found: dict[str, Any] = {"read by pickle": []}
    watch_reading(found["read by pickle"])

    def start(**options: Any) -> tuple[Training, Any]:
        deepspeed = {"zero_optimization": {"stage": options.get("zero_optimization.stage", 0)}}
        built = Training(Trial({"hidden_dropout": 0.1}, deepspeed), **options)
        return built, built.checkpoints(process)

    def saved(name: str, **options: Any) -> Path:
        folder = Path(root, name)
        built, checkpoints = start(save=str(folder), **options)
        losses = [built.step() for _ in range(2)]
        checkpoints.save(Position(2, 2 * SAMPLES))
        losses.append(built.step())
        checkpoints.save(Position(3, 3 * SAMPLES))
        found[f"{name}: next loss"] = built.step()
        return folder

    def loaded(name: str, folder: Path, **options: Any) -> None:
        built, checkpoints = start(load=str(folder), **options)
        try:
            position = checkpoints.load()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            return
        built.batches = built.micro_batches(3 * SAMPLES)
        rate, state = built.engine.learning_rate(), built.engine.deepspeed.optimizer.state
        found[name] = (position.iteration, position.samples, bool(state), rate, built.step())

    folder = saved("whole")
    loaded("all", folder)
    loaded("finetune", folder, finetune=True)
    loaded("no_load_optim", folder, no_load_optim=True)
    for choice in ({}, {"override_lr_scheduler": True}, {"use_checkpoint_lr_scheduler": True}):
        loaded(f"no_load_optim {[*choice]}", folder, no_load_optim=True, lr_decay_iters=40, **choice)
    loaded("no_load_rng", folder, no_load_rng=True)
    loaded("iteration", folder, iteration=2)
    loaded("iteration that is not there", folder, iteration=7)
    loaded("another depth", folder, num_layers=3)
    loaded("other sharing", folder, num_unique_layers=1)
    loaded("another vocabulary", folder, no_weight_tying=True)
    loaded("another schedule", folder, lr_decay_iters=40)
    loaded("another schedule, ours", folder, lr_decay_iters=40, override_lr_scheduler=True)
    loaded("nothing there", Path(root, "nowhere"))
    loaded("nothing there yet", Path(root, "new"), save=str(Path(root, "new")))
    damage(folder, loaded, found)
    for stage in (0, 1):
        bare = saved(f"bare{stage}", no_save_optim=True, no_save_rng=True, **{"zero_optimization.stage": stage})
        found[f"bare{stage}: files"] = sorted(path.name for path in (bare / "global_step3").iterdir())
        found[f"bare{stage}: bytes"] = sum(path.stat().st_size for path in (bare / "global_step3").iterdir())
        loaded(f"bare{stage}", bare, no_load_optim=True, **{"zero_optimization.stage": stage})
    found["runs"] = runs(Path(root, "runs"), start)
    found["whole: bytes"] = sum(path.stat().st_size for path in (folder / "global_step2").iterdir())
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result: dict[str, Any] = run_ranks(cases, 1, str(tmp_path_factory.mktemp("checkpoints")), timeout=200)[0]
    return result


pytestmark = pytest.mark.timeout(300)


@pytest.mark.shows("load")
def test_a_resumed_run_continues_exactly(found: dict[str, Any]) -> None:
    *rest, rate, loss = found["all"]
    assert rest == [3, 3 * SAMPLES, True]
    assert 0 < rate < 1e-2
    assert loss == found["whole: next loss"]


@pytest.mark.shows("finetune")
def test_finetune_takes_the_weights_and_starts_at_0(found: dict[str, Any]) -> None:
    iteration, samples, has_state, rate, loss = found["finetune"]
    assert (iteration, samples, has_state, rate) == (0, 0, False, 1e-2)
    assert loss == pytest.approx(found["whole: next loss"], abs=0.05)  # other dropout masks
    assert loss != found["whole: next loss"]


@pytest.mark.shows("no-load-optim")
def test_no_load_optim_keeps_the_iteration(found: dict[str, Any]) -> None:
    iteration, samples, has_state, rate, loss = found["no_load_optim"]
    assert (iteration, samples, has_state, rate) == (3, 3 * SAMPLES, False, found["all"][3])
    assert loss == found["whole: next loss"]  # the loss is computed before the first update


def test_a_new_optimizer_follows_the_chosen_schedule(found: dict[str, Any]) -> None:
    assert found["no_load_optim ['use_checkpoint_lr_scheduler']"][3] == found["all"][3]
    assert found["no_load_optim ['override_lr_scheduler']"][3] == found["another schedule, ours"][3] > found["all"][3]


@pytest.mark.shows("no-load-rng")
def test_no_load_rng_draws_other_masks(found: dict[str, Any]) -> None:
    assert found["no_load_rng"][:4] == found["all"][:4]
    assert found["no_load_rng"][4] != found["whole: next loss"]


def test_an_iteration_can_be_chosen(found: dict[str, Any]) -> None:
    assert found["iteration"][:2] == (2, 2 * SAMPLES)
    pinned(found["iteration that is not there"], "[checkpoint-not-usable]")


def test_a_checkpoint_records_its_run_and_where_that_began(found: dict[str, Any]) -> None:
    """A run that goes on from a checkpoint of its own began where that one says."""
    assert found["runs"] == (checkpoint_folder.Written("first", 1, "a job", samples=2 * SAMPLES), [1, 2, 0])


def test_flipped_bytes_are_noticed_before_weights_are_used(found: dict[str, Any]) -> None:
    assert found["40 bytes flipped"][:2] == (2, 2 * SAMPLES)
    assert "mp_rank_00_model_states.pt has the checksum " in found["40 bytes flipped, asked for"]


@pytest.mark.parametrize("name", ["foreign", "foreign, another layout"])
def test_a_file_with_a_foreign_pickle_is_refused_and_not_executed(found: dict[str, Any], name: str) -> None:
    pinned(found[name], "[checkpoint-file-refused]")
    assert "[checkpoint-file-refused]" in found[name]
    assert not found["foreign: executed"]


def test_every_file_is_read_without_running_code_of_it(found: dict[str, Any]) -> None:
    assert found["read by pickle"] == []


def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(found: dict[str, Any]) -> None:
    assert found["damaged"][:2] == (2, 2 * SAMPLES)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("another depth", "with num_layers 2, but this run has num_layers 3"),
        ("other sharing", "with num_unique_layers None, but this run has num_unique_layers 1"),
        ("another vocabulary", "the checkpoint does not fit this model: "),
        ("another schedule", "decay_iters is 40 in this run and 30 in the checkpoint"),
        ("no_load_optim []", "decay_iters is 40 in this run and 30 in the checkpoint"),
        ("nothing there", "there is no checkpoint in this folder"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_a_problem(found: dict[str, Any], name: str, words: str) -> None:
    assert found[name].startswith("Problems: ")
    assert words in found[name]


def test_another_schedule_can_be_chosen(found: dict[str, Any]) -> None:
    assert found["another schedule, ours"][:2] == (3, 3 * SAMPLES)


def test_a_folder_that_is_also_save_may_be_empty(found: dict[str, Any]) -> None:
    assert found["nothing there yet"][:3] == (0, 0, False)


@pytest.mark.shows("no-save-optim", "no-save-rng")
@pytest.mark.parametrize("stage", [0, 1])
def test_optimizer_and_random_state_can_be_left_out(found: dict[str, Any], stage: int) -> None:
    names = found[f"bare{stage}: files"]
    assert not [name for name in names if name.startswith("random") or "optim" in name]
    assert found[f"bare{stage}: bytes"] < found["whole: bytes"] / 2
    assert found[f"bare{stage}"][:2] == (3, 3 * SAMPLES)


def test_missing_random_states_of_a_different_rank_are_reported(tmp_path: Path, monkeypatch, capsys) -> None:
    checkpoints = object.__new__(save_load.Checkpoints)
    checkpoints.process = SimpleNamespace(rank=0, main=True, device="cpu")  # type: ignore[assignment]
    checkpoints.config = values = {"hidden_dropout": 0.1, "world_size": 1}  # type: ignore[assignment]
    torch.save(random_states.random_state(), tmp_path / random_states.random_file(0))
    checkpoints._load_random_state(tmp_path, True, 3)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(save_load, "of_all_ranks", lambda value: [value, False])
    checkpoints._load_random_state(tmp_path, True, 3)
    pinned(capsys.readouterr().out)
    for size in (1, 2):
        (tmp_path / "config.json").write_text(f'{{"world_size": {size}}}')
        checkpoints._load_random_state(tmp_path, False, 3)
        pinned(capsys.readouterr().out)
    values["hidden_dropout"] = 0.0
    checkpoints._load_random_state(tmp_path, False, 3)
    assert capsys.readouterr().out == ""


def test_the_layout_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    pinned(saved_layout(tmp_path))
    (tmp_path / "config.json").write_text('{"model_parallel_size": 2, "pipe_parallel_size": 3, "world_size": 12}')
    pinned(saved_layout(tmp_path))
