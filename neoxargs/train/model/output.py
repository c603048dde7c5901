"""The last part of the model: the output layer over the vocabulary, or the head of a reward model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.train.losses.cross_entropy import Readout, Vocabulary
from neoxargs.train.model.embedding import TokenEmbedding
from neoxargs.train.model.scales import output_scale, scale_by
from neoxargs.train.parallel.init import first_rows, initializer
from neoxargs.train.parallel.layers import Weights


class Head(nn.Module):
    """Reads out the hidden states. scale: muP factor on them."""

    def __init__(self, weight: nn.Parameter, scale: float) -> None:
        super().__init__()
        self.weight, self.scale = weight, scale

    def forward(self, hidden_BSD: Tensor, finish: Callable[[Readout], Any] = lambda readout: readout) -> Any:
        """Apply `finish`, which computes the loss or the logits, to the factors of the logits.

        It runs inside this module's forward pass, because ZeRO-3 gathers the weight for the duration of that only.
        """
        # A view, not the parameter: DeepSpeed's bf16 optimizer clears gradients when the backward pass reaches the last
        # stage's output, and would clear the parameter's gradient, which is already there.
        return finish(Readout(scale_by(hidden_BSD, self.scale), self.weight.view_as(self.weight)))


class OutputLayer(Head):
    """Output layer over the vocabulary, with a weight of its own or that of the embedding."""

    def __init__(
        self, config: Config, vocabulary: Vocabulary, weights: Weights, embedding: TokenEmbedding | None = None
    ) -> None:
        size = (vocabulary.padded, config.shape.hidden_size)
        method = first_rows(vocabulary.size, initializer(config.init.init_method, config.init, config.shape))
        weight = weights.parameter("weight", size, method, split=0) if embedding is None else embedding.weight
        super().__init__(weight, output_scale(config, weights.widths))


class RewardHead(Head):
    """The output layer of a reward model: one output, whose weight every tensor parallel rank has in full."""

    def __init__(self, config: Config, weights: Weights) -> None:
        method = initializer(config.init.init_method, config.init, config.shape)
        weight = weights.parameter("weight", (1, config.shape.hidden_size), method)
        super().__init__(weight, output_scale(config, weights.widths))
