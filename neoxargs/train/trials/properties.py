"""Properties that a language model has whatever its settings.

A property is a pair of numbers that must be equal, or of losses that must not be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.attention import layer_window
from neoxargs.facts.data import masks_documents
from neoxargs.train.loop import Loop
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch

#: Returns a changed micro batch.
Change = Callable[[MicroBatch], MicroBatch]
#: Name -> the two numbers.
Properties = dict[str, tuple[float, float]]
#: The beginning of the names of the slopes of single weights.
SLOPE = "the gradient is the slope of the loss: "
#: The beginning of the names of the terms of routers.
EQUAL = "the losses of a router of zeros are those of equal probabilities"
#: The change of the loss by which slopes are measured, and the share of the largest gradient that is not measured.
CHANGE, NOISE = 3e-3, 1e-2


def properties(loop: Loop, config: Config, thoroughly: bool) -> Properties:
    """Return what holds of a trained model in evaluation. Collective. thoroughly: try all, not only the first."""
    trainer = loop.trainer
    data = loop.data.train(0)
    batches = None if data is None else list(islice(data, trainer.micro_batches))

    def loss(change: Change) -> float:
        """Return the loss of the first batch of the run, changed."""
        return trainer.evaluate(None if batches is None else map(change, batches), 1).loss

    first, again = (loss(lambda batch: batch) for _ in range(2))
    found = {"an evaluation draws no random numbers": (first, again)}
    if thoroughly and config.post_training.train_impl == "normal":
        found |= of_attention(loss, config)
        found |= of_labels(batches) if batches else {}
    return found


def of_attention(loss: Callable[[Change], float], config: Config) -> Properties:
    """Return which tokens see which. loss: of the model on a batch, changed."""
    quarter, half = config.shape.seq_length // 4, config.shape.seq_length // 2
    early, last, end, late = _scored(0, half), _scored(half - 1, half), _scored(-1, None), _scored(half, None)

    def divided(batch: MicroBatch) -> MicroBatch:
        starts = torch.zeros_like(batch.tokens)
        starts[:, half:] = half
        return late(replace(batch, starts=starts))

    parts = loss(_scored(0, quarter)), loss(_scored(quarter, half))
    found = {
        "a loss is the mean over its labels": (sum(parts) / 2, loss(early)),
        "no token sees a later one": (loss(early), loss(_with_others(early, half, None))),
        "a token sees the one before it": (loss(last), loss(_with_others(last, half - 2, half - 1))),
    }
    windows = [layer_window(config.attention, layer) for layer in range(config.shape.num_layers)]
    reach = sum(windows)
    if all(windows) and reach < half:
        found["no token sees one outside its windows"] = loss(end), loss(_with_others(end, 0, -reach - 1))
    if masks_documents(config.data):
        found["no token sees another document"] = loss(divided), loss(_with_others(divided, 0, half))
    return found


def of_labels(batches: Sequence[MicroBatch]) -> Properties:
    """Return the number of labels, and how many of them are the next token."""
    labels = torch.cat([batch.labels[:, :-1] for batch in batches])
    following = torch.cat([batch.tokens[:, 1:] for batch in batches])
    counted = labels != IGNORED
    return {"a label is the next token": (int(counted.sum()), int((counted & (labels == following)).sum()))}


def of_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> Properties:
    """Return for each weight the norm of its gradient, and the slope of the loss in this direction.

    loss: of the model. Norms below NOISE of the largest are left out: the loss in fp32 has too few digits for them.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    model.zero_grad(set_to_none=True)
    loss().backward()
    gradients = {name: weight.grad.clone() for name, weight in weights.items() if weight.grad is not None}
    norms = {name: float(gradient.norm()) for name, gradient in gradients.items()}
    found: Properties = {}
    for name in (name for name, norm in norms.items() if norm > NOISE * max(norms.values())):
        # Both sides, so that the curvature cancels; far enough that the loss changes in its fourth digit.
        step = gradients[name] * (CHANGE / norms[name] ** 2)
        with torch.no_grad():
            ahead = float(_moved(weights[name], step, loss))
            behind = float(_moved(weights[name], -step, loss))
        found[f"{SLOPE}{name}"] = norms[name], (ahead - behind) / (2 * CHANGE) * norms[name]
    model.zero_grad(set_to_none=True)
    return found


def _moved(weight: Tensor, step: Tensor, loss: Callable[[], Tensor]) -> Tensor:
    """Return the loss with a weight moved by `step`."""
    before = weight.clone()
    weight += step
    value = loss()
    weight.copy_(before)
    return value


def _scored(first: int, end: int | None) -> Change:
    """Return a change after which only these positions count, of which each predicts its own token."""

    def change(batch: MicroBatch) -> MicroBatch:
        labels = torch.full_like(batch.labels, IGNORED)
        labels[:, first:end] = 1
        return replace(batch, labels=labels)

    return change


def _with_others(change: Change, first: int, end: int | None) -> Change:
    """Return a change that also replaces the tokens at these positions by others."""

    def other(batch: MicroBatch) -> MicroBatch:
        tokens = batch.tokens.clone()
        tokens[:, first:end] = (tokens[:, first:end] + 7) % 251
        return change(replace(batch, tokens=tokens))

    return other
