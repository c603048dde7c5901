"""Continue a GPT-NeoX checkpoint with any layout: load its weights, optimizer state, schedule and counters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import as_dict
from neoxargs.config.config import Config
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.files.neox_checkpoint.comparison import mismatches
from neoxargs.files.neox_checkpoint.consistency import inconsistencies
from neoxargs.files.neox_checkpoint.contents import SCHEDULE, Contents
from neoxargs.files.neox_checkpoint.optimizer import not_restorable
from neoxargs.train.checkpoint import relayout
from neoxargs.train.checkpoint.neox.weights import NeoxWeights
from neoxargs.train.deepspeed import interface
from neoxargs.train.optim.schedule import Schedule


def weights_of(config: Config, root: Path, iteration: int | None) -> NeoxWeights | None:
    """Return the GPT-NeoX checkpoint that `load` and `iteration` select; None if there is none.

    Raises Problems if it is damaged, or belongs to a different model. DeepSpeed itself loads universal checkpoints.
    """
    if config.get("checkpoint.load_universal"):
        return None
    contents = Contents.at(root, iteration)
    return checked(contents, config) if contents else None


def checked(contents: Contents, config: Config) -> NeoxWeights:
    """Return the weights of a checkpoint; raise Problems if it is mixed up, or of a different model."""
    weights = NeoxWeights(contents, config)
    if wrong := [*inconsistencies(contents), *mismatches(config, contents, weights.located)]:
        raise Problems(wrong)
    if tied := _wrong_tied(weights):
        raise Problems(tied)
    return weights


def _wrong_tied(weights: NeoxWeights) -> Problem | None:
    """Return the problem of a value of `gpt_j_tied` that contradicts the weights.

    GPT-NeoX creates both norms of a layer in either case, and an unused norm keeps its initial values. For three weeks
    in December 2022, `gpt_j_tied` had the opposite meaning.
    """
    attention, located = weights.config.attention, weights.located.weights
    first, second = (f"layers.0.{name}.weight" for name in ("input_layernorm", "post_attention_layernorm"))
    if not attention.gpt_j_residual or second not in located or not weights.is_trained(first):
        # If not even the input norm was trained, the other one says nothing.
        return None
    if weights.is_trained(second) != attention.gpt_j_tied:
        return None
    used = "still has its initial values" if attention.gpt_j_tied is False else "was trained"
    what = f"load ({weights.folder}): {located[second].names[0]} {used}, which contradicts gpt_j_tied "
    what += str(attention.gpt_j_tied).lower()
    hint = f"set gpt_j_tied: {str(not attention.gpt_j_tied).lower()}"
    return Problem(what, hint=hint, id="checkpoint-other-model", about=("load", "gpt_j_tied"))


def load(
    engine: interface.Engine, saved: NeoxWeights, with_optimizer: bool, optional: Collection[str] = ()
) -> dict[str, Any]:
    """Fill a DeepSpeed engine; return the counters. Collective: every rank calls it.

    optional: weights that keep their values, because the checkpoint does not have them.
    """
    if with_optimizer and saved.why_incomplete:
        raise Problems(not_restorable(saved.contents, saved.why_incomplete))
    common = saved.common
    schedule = engine.lr_scheduler
    if isinstance(schedule, Schedule):
        common["lr_scheduler"] = schedule_state(schedule.curve, common["lr_scheduler"], common["iteration"])
    else:  # one of DeepSpeed's schedules, which saves only a step
        # DeepSpeed's schedules count from 0 and save the last step that was taken.
        common["lr_scheduler"] = {"last_batch_iteration": common["iteration"] - 1}
    relayout.load_weights(engine, saved, with_optimizer, optional)
    if with_optimizer:
        relayout.restore_counters(engine, saved, common)
    return common


def schedule_state(curve: LearningRateCurve, theirs: Any, iteration: int) -> dict[str, Any]:
    """Return the state of a schedule that continues GPT-NeoX's, with the values of `curve` where it has none."""
    known = theirs if isinstance(theirs, Mapping) else {}
    values = {field: known[key] for field, (key, _) in SCHEDULE.items() if key in known}
    return {**as_dict(curve), **values, "iteration": known.get("num_iters", iteration)}
