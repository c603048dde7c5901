"""The GPT as a module for DeepSpeed's plain engine; its pipeline gets the same parts as a list (parallel/pipeline.py).

Both give the same initial weights and the same losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neoxargs.resolve.config import Config
from neoxargs.sizes.model import weights_of_layers
from neoxargs.train.kernels.cross_entropy import Loss, Readout, Vocabulary
from neoxargs.train.model.bias import relative_bias
from neoxargs.train.model.block import TransformerBlock
from neoxargs.train.model.documents import Carried, opened
from neoxargs.train.model.embedding import PositionEmbedding, TokenEmbedding
from neoxargs.train.model.init import draw, first_rows
from neoxargs.train.model.mup import output_scale, times
from neoxargs.train.model.norm import norm
from neoxargs.train.parallel.make import Make


class OutputLayer(nn.Module):
    """The vocabulary's directions: a matrix of its own, or the token embedding's if `tied` is given."""

    def __init__(self, config: Config, vocabulary: Vocabulary, make: Make, tied: nn.Parameter | None = None) -> None:
        super().__init__()
        #: Of what it reads.
        self.scale = output_scale(config, make)
        size = (vocabulary.padded, config.shape.hidden_size)
        method = first_rows(vocabulary.size, draw(config.init.init_method, config.init, config.shape))
        self.weight = make.parameter("weight", size, method, split=0) if tied is None else tied

    def forward(self, hidden: Tensor, finish: Callable[[Readout], Any] = lambda readout: readout) -> Any:
        """`finish` turns the readout into a loss or logits here, inside, where ZeRO-3 has gathered the weight."""
        return finish(readout_of(hidden, self.weight, self.scale))


class GPT(nn.Module):
    """Tokens (batch, seq) and labels (batch, seq) -> loss; without labels, logits (batch, seq, vocabulary)."""

    def __init__(self, config: Config, vocabulary: Vocabulary, make: Make) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config, vocabulary, make.at("embedding"))
        self.positions = PositionEmbedding(config, make.at("positions"))
        #: Which of `layers` runs first, second, ...; fewer than that many where layers share their weights.
        self.order = weights_of_layers(config.shape)
        self.relative = relative_bias(config, make)
        self.layers = nn.ModuleList(
            TransformerBlock(config, make.at(f"layers.{index}"), self.order.index(index), self.relative)
            for index in sorted(set(self.order))
        )
        self.final_norm = norm(config.shape.hidden_size, config.norm, make.shards)
        tied = None if config.embedding.no_weight_tying else self.embedding.weight
        self.output = OutputLayer(config, vocabulary, make.at("output"), tied)
        self.loss = Loss.of(config, vocabulary, make)
        #: Recompute activations in runs of this many layers in the backward pass; 0 keeps them all.
        self.checkpoint_layers = 0
        self.checkpoint: Callable[..., Carried] = _checkpoint
        #: ZeRO takes a weight's gradient once, and recomputed parts may have backward passes of their own: what they
        #: share is computed outside of them.
        self.gradients_come_once = False

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        carried = self.positions(self.embedding(tokens))
        step = self.checkpoint_layers if self.training and self.checkpoint_layers else 0
        bias = None
        if self.relative is not None and step and self.gradients_come_once:
            bias = self.relative(tokens.shape[1])
        for start in range(0, len(self.order), step or len(self.order)):
            run = nn.Sequential(*(self.layers[index] for index in self.order[start:][: step or None]))
            carried = self._recomputed(run, carried, bias) if step else run(carried)
        finish = self.loss.logits if labels is None else lambda readout: self.loss(readout, labels)
        return self.output(self.final_norm(opened(carried)[0]), finish)  # type: ignore[no-any-return]

    def _recomputed(self, run: nn.Module, carried: Carried, bias: Tensor | None) -> Carried:
        """Tensors one by one: of a tuple, checkpointing would not see that its tensors need gradients."""
        alone = isinstance(carried, Tensor)
        inputs = (carried,) if alone else carried

        def part(*tensors: Tensor) -> Carried:
            if bias is None:
                return run(tensors[0] if alone else tensors)  # type: ignore[no-any-return]
            assert self.relative is not None
            with self.relative.given(tensors[-1]):
                return run(tensors[0] if alone else tensors[:-1])  # type: ignore[no-any-return]

        return self.checkpoint(part, *inputs, *(() if bias is None else (bias,)))


def _checkpoint(run: Callable[..., Carried], *carried: Tensor) -> Carried:
    # Reentrant: ZeRO-3 takes weights away between the passes, which the other kind takes for a mistake.
    return checkpoint(run, *carried, use_reentrant=True)  # type: ignore[no-any-return]


def readout_of(hidden: Tensor, weight: nn.Parameter, scale: float) -> Readout:
    """What the loss reads: (batch, seq, hidden) times `scale`, and the output layer's weight (vocabulary, hidden)."""
    # A view, not the parameter: DeepSpeed's bf16 optimizer clears gradients when the backward pass reaches the last
    # stage's output, and the parameter's own would have arrived by then.
    return Readout(times(hidden, scale), weight.view_as(weight))
