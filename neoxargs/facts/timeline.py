"""The iterations after which a run saves and evaluates."""

from __future__ import annotations

import math

from neoxargs.config.config import Config
from neoxargs.registry.checkpoint import Checkpoint


def save_iterations(options: Checkpoint, train_iters: int) -> frozenset[int]:
    """Return the iterations after which a checkpoint is saved, in addition to the last one.

    With a linear scale, every `checkpoint_factor` iterations; with a log scale, iteration 1 and then each previous one
    times `checkpoint_factor`, rounded up. `extra_save_iters` are added.
    """
    factor, chosen = options.checkpoint_factor, set(options.extra_save_iters or ())
    if factor and options.checkpoint_scale == "linear":
        chosen |= set(range(int(factor), train_iters, int(factor)))
    elif factor and factor > 1:
        iteration = 1
        while iteration < train_iters:
            chosen.add(iteration)
            iteration = math.ceil(iteration * factor)
    return frozenset(each for each in chosen if 0 < each < train_iters)


def evaluation_iterations(config: Config) -> range:
    """Return the iterations after which the validation loss is computed, in addition to the last one."""
    options = config.training
    every = options.eval_interval if options.eval_iters and options.do_valid is not False else 0
    return range(every, options.train_iters, every) if every else range(0)
