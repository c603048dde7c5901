"""Learning rate schedule: Megatron's keys at top level."""

from __future__ import annotations

from typing import Any, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, NonNegative


class Schedule(Group, origin="Meg", effect="schedule"):
    """Warm-up and decay of the learning rate."""

    lr_decay_style: Literal["constant", "linear", "cosine", "exponential", "inverse-square-root", "WSD"] = param(
        "linear", megatron="lr-decay-style"
    )
    """Shape of the learning rate between its peak and `min_lr`. `WSD` (warm-up, stable, decay) keeps the peak until the
    last `lr_wsd_decay_iters` iterations of `lr_decay_iters`. `WSD` and `inverse-square-root` are Megatron-LM's."""

    lr_wsd_decay_iters: Count | None = param(None, ours=True, megatron="lr-wsd-decay-iters")
    """With `WSD`, number of iterations of the decay, which ends at `lr_decay_iters`."""

    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = param(
        "exponential", ours=True, megatron="lr-wsd-decay-style"
    )
    """With `WSD`, shape of the decay. `minus_sqrt` is 1 minus the square root of the decay's share (1-sqrt); most of
    the `exponential` decay, 2 x 0.5^share - 1, comes first."""

    lr_decay_iters: Count = param(derived=True, megatron="lr-decay-iters")
    """Iteration at which the decay of the learning rate ends; afterwards, the learning rate is constant. Default:
    `train_iters`."""

    lr_decay_samples: Count | None = param(None, ours=True, megatron="lr-decay-samples")
    """`lr_decay_iters` in samples, for runs whose length is given by `train_samples`."""

    lr_decay_fraction: Fraction | None = param(None, origin="NeoX")
    """`lr_decay_iters` as a fraction of `train_iters`, for runs whose length is given by `train_epochs`. If both are
    set, they must agree."""

    lr_schedule: list[dict[str, Any]] | None = param(None, ours=True, origin="NeoX")
    """The schedule as a list of phases, in place of `lr_decay_style`, `lr_decay_iters`, `warmup` and `min_lr`. Each has
    a `style` (`constant`, `linear`, `cosine`, `exponential`, `minus_sqrt`, `inverse-square-root`), its end `until`
    (iterations, a share of the run such as `0.3` or `30%`, `20B tokens` or `5M samples`; `1` is one iteration, `1.0`
    the whole run; the last ends with the run by default), and the rates `from` (by default, that of the phase before
    it, or `lr`) and `to`."""

    min_lr: NonNegative = param(0.0, megatron="min-lr")
    """The learning rate never decays below this number. At most `lr`."""

    warmup: Fraction = param(0.01, megatron="lr-warmup-fraction", receiver_default=None)
    """Fraction of `lr_decay_iters` during which the learning rate rises linearly from 0: 0.01 of 320000 iterations is
    3200 iterations. `warmup_from_zero` says whether the first iteration has a learning rate of 0."""

    warmup_from_zero: bool = param(True, origin="NeoX", ours=True)
    """Starts the warm-up at a learning rate of 0, so that the first iteration changes no weight. If false, the first
    iteration has the learning rate of the second one, as in GPT-NeoX since May 2026."""

    override_lr_scheduler: bool = param(False, megatron="override-opt-param-scheduler")
    """On resuming, uses the schedule of this configuration and ignores the one in the checkpoint. Cannot be combined
    with `use_checkpoint_lr_scheduler`."""

    use_checkpoint_lr_scheduler: bool = param(False, megatron="use-checkpoint-opt-param-scheduler")
    """On resuming, uses the schedule of the checkpoint and ignores the one in this configuration. If neither this nor
    `override_lr_scheduler` is set, a difference between the two schedules is an error. There is one exception: if
    `train_iters` has changed, a decay that ends with the run is adjusted, with a warning."""
