"""Scoring and generating with the training engine during a run, without an effect on the steps that follow.

Text has other lengths than training samples, and a task may draw random numbers. What depends on either is restored:
generators of random numbers, shapes that the pipeline has announced, compiled layers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from neoxargs.train.engine.steps import Pipelined, Trainer
from neoxargs.train.generation.logprobs import another_loss
from neoxargs.train.process.mesh import ALONE


@contextmanager
def paused(trainer: Trainer) -> Iterator[None]:
    """Let the engine process texts of any length within this. Collective: every rank enters and leaves it."""
    engine, module = trainer.deepspeed, trainer.deepspeed.module
    trained = module.training
    with _same_random_numbers(engine.device), _whole_sequences(module), _uncompiled(module):
        engine.eval()
        yield
    engine.train(trained)
    if isinstance(trainer, Pipelined):
        trainer.deepspeed.reset_activation_shape()


@contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    """Restore the state of all random number generators."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


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


def _uncompiled(module: nn.Module) -> AbstractContextManager[object]:
    """Do not use compiled layers: torch would compile them for every length, and give up after eight of them."""
    compiled = any(layer._compiled_call_impl for layer in module.modules())
    # Only then, because the first call imports torch's compiler.
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
