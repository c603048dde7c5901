"""Saving checkpoints: `save` needs an interval, and the interval must fit its scale."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.resolve.rules.rule import Finding, check, refuse


@check
def save_needs_checkpoint_factor(
    save: str | None, checkpoint_factor: float | None, extra_save_iters: Sequence[int] | None
) -> Finding | None:
    """save alone only names a folder. Without checkpoint_factor or extra_save_iters no checkpoint is written during
    training, and a run that is interrupted or fails loses all progress.

        save: checkpoints
    """
    if not save or checkpoint_factor is not None or extra_save_iters:
        return None
    return refuse(
        f"save ({save}) needs checkpoint_factor or extra_save_iters, which say when to save",
        "set checkpoint_factor, for example to 1000 to save a checkpoint every 1000 iterations",
        about=["save"],
    )


@check
def checkpoint_factor_fits_scale(checkpoint_factor: float | None, checkpoint_scale: str) -> Finding | None:
    """On a linear scale checkpoint_factor is a number of iterations; on a log scale the saved iterations are its
    powers. A fraction of an iteration is never reached, and the powers of 1 or less never grow: the list of
    checkpoints would miss some, or have no end.

        save: checkpoints
        checkpoint_factor: 2.5
    """
    if checkpoint_factor is None:
        return None
    if checkpoint_scale == "linear" and checkpoint_factor != int(checkpoint_factor):
        what = f"checkpoint_factor ({checkpoint_factor}) must be a whole number with checkpoint_scale (linear)"
        return refuse(what, "use a whole number, or set checkpoint_scale to log", about=["checkpoint_factor"])
    if checkpoint_scale == "log" and checkpoint_factor <= 1:
        what = f"checkpoint_factor ({checkpoint_factor}) must be greater than 1 with checkpoint_scale (log)"
        return refuse(what, "set checkpoint_factor, for example to 2 to save at iterations 1, 2, 4, 8, ...")
    return None
