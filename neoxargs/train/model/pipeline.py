"""The GPT for DeepSpeed's pipeline engine: its list of layers, weights tied between stages, and names of weights.

A weight has the same name in both engines: its name in `GPT`. DeepSpeed's pipeline numbers its modules differently and
has only those of its stage. deepspeed is imported inside the functions that build, because names are needed without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import has_attention
from neoxargs.facts.model import REWARD_HEAD, is_reward_model, weights_of_layers
from neoxargs.train.deepspeed.pipeline_module import is_pipeline_module, layer_specs, stage_specs
from neoxargs.train.losses.cross_entropy import Readout, Vocabulary
from neoxargs.train.model.bias import RelativeBias, relative_bias
from neoxargs.train.model.block import block_class
from neoxargs.train.model.documents import LayerInput, unpack
from neoxargs.train.model.embedding import PositionEmbedding, TokenEmbedding
from neoxargs.train.model.gpt import OutputLayer, RewardHead, readout_of
from neoxargs.train.model.norm import norm
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Shapes, Weights
from neoxargs.train.process.mesh import ALONE, Axis

#: Name of the only layer that is built without `Weights`, and the prefix of its weights in that layer.
FINAL_NORM, NORM_PREFIX = "final_norm", "norm."
#: Prefix of the shared relative position bias, which every pipeline layer holds as a submodule.
RELATIVE_PREFIX = "attention.relative."


def layers(config: Config, vocabulary: Vocabulary, weights: Weights, shared: Shared) -> list[Any]:
    """Return the layers for `deepspeed.pipe.PipelineModule`, whose `loss_fn` is `loss_of(config, vocabulary, …)`."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    token_embedding = (TokenEmbedding, config, vocabulary, weights.at("embedding"))
    positions = LayerSpec(PositionEmbedding, config, weights.at("positions"))
    # `order`: which weights each layer has; with `num_unique_layers` several layers have the same.
    order, relative = weights_of_layers(config.shape), relative_bias(config, weights, shared.tables)
    blocks = [_block(config, weights, shared, index, order.index(index), relative) for index in order]
    final_norm = LayerSpec(FinalNorm, config, weights.ranks.shards)
    if is_reward_model(config):
        head = LayerSpec(RewardHead, config, weights.at(REWARD_HEAD))
        return [LayerSpec(*token_embedding), positions, *blocks, final_norm, head]
    if config.embedding.no_weight_tying:
        output = LayerSpec(OutputLayer, config, vocabulary, weights.at("output"))
        return [LayerSpec(*token_embedding), positions, *blocks, final_norm, output]
    tie = {"tied_weight_attr": "word_embeddings.weight"}
    first = TiedLayerSpec("embedding", *token_embedding, **tie)
    last = TiedLayerSpec("embedding", *token_embedding, **tie, forward_fn=_read_out_tied)
    return [first, positions, *blocks, final_norm, last]


def _block(
    config: Config, weights: Weights, shared: Shared, index: int, layer: int, relative: RelativeBias | None
) -> Any:
    """Return the specification of layer `layer` with the weights `index`.

    If layers share weights, DeepSpeed keeps them once per stage and sums their gradients over the stages.
    """
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    class Shared(TiedLayerSpec):  # type: ignore[misc]
        """Ties all weights except the relative position bias, which `tie_relative_bias` ties."""

        def build(self, log: bool = False) -> Any:
            module = super().build(log)
            self.tied_weight_attr = [
                name for name, _ in module.named_parameters() if not name.startswith(RELATIVE_PREFIX)
            ]
            return module

    bias = relative if has_attention(config, layer) else None
    block = (block_class(config, layer), config, weights.at(f"layers.{index}"), shared, layer, bias)
    if config.shape.num_unique_layers in (None, config.shape.num_layers):
        return LayerSpec(*block)
    return Shared(f"layers-{index}", *block)


