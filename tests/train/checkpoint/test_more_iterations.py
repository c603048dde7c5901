"""Raising `train_iters` on a finished run: a decay that follows it continues, after a warning about the jump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neoxargs.cli import main
from tests.support.processes import rank_arguments, step_rows, train_on_rank
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.timeout(300)
#: End of the first line of the problem.
OTHER = "[checkpoint-other-lr-schedule]\n"


def arguments(folder: Path, **changes: Any) -> list[str]:
    """Arguments of a small run on one rank that saves to and loads from its own checkpoints."""
    place = {"save": str(folder / "ckpt"), "load": str(folder / "ckpt"), "warmup": 0.1}
    return rank_arguments(folder, 1, **place | changes)


def run(folder: Path, **changes: Any) -> dict[int, float]:
    """Run, and return the learning rate of every iteration so far."""
    code, _, errors = run_ranks(train_on_rank, 1, arguments(folder, **changes))[0]
    assert code == 0, errors
    return {row["step"] - 1: row["lr"] for row in step_rows(folder)}


def checked(folder: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> tuple[int, str]:
    arguments(folder, **changes)
    capsys.readouterr()
    code = main(["check", str(folder / "run.yml")])
    return code, capsys.readouterr().err


def test_raising_train_iters_resumes_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, train_iters=6)[5] == pytest.approx(1e-3 / 5.4)
    code, told = checked(tmp_path, capsys, train_iters=9)
    assert code == 0
    assert (
        "warning: train_iters is 9 (was 6) since the checkpoint was saved. This changes the decay: at iteration 6 "
        in told
    )
    assert "the learning rate jumps from 0 to 0.00037" in told
    for words in (
        "set lr_decay_iters: 6 to end the decay where the checkpoint's schedule ends it",
        "set use_checkpoint_lr_scheduler: true to continue with the checkpoint's schedule (learning rate 0)",
        "override_lr_scheduler: true to use this configuration's schedule (0.00037)",
    ):
        assert words in told
    assert run(tmp_path, train_iters=9)[6] == pytest.approx(0.00037, rel=1e-2)

    # Each of the three settings removes the warning and has the effect that the hint describes.
    ours, theirs = {"override_lr_scheduler": True}, {"use_checkpoint_lr_scheduler": True}
    for changes, rate in ((ours, 1e-3 * 3 / 10.8), ({"lr_decay_iters": 9}, 0.0), (theirs, 0.0)):
        code, told = checked(tmp_path, capsys, iteration=9, train_iters=12, **changes)
        assert (code, "learning rate jumps" in told) == (0, False), told
        assert run(tmp_path, iteration=9, train_iters=12, **changes)[9] == pytest.approx(rate), changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr_decay_iters": 5}, f"lr_decay_iters is 5 in this configuration and 6 in the checkpoint {OTHER}"),
        ({"lr_decay_iters": 5}, "  = set lr_decay_iters: 6 to end the decay where the checkpoint's schedule ends it; "),
        ({"warmup": 0.5, "train_iters": 9},
         f"rate schedule: warmup is 0.5 in this configuration and 0.1 in the checkpoint {OTHER}"),
        ({"warmup": 0.5, "min_lr": 1e-5},
         "min_lr is 1e-05 in this configuration and 0.0 in the checkpoint, warmup is 0.5 in this "),
    ],
)  # fmt: skip
def test_a_schedule_that_the_ranks_refuse_is_refused_by_check(
    changes: dict[str, Any], words: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = checked(finished, capsys, **{"train_iters": 6} | changes)
    assert (code, words in told) == (1, True), told
    [(code, _, errors)] = run_ranks(train_on_rank, 1, arguments(finished, **{"train_iters": 6} | changes))
    assert code == 1
    assert "the learning rate schedules differ: " in errors


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run(folder, train_iters=6)
    return folder
