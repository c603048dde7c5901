"""Saving: a folder needs an interval, and the interval must fit its scale."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.resolve.rules.rule import Finding, check, refuse


@check
def save_needs_checkpoint_factor(
    save: str | None, checkpoint_factor: float | None, extra_save_iters: Sequence[int] | None
) -> Finding | None:
    """save alone only names a folder. Without checkpoint_factor (or extra_save_iters) no checkpoint is written on the
    way, and a run that is interrupted or fails loses everything.

        save: checkpoints
    """
    if not save or checkpoint_factor is not None or extra_save_iters:
        return None
    return refuse(
        f"save ({save}) says where checkpoints go, but nothing says when one is written",
        "write checkpoint_factor: 1000 for one every 1000 iterations",
        about=["save"],
    )


@check
def checkpoint_factor_fits_scale(checkpoint_factor: float | None, checkpoint_scale: str) -> Finding | None:
    """On a linear scale checkpoint_factor counts iterations, on a log scale it multiplies them. A fraction of an
    iteration never comes, and a factor of 1 or less never grows: checkpoints would be missing, or endless.

        save: checkpoints
        checkpoint_factor: 2.5
    """
    if checkpoint_factor is None:
        return None
    if checkpoint_scale == "linear" and checkpoint_factor != int(checkpoint_factor):
        what = f"checkpoint_factor ({checkpoint_factor}) must be a whole number of iterations"
        return refuse(what, "write a whole number, or checkpoint_scale: log", about=["checkpoint_factor"])
    if checkpoint_scale == "log" and checkpoint_factor <= 1:
        what = f"checkpoint_factor ({checkpoint_factor}) must be above 1 with checkpoint_scale (log)"
        return refuse(what, "write checkpoint_factor: 2 to save at iterations 1, 2, 4, 8 and so on")
    return None
