"""What happens every so many iterations, against the length of the run: log lines, checkpoints, evaluations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from neoxargs.resolve.rules.rule import Findings, check, warn

#: A training step costs about three times as much as the forward pass of an evaluation on a batch of the same size.
FORWARD_PASSES_OF_A_STEP = 3


@check
def intervals_fall_into_the_run(
    train_iters: int,
    log_interval: int,
    checkpoint_factor: float | None,
    checkpoint_scale: str,
    save: str | None,
    written: Collection[str],
) -> Findings:
    """What happens at multiples of an interval never happens in a run that is shorter: no loss is logged, and
    an interrupted run has no checkpoint to continue from (https://github.com/Noble-Lab/casanovo/issues/313,
    https://github.com/NVlabs/neuralangelo/issues/33).

        train_iters: 50
        log_interval: 100
    """
    factor = checkpoint_factor if save and checkpoint_scale == "linear" else 0
    for name, interval, consequence in (
        ("log_interval", log_interval, "no loss is logged"),
        ("checkpoint_factor", factor, "no checkpoint is saved before the end"),
    ):
        if name in written and interval and interval > train_iters > 0:
            what = f"{name} ({interval:g}) is longer than the run (train_iters: {train_iters}): {consequence}"
            yield warn(what, f"set {name} to at most {train_iters}", about=[name, "train_iters"])


@check
def evaluation_costs_less_than_training(
    train_iters: int,
    eval_interval: int,
    eval_iters: int,
    validation: Mapping[str, Any] | None,
    written: Collection[str],
) -> Findings:
    """Every eval_interval iterations, eval_iters batches are evaluated, of each set of validation, each at about a
    third of the cost of a training step. Short intervals with many batches spend more time on evaluation than on
    training (https://github.com/tdrussell/qlora-pipe/pull/6, https://github.com/facebookresearch/ParlAI/issues/4390).

        eval_interval: 10
        eval_iters: 100
    """
    if not eval_interval or eval_interval > train_iters or not {"eval_interval", "eval_iters"} & set(written):
        return
    sets = len(validation or ()) or 1
    share = eval_iters * sets / (eval_iters * sets + FORWARD_PASSES_OF_A_STEP * eval_interval)
    if share > 0.5:
        what = f"about {share:.0%} of the time is spent on evaluation: eval_iters ({eval_iters}) batches "
        what += f"of each of {sets} validation sets " * (sets > 1) + "every "
        yield warn(
            f"{what}eval_interval ({eval_interval}) iterations",
            f"set eval_interval to {min(10 * eval_iters * sets, train_iters)}, or decrease eval_iters",
            about=["eval_interval", "eval_iters"],
        )
