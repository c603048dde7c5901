"""The GPT as DeepSpeed's pipeline takes it: a list of layers, what is tied between stages, and names for its weights.

A weight has one name, whatever holds it: the one that GPT gives it. A pipeline numbers its modules in its own way and
knows only those of its stage. deepspeed is imported by the functions that build: names are asked for without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from neoxargs.resolve.config import Config
from neoxargs.sizes.model import weights_of_layers
from neoxargs.train.kernels.cross_entropy import Readout, Vocabulary
from neoxargs.train.model.bias import RelativeBias, relative_bias
from neoxargs.train.model.block import TransformerBlock
from neoxargs.train.model.documents import Carried, opened
from neoxargs.train.model.embedding import PositionEmbedding, TokenEmbedding
from neoxargs.train.model.gpt import OutputLayer, readout_of
from neoxargs.train.model.norm import norm
from neoxargs.train.parallel.make import Make, Shapes
from neoxargs.train.process.mesh import ALONE, Axis

#: The one layer without a `Make`, and what its only member is called.
FINAL_NORM, ITS_NORM = "final_norm", "norm."
#: One module that every layer of a pipeline knows as its own.
RELATIVE = "attention.relative."


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
    last = TiedLayerSpec("embedding", *token_embedding, **tie, forward_fn=_read_out_tied)
    return [first, positions, *blocks, final_norm, last]


def _block(config: Config, make: Make, index: int, layer: int, relative: RelativeBias | None) -> Any:
    """A layer with weights `index`; where layers share, DeepSpeed keeps those once per stage and sums gradients."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    class Shared(TiedLayerSpec):  # type: ignore[misc]
        """All weights but the table of relative positions, which every layer knows as its own anyway."""

        def build(self, log: bool = False) -> Any:
            module = super().build(log)
            self.tied_weight_attr = [name for name, _ in module.named_parameters() if not name.startswith(RELATIVE)]
            return module

    block = (TransformerBlock, config, make.at(f"layers.{index}"), layer, relative)
    if config.shape.num_unique_layers in (None, config.shape.num_layers):
        return LayerSpec(*block)
    return Shared(f"layers-{index}", *block)


def weights_of_each(specifications: Sequence[Any]) -> list[int]:
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


def _read_out_tied(embedding: TokenEmbedding, hidden: Tensor) -> Readout:
    return readout_of(hidden, embedding.weight, embedding.output_scale)


def tie_relative_bias(pipeline: Any) -> None:
    """Keep the table of all pipeline stages one: DeepSpeed then sums its gradient over the stages that use it."""
    found = [module for module in pipeline.modules() if isinstance(module, RelativeBias)]
    if found:
        pipeline.tied_modules["relative"] = found[0]
    uses = [index for index, spec in enumerate(pipeline._layer_specs) if _reads_relative(spec)]
    stages = sorted({pipeline.stage_owner(index) for index in uses})
    for line in pipeline.topology().get_axis_comm_lists("pipe") if len(stages) > 1 else ():
        ranks = [line[stage] for stage in stages]
        group = torch.distributed.new_group(ranks)
        if torch.distributed.get_rank() in ranks:
            table = {"ranks": ranks, "group": group, "weight_attr": ["table"], "module": found[0]}
            pipeline.tied_comms["relative"] = table
            setattr(found[0].table, "ds_pipe_replicated", torch.distributed.get_rank() != ranks[0])  # noqa: B010


def _reads_relative(spec: Any) -> bool:
    return any(isinstance(argument, RelativeBias) for argument in getattr(spec, "module_args", ()))


def named(module: nn.Module) -> dict[str, nn.Parameter]:
    """This rank's weights, each once, in the model's order."""
    if not hasattr(module, "_layer_specs"):
        return dict(module.named_parameters())
    found: dict[str, nn.Parameter] = {}
    for path, layer, _ in stage(module):
        for name, weight in layer.named_parameters():
            if all(weight is not other for other in found.values()):
                found[in_gpt(path, name)] = weight
    return found


def stage(pipeline: Any) -> Iterator[tuple[str, nn.Module, int]]:
    """The layers of this rank's stage of a PipelineModule: their names, and their numbers within the stage."""
    specs = pipeline._layer_specs[pipeline._local_start : pipeline._local_stop]
    for number, (spec, layer) in enumerate(zip(specs, pipeline.forward_funcs, strict=True)):
        makes = [argument for argument in spec.module_args if isinstance(argument, Make)]
        # Tied layers are called through a function; the module itself is kept by its key.
        module = pipeline.tied_modules[spec.key] if hasattr(spec, "key") else layer
        yield makes[0].path if makes else FINAL_NORM, module, number


def in_gpt(path: str, name: str) -> str:
    """The name in GPT of a layer's weight."""
    if name.startswith(RELATIVE):
        return name.removeprefix("attention.")
    return f"{path}.{name.removeprefix(ITS_NORM) if path == FINAL_NORM else name}"
