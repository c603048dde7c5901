"""The parts of the GPT for DeepSpeed's pipeline engine: its list of layers, and weights tied between stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.train.deepspeed.pipeline_module import layer_specs, pipeline_module, stage_specs
from neoxargs.train.engine import recompute
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.losses.objective import loss_of
from neoxargs.train.micro_batch import PipelineLoss
from neoxargs.train.model.bias import RelativeBias
from neoxargs.train.model.blocks.table import BLOCKS
from neoxargs.train.model.documents import LayerInput, unpack
from neoxargs.train.model.embedding import PositionEmbedding
from neoxargs.train.model.lora import adapters
from neoxargs.train.model.parts import FINAL_NORM, RELATIVE, Part, build, parts
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Shapes, Weights
from neoxargs.train.process.mesh import Mesh


class FinalNorm(nn.Module):
    """The norm after the last layer, without the document starts that layers pass on.

    Its weights are `final_norm.…`; files of pipeline layers call them `norm.…`.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, inputs: LayerInput) -> Tensor:
        hidden: Tensor = self.norm(unpack(inputs)[0])
        return hidden


class _OfPart:
    """How DeepSpeed builds a part of the model on its stage. module: the part, once it is built."""

    part: Part
    relative: RelativeBias | None
    module: nn.Module | None = None

    def build(self, log: bool = False) -> nn.Module:
        self.module = self.part.build(*([self.relative] if self.part.reads_bias else []))
        return FinalNorm(self.module) if self.part.name == FINAL_NORM else self.module


class Untied(_OfPart, LayerSpec):  # type: ignore[misc]
    """A part that runs once, with weights of its own."""

    def __init__(self, part: Part, relative: RelativeBias | None) -> None:
        super().__init__(_class_of(part))
        self.part, self.relative = part, relative


class Tied(_OfPart, TiedLayerSpec):  # type: ignore[misc]
    """A part that runs repeatedly, or whose weights another part reads: one module per stage.

    DeepSpeed sums its gradients over the stages.
    """

    def __init__(self, part: Part, relative: RelativeBias | None, read_by: Part | None = None) -> None:
        """read_by: the part that runs here, on the weights of `part`."""
        # Built once, on the module of `part` that DeepSpeed passes with each input.
        reader = None if read_by is None else cache(read_by.build)
        run = None if reader is None else lambda module, hidden: reader(module)(hidden)
        # Keys are names of modules, which have no dots.
        super().__init__(part.name.replace(".", "-"), _class_of(part), forward_fn=run)
        self.part, self.relative = part, relative

    def build(self, log: bool = False) -> nn.Module:
        module = super().build(log)
        # All but the relative position bias, which `_tie_relative_bias` ties.
        own = {id(weight) for weight in self.relative.parameters()} if self.relative else set()
        self.tied_weight_attr = [name for name, weight in module.named_parameters() if id(weight) not in own]
        return module


def specifications(parts: Sequence[Part]) -> list[Any]:
    """Return the layers for `deepspeed.pipe.PipelineModule`: a specification of each part that runs."""
    by_name, names = {part.name: part for part in parts}, [part.name for part in parts]
    relative: Any = by_name[RELATIVE].build() if RELATIVE in by_name else None
    layers: list[Any] = []
    for part in parts:
        if part.tied_to:
            layers.append(Tied(by_name[part.tied_to], relative, read_by=part))
        elif part.runs:
            is_shared = names.count(part.name) > 1 or any(other.tied_to == part.name for other in parts)
            layers.append((Tied if is_shared else Untied)(part, relative))
    return layers


def count_weights(parts: Sequence[Part]) -> list[int]:
    """Return the number of elements of each part that runs. They should be those of `Shapes`, which draws no values."""
    with torch.device("meta"):
        modules = build(parts)
    return [sum(weight.numel() for weight in modules[part.name].parameters()) for part in parts if part.runs]


def pipeline(config: Config, vocabulary: Vocabulary, weights: Weights, shared: Shared, mesh: Mesh) -> Any:
    """Return this rank's stage of the model, a PipelineModule."""
    shapes = Shapes(**vars(weights))
    module = pipeline_module(
        lambda: count_weights(parts(config, vocabulary, shapes, Shared())),
        layers=specifications(parts(config, vocabulary, weights, shared)),
        topology=PipeModelDataParallelTopology(mesh.pipe.size, mesh.tensor.size, mesh.data.size),
        partition_method=config.parallel.pipe_partition_method,
        loss_fn=PipelineLoss(loss_of(config, vocabulary, weights.ranks, shared.measures)),
        activation_checkpoint_interval=recompute.checkpoint_interval(config.recompute),
        activation_checkpoint_func=recompute.checkpoint_function(config, mesh, reentrant=False),
        # Not the token embedding: its inputs are integers without gradients, and DeepSpeed's checkpoint function then
        # computes no gradients of its weights.
        checkpointable_layers=[PositionEmbedding.__name__, FinalNorm.__name__, *BLOCKS],
    )
    _tie_relative_bias(module)
    # The relative position bias first, which the layers hold too: a weight has its first name.
    relative = {RELATIVE: module.tied_modules[RELATIVE]} if RELATIVE in module.tied_modules else {}
    own = {spec.part.name: spec.module for spec in stage_specs(module) if spec.module is not None}
    module.named_parts = relative | own
    adapters.attach(module.named_parts, config, weights)
    return module


def _class_of(part: Part) -> Any:
    """Return the class whose name `pipe_partition_method` matches."""
    return FinalNorm if part.name == FINAL_NORM else part.build.func


def _tie_relative_bias(pipeline: Any) -> None:
    """Tie the relative position bias of all pipeline stages.

    DeepSpeed then sums its gradient over the stages that use it and counts it once in the gradient norm.
    """
    tables = [module for module in pipeline.modules() if isinstance(module, RelativeBias)]
    if tables:
        pipeline.tied_modules[RELATIVE] = tables[0]
    uses = [index for index, spec in enumerate(layer_specs(pipeline)) if spec.part.reads_bias]
    stages = sorted({pipeline.stage_owner(index) for index in uses})
    # Each line has the ranks of one pipeline, by stage.
    for line in pipeline.topology().get_axis_comm_lists("pipe") if len(stages) > 1 else ():
        ranks = [line[stage] for stage in stages]
        group = torch.distributed.new_group(ranks)  # collective: every rank must make every group
        if torch.distributed.get_rank() in ranks:
            # The entry that DeepSpeed makes for a TiedLayerSpec itself.
            tie = {"ranks": ranks, "group": group, "weight_attr": ["table"], "module": tables[0]}
            pipeline.tied_comms[RELATIVE] = tie
            # Replicas on later stages are left out of the gradient norm, as DeepSpeed marks its own tied weights.
            setattr(tables[0].table, "ds_pipe_replicated", torch.distributed.get_rank() != ranks[0])  # noqa: B010
