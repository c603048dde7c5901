"""Scoring and generating with the training engine during a run, without an effect on the steps that follow.

Text has other lengths than training samples, and a task may draw random numbers. What depends on either is restored:
generators of random numbers, shapes that the pipeline has announced, compiled layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from neoxargs.train.checkpoint.random_states import random_state, restore_random_state
from neoxargs.train.engine.steps import Pipelined, Trainer
from neoxargs.train.generation.logprobs import another_loss
from neoxargs.train.process.mesh import ALONE


@contextmanager
def paused(trainer: Trainer) -> Iterator[None]:
    """Let the engine process texts of any length within this. Collective: every rank enters and leaves it."""
    engine, module = trainer.deepspeed, trainer.deepspeed.module
    trained = module.training
    # torch would compile layers for every length of a text, and give up after eight of them. Only if there are compiled
    # ones, because the first call imports torch's compiler.
    compiled = any(layer._compiled_call_impl for layer in module.modules())
    uncompiled = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with _same_random_numbers(), _whole_sequences(module), uncompiled:
        engine.eval()
        yield
    engine.train(trained)
    if isinstance(trainer, Pipelined):
        trainer.deepspeed.reset_activation_shape()


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Restore the state of all random number generators."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)


@contextmanager
def _whole_sequences(module: nn.Module) -> Iterator[None]:
    """Turn off sequence parallelism: generation passes one token at a time, which cannot be sharded."""
    sharded = [(layer, layer.sequence) for layer in module.modules() if hasattr(layer, "sequence")]
    for layer, _ in sharded:
        setattr(layer, "sequence", ALONE)  # noqa: B010
    try:
        with another_loss(module, lambda loss: replace(loss, sequence=ALONE)):
            yield
    finally:
        for layer, sequence in sharded:
            setattr(layer, "sequence", sequence)  # noqa: B010
