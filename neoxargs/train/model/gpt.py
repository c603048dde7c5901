"""The GPT as one module, for DeepSpeed's engine without a pipeline.

pipeline.py lists the same layers for DeepSpeed's pipeline engine. Both give the same initial weights and the
same losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neoxargs.config.config import Config
from neoxargs.facts.model import REWARD_HEAD, is_reward_model, weights_of_layers
from neoxargs.train.losses.cross_entropy import Readout, Vocabulary
from neoxargs.train.losses.objective import loss_of
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.bias import relative_bias
from neoxargs.train.model.block import block_class
from neoxargs.train.model.documents import LayerInput, pack, unpack
from neoxargs.train.model.embedding import PositionEmbedding, TokenEmbedding
from neoxargs.train.model.mup import output_scale, scale_by
from neoxargs.train.model.norm import norm
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.init import first_rows, initializer
from neoxargs.train.parallel.layers import Weights


class OutputLayer(nn.Module):
    """Output layer over the vocabulary, with a weight of its own or the token embedding's (`tied`)."""

    def __init__(
        self, config: Config, vocabulary: Vocabulary, weights: Weights, tied: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        #: muP factor on the layer's input.
        self.scale = output_scale(config, weights.widths)
        size = (vocabulary.padded, config.shape.hidden_size)
        method = first_rows(vocabulary.size, initializer(config.init.init_method, config.init, config.shape))
        self.weight = weights.parameter("weight", size, method, split=0) if tied is None else tied

    def forward(self, hidden: Tensor, finish: Callable[[Readout], Any] = lambda readout: readout) -> Any:
        """Apply `finish`, which computes the loss or the logits, to the readout of (batch, seq, hidden).

        It runs inside this module's forward pass, because ZeRO-3 gathers the weight for the duration of that only.
        """
        return finish(readout_of(hidden, self.weight, self.scale))


class RewardHead(nn.Module):
    """The output layer of a reward model: one output, whose weight every tensor parallel rank has in full."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        #: muP factor on the layer's input.
        self.scale = output_scale(config, weights.widths)
        method = initializer(config.init.init_method, config.init, config.shape)
        self.weight = weights.parameter("weight", (1, config.shape.hidden_size), method)

    def forward(self, hidden: Tensor, finish: Callable[[Readout], Any] = lambda readout: readout) -> Any:
        """As of `OutputLayer`."""
        return finish(readout_of(hidden, self.weight, self.scale))


class GPT(nn.Module):
    """Decoder-only transformer: the tensors of a `MicroBatch`, by name -> loss, or without labels logits (B, S, V)."""

    def __init__(self, config: Config, vocabulary: Vocabulary, weights: Weights, shared: Shared) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config, vocabulary, weights.at("embedding"))
        self.positions = PositionEmbedding(config, weights.at("positions"))
        #: For each layer of the model, the index in `layers` of its weights; layers that share weights repeat an index.
        self.order = weights_of_layers(config.shape)
        self.relative = relative_bias(config, weights, shared.tables)
        self.layers = nn.ModuleList(
            block_class(config, layer)(config, weights.at(f"layers.{index}"), shared, layer, self.relative)
            # Each index once: `order.index` gives the first layer that has these weights, by which its kind is chosen.
            for index, layer in sorted((index, self.order.index(index)) for index in set(self.order))
        )
        self.final_norm = norm(config.shape.hidden_size, config.norm, weights.ranks.shards)
        if is_reward_model(config):
            self.rm_linear = RewardHead(config, weights.at(REWARD_HEAD))
        else:
            # The same nn.Parameter object, so that DeepSpeed and checkpoints see one weight.
            tied = None if config.embedding.no_weight_tying else self.embedding.weight
            self.output = OutputLayer(config, vocabulary, weights.at("output"), tied)
        self.loss = loss_of(config, vocabulary, weights.ranks, shared.measures)
        #: Recompute activations in the backward pass in groups of this many layers; 0 keeps all activations.
        self.checkpoint_layers = 0
        self.checkpoint: Callable[..., LayerInput] = _checkpoint
        #: ZeRO-2 and 3 accept one gradient per weight, and with reentrant checkpointing each recomputed group runs a
        #: backward pass of its own. The relative position bias, which all groups share, is then computed outside them.
        self.reduces_gradients_once = False

    def forward(
        self, tokens: Tensor, labels: Tensor | None = None, starts: Tensor | None = None, **others: Tensor | None
    ) -> Tensor:
        """others: what only the loss reads."""
        hidden = self.positions(self.embedding(pack(tokens, starts)))
        step = self.checkpoint_layers if self.training and self.checkpoint_layers else 0
        bias = None
        if self.relative is not None and step and self.reduces_gradients_once:
            bias = self.relative(tokens.shape[1])
        # With step 0, one group with all layers.
        for start in range(0, len(self.order), step or len(self.order)):
            # Built anew for each pass: `layers` holds each set of weights once, but a layer may run several times.
            run = nn.Sequential(*(self.layers[index] for index in self.order[start:][: step or None]))
            hidden = self._recomputed(run, hidden, bias) if step else run(hidden)
        # Passed as a function because of ZeRO-3, see OutputLayer.forward.
        batch = None if labels is None else MicroBatch(tokens, labels, starts, **others)
        finish = self.loss.logits if batch is None else lambda readout: self.loss(readout, batch)
        head = self.rm_linear if hasattr(self, REWARD_HEAD) else self.output
        return head(self.final_norm(unpack(hidden)[0]), finish)  # type: ignore[no-any-return]

    def _recomputed(self, run: Callable[..., LayerInput], inputs: LayerInput, bias: Tensor | None) -> LayerInput:
        """Run a group of layers with checkpointing.

        The tensors are passed one by one, because checkpointing does not look for gradients inside a tuple.
        """
        single = isinstance(inputs, Tensor)
        flat = (inputs,) if single else inputs

        def part(*tensors: Tensor) -> LayerInput:
            if bias is None:
                return run(tensors[0] if single else tensors)
            assert self.relative is not None
            with self.relative.use_precomputed(tensors[-1]):
                return run(tensors[0] if single else tensors[:-1])

        return self.checkpoint(part, *flat, *(() if bias is None else (bias,)))


def _checkpoint(run: Callable[..., LayerInput], *inputs: Tensor) -> LayerInput:
    # Reentrant: ZeRO-3 frees gathered weights between the passes, which the non-reentrant kind reports as an error.
    return checkpoint(run, *inputs, use_reentrant=True)  # type: ignore[no-any-return]


def readout_of(hidden: Tensor, weight: nn.Parameter, scale: float) -> Readout:
    """Return the factors of the logits: `scale` x hidden (batch, seq, hidden), and weight (vocabulary, hidden)."""
    # A view, not the parameter: DeepSpeed's bf16 optimizer clears gradients when the backward pass reaches the last
    # stage's output, and would clear the parameter's gradient, which is already there.
    return Readout(scale_by(hidden, scale), weight.view_as(weight))
