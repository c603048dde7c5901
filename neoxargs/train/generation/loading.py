"""Load a checkpoint's model without its training state, to generate text or to evaluate it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.config.value import Source
from neoxargs.data.tokenizer import Tokenizer
from neoxargs.facts.trained import prompt_length
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.train.checkpoint import choose
from neoxargs.train.checkpoint.save_load import Checkpoints
from neoxargs.train.deepspeed import interface
from neoxargs.train.engine import build
from neoxargs.train.engine.steps import Pipelined, Trainer
from neoxargs.train.generation.generator import Generator, PipelinedModel, PlainModel
from neoxargs.train.losses.cross_entropy import Loss
from neoxargs.train.model.documents import needs_document_starts
from neoxargs.train.model.rotary import each_length, length_of_same_angles
from neoxargs.train.model.soft_prompt.prompt import PLACEHOLDER
from neoxargs.train.parallel.layers import Ranks
from neoxargs.train.process import setup
from neoxargs.train.process.mesh import Mesh

#: Prompts in one batch, per data parallel rank.
ROWS = 16


def load_model(
    config: Config, json: dict[str, Any], tokenizer: Tokenizer, mesh: Mesh, process: setup.Process
) -> tuple[Trainer, Path | None]:
    """Build this rank's part of the model, load the checkpoint, and return both with the checkpoint's folder.

    config: as `for_generation` returns. json: DeepSpeed's configuration, as `without_training` returns.
    """
    begun = choose.begin(config)
    rows = build.vocabulary(config, tokenizer.vocab_size, tokenizer.eod)
    trainer = build.build(config, json, rows, mesh, trains=config.zero_optimization.stage == 3)
    checkpoints = Checkpoints(config, trainer.deepspeed, process)
    checkpoints.begun = begun
    checkpoints.load()
    trainer.deepspeed.eval()
    return trainer, checkpoints.last


def make_generator(
    trainer: Trainer, config: Config, tokenizer: Tokenizer, mesh: Mesh, process: setup.Process
) -> Generator:
    """Return the generator that continues prompts with a loaded model."""
    model: PlainModel | PipelinedModel
    if isinstance(trainer, Pipelined):
        # Without sequence parallelism, see `for_generation`.
        loss = Loss.of(config, build.vocabulary(config, tokenizer.vocab_size), Ranks(mesh.tensor))
        model = PipelinedModel(
            trainer.deepspeed.module,
            loss,
            mesh,
            process.device,
            config.shape.hidden_size,
            needs_document_starts(config.data),
        )
    else:
        plain: Any = trainer.deepspeed
        model = PlainModel(plain.module, plain, process.device)
    seed, context = config.training.seed, length_of_same_angles(config)
    generator = Generator(
        model, tokenizer, config.generation, config.shape.seq_length, mesh, seed, context, each_length(config)
    )
    generator.prefix = [PLACEHOLDER] * prompt_length(config.soft_prompt)
    return generator


def for_generation(config: Config) -> Config:
    """Return the configuration for generation: without training state, with `load` set to `save` if it is not set.

    Raises Problems if there is no checkpoint.
    """
    folder = config.checkpoint.load or config.checkpoint.save
    if not folder:
        what = "there is no checkpoint to load: neither load nor save is set"
        hint = "set load to a folder with a checkpoint"
        raise Problems(Problem(what, hint=hint, id="checkpoint-missing", about=("load", "save")))
    if checkpoint_folder.newest(Path(folder)) is None:
        hint = "set load to a folder with a checkpoint; to write one, run deepy.py train.py with save: FOLDER"
        name = "load" if config.checkpoint.load else "save"
        what = f"{name} ({folder}): there is no checkpoint in this folder"
        raise Problems(Problem(what, hint=hint, id="checkpoint-missing", about=(name,)))
    changes: dict[str, Any] = {"load": folder, "no_load_optim": True, "no_load_rng": True, "finetune": False}
    changes["override_lr_scheduler"] = True  # any schedule may have trained the weights
    changes["context_parallel_size"] = 1  # each rank has whole sequences, also of one token
    changes["sequence_parallel"] = False  # generation passes one token at a time, which cannot be sharded
    return config.with_values(changes, Source("derived", text="set for generation"))


def without_training(json: dict[str, Any], context_ranks: int = 1) -> dict[str, Any]:
    """Return DeepSpeed's configuration without optimizer and ZeRO; ZeRO-3 stays, because its checkpoints need it.

    context_ranks: the context parallel ranks of training, which become data parallel ones.
    """
    json = interface.with_samples_of_all_ranks(json, context_ranks)
    if json.get("zero_optimization", {}).get("stage", 0) == 3:
        return json
    dropped = ("zero_optimization", "optimizer", "scheduler")
    return {key: value for key, value in json.items() if key not in dropped}
