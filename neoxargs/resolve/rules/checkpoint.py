"""Saving: a folder needs a rhythm, and the rhythm must fit its scale."""

from __future__ import annotations

from collections.abc import Sequence

from neoxargs.resolve.rules.rule import Refusal, check


@check
def saving_has_a_rhythm(
    save: str | None, checkpoint_factor: float | None, extra_save_iters: Sequence[int] | None
) -> Refusal:
    """A folder for checkpoints needs to know when one is written."""
    if not save or checkpoint_factor is not None or extra_save_iters:
        return None
    return (
        f"save ({save}) says where checkpoints go, but nothing says when one is written",
        "write checkpoint_factor: 1000 for one every 1000 iterations",
    )


@check
def the_rhythm_fits_the_scale(checkpoint_factor: float | None, checkpoint_scale: str) -> Refusal:
    """On a linear scale checkpoint_factor counts iterations, on a log scale it multiplies them."""
    if checkpoint_factor is None:
        return None
    if checkpoint_scale == "linear" and checkpoint_factor != int(checkpoint_factor):
        sentence = f"checkpoint_factor ({checkpoint_factor}) must be a whole number of iterations"
        return sentence, "write a whole number, or checkpoint_scale: log"
    if checkpoint_scale == "log" and checkpoint_factor <= 1:
        sentence = f"checkpoint_factor ({checkpoint_factor}) must be above 1 with checkpoint_scale (log)"
        return sentence, "write checkpoint_factor: 2 to save at iterations 1, 2, 4, 8 and so on"
    return None
