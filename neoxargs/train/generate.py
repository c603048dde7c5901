"""`python deepy.py generate.py my.yml`: generate text from a checkpoint, with the layout it was trained with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.config.value import Source, Value
from neoxargs.data.tokenizer import Tokenizer, build_tokenizer
from neoxargs.facts.trained import prompt_length
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.prompts import read_prompts
from neoxargs.registry.generation import Generation
from neoxargs.targets.wire_format import RankArguments
from neoxargs.train.checkpoint.save_load import Checkpoints
from neoxargs.train.engine import build as engine
from neoxargs.train.engine.steps import Pipelined, Plain
from neoxargs.train.generation.generator import Generator, PipelinedModel, PlainModel, Sample
from neoxargs.train.losses.cross_entropy import Loss
from neoxargs.train.model.documents import needs_document_starts
from neoxargs.train.model.rotary import longrope_context
from neoxargs.train.model.soft_prompt.prompt import PLACEHOLDER
from neoxargs.train.process import setup
from neoxargs.train.process.from_rank0 import FromRank0
from neoxargs.train.process.mesh import Mesh, build_mesh, destroy_groups

#: Prompts in one batch, per data parallel rank.
ROWS = 16


def run(arguments: RankArguments) -> None:
    """Generate as the rank's command line says. Raises Problems."""
    config = for_generation(arguments.config)
    process = setup.start(config.training.distributed_backend, config.training.seed, arguments.local_rank)
    mesh = build_mesh(config.parallel)
    tokenizer = build_tokenizer(config.tokenizer)
    model_engine, _ = load_model(config, without_training(arguments.deepspeed), tokenizer, mesh, process)
    generator = make_generator(model_engine, config, tokenizer, mesh, process)
    options = config.generation
    with ExitStack() as files:
        output = None
        if process.main and options.sample_output_file:
            Path(options.sample_output_file).parent.mkdir(parents=True, exist_ok=True)
            output = files.enter_context(open(options.sample_output_file, "w", encoding="utf-8"))
        generate(generator, prompts(options, process.main), output, process.main)
    destroy_groups()
    setup.stop()


def load_model(
    config: Config, json: dict[str, Any], tokenizer: Tokenizer, mesh: Mesh, process: setup.Process
) -> tuple[Pipelined | Plain, Path | None]:
    """Build this rank's part of the model, load the checkpoint, and return both engine and checkpoint folder.

    config: as `for_generation` returns. json: DeepSpeed's configuration, as `without_training` returns.
    """
    rows = engine.vocabulary(config, tokenizer.vocab_size, tokenizer.eod)
    model_engine = engine.build(config, json, rows, mesh, trains=config.zero_optimization.stage == 3)
    checkpoints = Checkpoints(config, model_engine.deepspeed, process)
    checkpoints.load()
    model_engine.deepspeed.eval()
    return model_engine, checkpoints.last


def make_generator(
    model_engine: Pipelined | Plain, config: Config, tokenizer: Tokenizer, mesh: Mesh, process: setup.Process
) -> Generator:
    """Return the generator that continues prompts with a loaded model."""
    model: PlainModel | PipelinedModel
    if isinstance(model_engine, Pipelined):
        bound = config.embedding.final_logit_softcapping or 0.0
        # Without sequence parallelism, see `for_generation`.
        loss = Loss(engine.vocabulary(config, tokenizer.vocab_size), mesh.tensor, softcap=bound)
        model = PipelinedModel(
            model_engine.deepspeed.module,
            loss,
            mesh,
            process.device,
            config.shape.hidden_size,
            needs_document_starts(config.data),
        )
    else:
        model = PlainModel(model_engine.deepspeed.module, model_engine.deepspeed, process.device)
    seed, context = config.training.seed, longrope_context(config)
    generator = Generator(model, tokenizer, config.generation, config.shape.seq_length, mesh, seed, context)
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
    changes["sequence_parallel"] = False  # generation passes one token at a time, which cannot be sharded
    source = Source("derived", text="set for generation")
    values = config.values | {name: Value(value, source) for name, value in changes.items()}
    return Config(values, config.sections, config.warnings, config.dialect)


def without_training(json: dict[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's configuration without optimizer and ZeRO; ZeRO-3 stays, because its checkpoints need it."""
    if json.get("zero_optimization", {}).get("stage", 0) == 3:
        return json
    dropped = ("zero_optimization", "optimizer", "scheduler")
    return {key: value for key, value in json.items() if key not in dropped}


def prompts(options: Generation, main: bool) -> Iterator[str]:
    """Yield the prompts, the same on every rank. main: whether this rank reads standard input."""
    if options.text_gen_type == "interactive":
        yield from _interactive_prompts(options.prompt_end, main)
    elif options.text_gen_type == "input-file":
        yield from _prompts_of_file(options.sample_input_file)
    elif options.text_gen_type in ("unconditional", None):
        yield from [options.prompt or ""] * (options.num_samples or 1)
    else:
        what = f"text_gen_type ({options.text_gen_type}) is not supported by generate.py"
        hint = "set text_gen_type to unconditional, input-file or interactive"
        raise Problems(Problem(what, hint=hint, id="generation-type-unsupported", about=("text_gen_type",)))


def _prompts_of_file(path: str | None) -> list[str]:
    if not path:
        what = "text_gen_type (input-file) needs sample_input_file"
        hint = "set sample_input_file to a text file with one prompt per line"
        raise Problems(
            Problem(what, hint=hint, id="prompt-file-not-given", about=("text_gen_type", "sample_input_file"))
        )
    return read_prompts("sample_input_file", path)


def _interactive_prompts(end: str, main: bool) -> Iterator[str]:
    """Yield prompts from rank 0's standard input until it ends."""
    from_rank0 = FromRank0()
    while (typed := from_rank0.broadcast(_read_prompt(end) if main else None)) is not None:
        yield typed


def _read_prompt(end: str) -> str | None:
    print("prompt> ", end="", flush=True)
    text = ""
    while line := sys.stdin.readline():
        text += line
        if text.endswith(end):
            return text.removesuffix(end)
    # None at the end of the input, which ends the loop on all ranks.
    return text or None


def generate(generator: Generator, contexts: Iterator[str], output: TextIO | None, main: bool) -> None:
    """Continue all prompts in batches (interactively, one at a time); the main rank prints and writes the samples."""
    rows = 1 if generator.options.text_gen_type == "interactive" else ROWS * generator.data.size
    for batch in _grouped(contexts, rows):
        began = time.perf_counter()
        samples = [generator.sample(context) for context in batch]
        for warning in generator.overlong(samples) if main else ():
            print(warning, file=sys.stderr, flush=True)
        generator.finish(samples)
        seconds = time.perf_counter() - began
        for sample in samples if main else ():
            text = generator.tokenizer.detokenize(sample.ids)
            print(f"{sample.context}{text}", flush=True)
            if output:
                output.write(json.dumps(record(sample, text, seconds, generator.options), ensure_ascii=False) + "\n")
                output.flush()


def record(sample: Sample, text: str, seconds: float, options: Generation) -> dict[str, Any]:
    """Return the JSON object of a line of `sample_output_file`, with GPT-NeoX's keys."""
    fields = {
        "context": sample.context, "text": text, "length": len(sample.ids), "finished": sample.finished,
        "message": None, "duration_seconds": round(seconds, 3),
    }  # fmt: skip
    return {**fields, "logits": sample.logits} if options.return_logits else fields


def _grouped(items: Iterator[str], size: int) -> Iterator[list[str]]:
    group: list[str] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
