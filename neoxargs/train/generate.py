"""`python deepy.py generate.py my.yml`: generate text from a checkpoint, with the layout it was trained with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from neoxargs.base.problems import Problem, Problems
from neoxargs.data.tokenizer import build_tokenizer
from neoxargs.files.prompts import read_prompts
from neoxargs.registry.generation import Generation
from neoxargs.targets.wire_format import RankArguments
from neoxargs.train.generation.chat import Conversation, chat
from neoxargs.train.generation.generator import Generator, Sample
from neoxargs.train.generation.loading import ROWS, for_generation, load_model, make_generator, without_training
from neoxargs.train.generation.typed import next_line
from neoxargs.train.process import setup
from neoxargs.train.process.from_rank0 import FromRank0
from neoxargs.train.process.mesh import build_mesh, destroy_groups


def run(arguments: RankArguments) -> None:
    """Generate as the rank's command line says. Raises Problems."""
    config = for_generation(arguments.config)
    process = setup.start(config.training.distributed_backend, config.training.seed, arguments.local_rank)
    mesh = build_mesh(config)
    tokenizer = build_tokenizer(config.tokenizer)
    json = without_training(arguments.deepspeed, arguments.config.parallel.context_parallel_size)
    trainer, _ = load_model(config, json, tokenizer, mesh, process)
    generator = make_generator(trainer, config, tokenizer, mesh, process)
    options = config.generation
    if options.text_gen_type == "chat":
        chat(generator, Conversation(config.tokenizer, options.chat_template), process.main)
    else:
        with ExitStack() as files:
            output = None
            if process.main and options.sample_output_file:
                Path(options.sample_output_file).parent.mkdir(parents=True, exist_ok=True)
                output = files.enter_context(open(options.sample_output_file, "w", encoding="utf-8"))
            generate(generator, prompts(options, process.main), output, process.main)
    destroy_groups()
    setup.stop()


def prompts(options: Generation, main: bool) -> Iterator[str]:
    """Yield the prompts, the same on every rank. main: whether this rank reads standard input."""
    if options.text_gen_type == "interactive":
        from_rank0 = FromRank0()
        while (typed := from_rank0.broadcast(_read_prompt(options.prompt_end) if main else None)) is not None:
            yield typed
    elif options.text_gen_type == "input-file":
        if not options.sample_input_file:
            what, about = "text_gen_type (input-file) needs sample_input_file", ("text_gen_type", "sample_input_file")
            hint = "set sample_input_file to a text file with one prompt per line"
            raise Problems(Problem(what, hint=hint, id="prompt-file-not-given", about=about))
        yield from read_prompts("sample_input_file", options.sample_input_file)
    elif options.text_gen_type in ("unconditional", None):
        yield from [options.prompt or ""] * (options.num_samples or 1)
    else:
        what = f"text_gen_type ({options.text_gen_type}) is not supported by generate.py"
        hint = "set text_gen_type to unconditional, input-file, interactive or chat"
        raise Problems(Problem(what, hint=hint, id="generation-type-unsupported", about=("text_gen_type",)))


def _read_prompt(end: str) -> str | None:
    """Return the next prompt of standard input."""
    print("prompt> ", end="", flush=True)
    text = ""
    while line := next_line():
        text += line
        if text.endswith(end):
            return text.removesuffix(end)
    # None at the end of the input, which ends the loop on all ranks.
    return text or None


def generate(generator: Generator, contexts: Iterator[str], output: TextIO | None, main: bool) -> None:
    """Continue all prompts in batches (interactively, one at a time); the main rank prints and writes the samples."""
    rows = 1 if generator.options.text_gen_type == "interactive" else ROWS * generator.data.size
    while batch := list(islice(contexts, rows)):
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