def count_weights(specifications: Sequence[Any]) -> list[int]:
    """Return the number of trainable elements of each of `layers` on this rank, without drawing initial values."""
    counts = []
    for layer in specifications:
        # `Weights` is the argument that draws values, so it is replaced by one that makes shapes.
        arguments = [_shapes(x) if isinstance(x, Weights) else x for x in layer.module_args]
        with torch.device("meta"):
            module = layer.typename(*arguments, **layer.module_kwargs)
        counts.append(sum(weight.numel() for weight in module.parameters() if weight.requires_grad))
    return counts


def _shapes(weights: Weights) -> Shapes:
    return Shapes(**{field.name: getattr(weights, field.name) for field in fields(weights)})


class FinalNorm(nn.Module):
    """The norm after the last transformer layer, as a class, because a LayerSpec needs one."""

    def __init__(self, config: Config, shards: Axis = ALONE) -> None:
        super().__init__()
        self.norm = norm(config.shape.hidden_size, config.norm, shards)

    def forward(self, inputs: LayerInput) -> Tensor:
        return self.norm(unpack(inputs)[0])  # type: ignore[no-any-return]


def _read_out_tied(embedding: TokenEmbedding, hidden: Tensor) -> Readout:
    return readout_of(hidden, embedding.weight, embedding.output_scale)


def tie_relative_bias(pipeline: Any) -> None:
    """Tie the relative position bias of all pipeline stages.

    DeepSpeed then sums its gradient over the stages that use it and counts it once in the gradient norm.
    """
    tables = [module for module in pipeline.modules() if isinstance(module, RelativeBias)]
    if tables:
        pipeline.tied_modules["relative"] = tables[0]
    uses = [index for index, spec in enumerate(layer_specs(pipeline)) if _reads_relative(spec)]
    stages = sorted({pipeline.stage_owner(index) for index in uses})
    # Each line has the ranks of one pipeline, by stage.
    for line in pipeline.topology().get_axis_comm_lists("pipe") if len(stages) > 1 else ():
        ranks = [line[stage] for stage in stages]
        group = torch.distributed.new_group(ranks)  # collective: every rank must make every group
        if torch.distributed.get_rank() in ranks:
            # The entry that DeepSpeed makes for a TiedLayerSpec itself.
            tie = {"ranks": ranks, "group": group, "weight_attr": ["table"], "module": tables[0]}
            pipeline.tied_comms["relative"] = tie
            # Replicas on later stages are left out of the gradient norm, as DeepSpeed marks its own tied weights.
            setattr(tables[0].table, "ds_pipe_replicated", torch.distributed.get_rank() != ranks[0])  # noqa: B010


def _reads_relative(spec: Any) -> bool:
    return any(isinstance(argument, RelativeBias) for argument in getattr(spec, "module_args", ()))


def named_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return this rank's weights by their names in `GPT`, each once, in the model's order."""
    if not is_pipeline_module(module):
        return dict(module.named_parameters())
    weights: dict[str, nn.Parameter] = {}
    for path, layer, _ in stage_layers(module):
        for name, weight in layer.named_parameters():
            # A layer that is used twice, or a tied weight, occurs once.
            if all(weight is not other for other in weights.values()):
                weights[gpt_name(path, name)] = weight
    return weights


def stage_layers(pipeline: Any) -> Iterator[tuple[str, nn.Module, int]]:
    """Yield the layers of this rank's stage of a PipelineModule: name, module, index within the stage."""
    for number, (spec, layer) in enumerate(zip(stage_specs(pipeline), pipeline.forward_funcs, strict=True)):
        makes = [argument for argument in spec.module_args if isinstance(argument, Weights)]
        # forward_funcs has a function for a tied layer; the module is in tied_modules.
        module = pipeline.tied_modules[spec.key] if hasattr(spec, "key") else layer
        yield makes[0].path if makes else FINAL_NORM, module, number


def gpt_name(path: str, name: str) -> str:
    """Return a weight's name in `GPT` from the layer's path and the weight's name in the layer."""
    if name.startswith(RELATIVE_PREFIX):
        return name.removeprefix("attention.")
    return f"{path}.{name.removeprefix(NORM_PREFIX) if path == FINAL_NORM else name}"
