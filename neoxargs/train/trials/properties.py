"""Properties that a language model has whatever its settings: each is tried on the run's own engine, in evaluation.

A property is a pair of losses that must be equal, or that must not be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import torch

from neoxargs.config.config import Config
from neoxargs.facts.data import masks_documents
from neoxargs.train.loop import Loop
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch

#: Returns a changed micro batch.
Change = Callable[[MicroBatch], MicroBatch]


def properties(loop: Loop, config: Config, thoroughly: bool) -> dict[str, tuple[float, float]]:
    """Return name -> the two losses. Collective. thoroughly: try all properties, not only the first."""
    trainer = loop.trainer
    data = loop.data.train(0)
    batches = None if data is None else list(islice(data, trainer.deepspeed.gradient_accumulation_steps()))

    def loss(change: Change) -> float:
        """Return the loss of the first batch of the run, changed."""
        return trainer.evaluate(None if batches is None else map(change, batches), 1).loss

    found = {"an evaluation draws no random numbers": (loss(_same), loss(_same))}
    if not thoroughly or config.post_training.train_impl != "normal":
        return found
    quarter, half = config.shape.seq_length // 4, config.shape.seq_length // 2
    parts = [loss(_scored(0, quarter)), loss(_scored(quarter, half))]
    found["a loss is the mean over its labels"] = sum(parts) / 2, loss(_scored(0, half))
    early, last = _scored(0, half), _scored(half - 1, half)
    found["no token sees a later one"] = loss(early), loss(lambda batch: early(_other_tokens(batch, half, None)))
    found["a token sees the one before it"] = (
        loss(last),
        loss(lambda batch: last(_other_tokens(batch, half - 2, half - 1))),
    )
    reach = config.shape.num_layers * (config.attention.sliding_window_width or 0)
    if 0 < reach < half and config.attention.window_attn_skip_freq is None:  # every layer has the window
        end = _scored(-1, None)
        found["no token sees one outside its windows"] = (
            loss(end),
            loss(lambda batch: end(_other_tokens(batch, 0, -reach - 1))),
        )
    if masks_documents(config.data):
        late = _scored(half, None)

        def divided(batch: MicroBatch) -> MicroBatch:
            starts = torch.zeros_like(batch.tokens)
            starts[:, half:] = half
            return late(replace(batch, starts=starts))

        other = loss(lambda batch: divided(_other_tokens(batch, 0, half)))
        found["no token sees another document"] = loss(divided), other
    return found


def _same(batch: MicroBatch) -> MicroBatch:
    return batch


def _scored(first: int, end: int | None) -> Change:
    """Return a change after which only these positions count, of which each predicts its own token."""

    def change(batch: MicroBatch) -> MicroBatch:
        labels = torch.full_like(batch.labels, IGNORED)
        labels[:, first:end] = 1
        return replace(batch, labels=labels)

    return change


def _other_tokens(batch: MicroBatch, first: int, end: int | None) -> MicroBatch:
    """Return the micro batch with other tokens at these positions."""
    tokens = batch.tokens.clone()
    tokens[:, first:end] = (tokens[:, first:end] + 7) % 251
    return replace(batch, tokens=tokens)
