"""The engine of a run on this rank, with the checkpoint that it loads, and the model as text generation uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.resolve import resolve
from neoxargs.targets.wire_format import parse_rank_arguments, script_arguments
from neoxargs.train.checkpoint.save_load import Checkpoints
from neoxargs.train.engine.steps import Pipelined
from neoxargs.train.generation.generator import PipelinedModel, PlainModel
from neoxargs.train.losses.cross_entropy import Loss
from neoxargs.train.parallel.layers import Ranks
from neoxargs.train.process import mesh, setup


class Loaded(NamedTuple):
    built: Any
    config: Config
    mesh: mesh.Mesh
    vocabulary: Any
    checkpoints: Checkpoints

    def model(self) -> PlainModel | PipelinedModel:
        built, device = self.built.deepspeed, torch.device("cpu")
        built.eval()
        if not isinstance(self.built, Pipelined):
            return PlainModel(built.module, built, device)
        loss = Loss.of(self.config, self.vocabulary, Ranks(self.mesh.tensor))
        return PipelinedModel(built.module, loss, self.mesh, device, self.config.shape.hidden_size)

    def logits(self, ids: Tensor) -> Tensor | None:
        """Return the logits of all positions, (samples x positions, vocabulary), on the last stage."""
        samples, positions = ids.shape
        with torch.no_grad():
            return self.model().logits(ids.repeat_interleave(positions, 0), torch.arange(positions).repeat(samples))


def loaded_arguments(arguments: list[str], process: setup.Process, tokens: int = 257) -> Loaded:
    """Load the run of a rank's arguments. tokens: of its tokenizer."""
    from neoxargs.train.engine import build as engine

    parsed = parse_rank_arguments(arguments)
    config, here = parsed.config, mesh.build_mesh(parsed.config)
    vocabulary = engine.vocabulary(config, tokens)
    built = engine.build(config, parsed.deepspeed, vocabulary, here)
    checkpoints = Checkpoints(config, built.deepspeed, process)
    checkpoints.load()
    return Loaded(built, config, here, vocabulary, checkpoints)


def loaded_run(file: Path, changes: dict[str, Any], process: setup.Process) -> Loaded:
    """Load the run of a configuration with changes, on as many ranks as there are."""
    overrides = [f"{key}={value}" for key, value in changes.items()]
    config = resolve([file], overrides, gpus=torch.distributed.get_world_size())
    return loaded_arguments(script_arguments(config), process)
