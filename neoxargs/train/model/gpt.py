"""The GPT, twice from the same parts: a module for DeepSpeed's plain engine, a list of layers for its pipeline.

Both give the same initial weights and the same losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neoxargs.resolve.config import Config
from neoxargs.sizes.model import weights_of_layers
from neoxargs.train.kernels.cross_entropy import Loss, Readout, Vocabulary
from neoxargs.train.model.bias import RelativeBias, relative_bias
from neoxargs.train.model.block import TransformerBlock
from neoxargs.train.model.documents import Carried, opened
from neoxargs.train.model.embedding import PositionEmbedding, TokenEmbedding
from neoxargs.train.model.init import draw, first_rows
from neoxargs.train.model.mup import output_scale, times
from neoxargs.train.model.norm import norm
from neoxargs.train.parallel.make import Make, Shapes
from neoxargs.train.process.mesh import ALONE, Axis


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
        return finish(_readout(hidden, self.weight, self.scale))


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


def layers(config: Config, vocabulary: Vocabulary, make: Make) -> list[Any]:
    """The same GPT for `deepspeed.pipe.PipelineModule`, whose `loss_fn` is `Loss.of(config, vocabulary, make)`."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    token_embedding = (TokenEmbedding, config, vocabulary, make.at("embedding"))
    positions = LayerSpec(PositionEmbedding, config, make.at("positions"))
    order, relative = weights_of_layers(config.shape), relative_bias(config, make)
    blocks = [_block(config, make, index, order.index(index), relative) for index in order]
    final_norm = LayerSpec(FinalNorm, config, make.shards)
    if config.embedding.no_weight_tying:
        output = LayerSpec(OutputLayer, config, vocabulary, make.at("output"))
        return [LayerSpec(*token_embedding), positions, *blocks, final_norm, output]
    tie = {"tied_weight_attr": "word_embeddings.weight"}
    first = TiedLayerSpec("embedding", *token_embedding, **tie)
    last = TiedLayerSpec("embedding", *token_embedding, **tie, forward_fn=_read_out)
    return [first, positions, *blocks, final_norm, last]


def _block(config: Config, make: Make, index: int, layer: int, relative: RelativeBias | None) -> Any:
    """A layer with weights `index`; where layers share, DeepSpeed keeps those once per stage and sums gradients."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    class Shared(TiedLayerSpec):  # type: ignore[misc]
        def build(self, log: bool = False) -> Any:
            module = super().build(log)
            self.tied_weight_attr = [
                name for name, _ in module.named_parameters() if name != "attention.relative.table"
            ]
            return module

    block = (TransformerBlock, config, make.at(f"layers.{index}"), layer, relative)
    if config.shape.num_unique_layers in (None, config.shape.num_layers):
        return LayerSpec(*block)
    return Shared(f"layers-{index}", *block)


def sizes(specifications: Sequence[Any]) -> list[int]:
    """How many trainable numbers each of `layers` has on this rank, without drawing any of them."""
    found = []
    for layer in specifications:
        arguments = [_shapes(x) if isinstance(x, Make) else x for x in layer.module_args]
        with torch.device("meta"):
            built = layer.typename(*arguments, **layer.module_kwargs)
        found.append(sum(weight.numel() for weight in built.parameters() if weight.requires_grad))
    return found


def _shapes(make: Make) -> Shapes:
    return Shapes(**{field.name: getattr(make, field.name) for field in fields(make)})


class FinalNorm(nn.Module):
    """The norm after the last layer, as a class of its own because a layer specification needs one."""

    def __init__(self, config: Config, shards: Axis = ALONE) -> None:
        super().__init__()
        self.norm = norm(config.shape.hidden_size, config.norm, shards)

    def forward(self, carried: Carried) -> Tensor:
        return self.norm(opened(carried)[0])  # type: ignore[no-any-return]


def _read_out(embedding: TokenEmbedding, hidden: Tensor) -> Readout:
    return _readout(hidden, embedding.weight, embedding.output_scale)


def _readout(hidden: Tensor, weight: nn.Parameter, scale: float) -> Readout:
    # A view, not the parameter: DeepSpeed's bf16 optimizer clears gradients when the backward pass reaches the last
    # stage's output, and the parameter's own would have arrived by then.
    return Readout(times(hidden, scale), weight.view_as(weight))
