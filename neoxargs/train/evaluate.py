"""`python deepy.py eval.py my.yml`: how well a checkpoint predicts held-out text, and what it can do on tasks.

The text is the validation part of the configured data, the very samples that `train.py` evaluates on, in the same
number (`eval_iters` batches). Tasks (`eval_tasks`) are those of the lm-evaluation-harness, see harness.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from neoxargs.launch.preflight.data_files import TRAINING_DATA
from neoxargs.launch.targets.wire_format import RankArguments
from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Source, Value
from neoxargs.train import lm_eval_harness
from neoxargs.train.data.datasets import build_datasets
from neoxargs.train.data.loader import Loader
from neoxargs.train.data.tokenizer import Tokenizer, build_tokenizer
from neoxargs.train.generate import for_generation, load_model, make_generator, without_training
from neoxargs.train.generation.logprobs import Scored, Scorer
from neoxargs.train.kernels.cross_entropy import IGNORED
from neoxargs.train.process import mesh, setup


def run(arguments: RankArguments) -> None:
    """What a rank's command line asks for; raises Problems."""
    config = for_evaluation(arguments.config)
    tasks = config.generation.eval_tasks or []
    if tasks:
        lm_eval_harness.require_installed()
    process = setup.start(config.training.distributed_backend, config.training.seed, arguments.local_rank)
    here = mesh.build_mesh(config.parallel)
    tokenizer = build_tokenizer(config.tokenizer)
    data = build_datasets(config, tokenizer, here, process.local_rank) if reads_data(config) else None
    built, checkpoint = load_model(config, without_training(arguments.deepspeed), tokenizer, here, process)
    scorer = Scorer(built, here, config.batch.train_micro_batch_size_per_gpu)
    found: dict[str, Any] = {"checkpoint": str(checkpoint)}
    if data:
        found["validation"] = perplexity(scorer, data, batches(config), tokenizer).to_json()
    if tasks:
        model = lm_eval_harness.Model(scorer, make_generator(built, config, tokenizer, here, process))
        found |= evaluate_tasks(tasks, model, config.training.seed, process.main)
    if process.main:
        print("\n".join([*lines(found), f"results written to {write(found, config)}"]), flush=True)
    mesh.destroy()
    setup.stop()


def for_evaluation(config: Config) -> Config:
    """The same model without what only training needs; raises Problems where there is nothing to evaluate."""
    if not (reads_data(config) or config.generation.eval_tasks):
        hint = "set data_path or text_path (and eval_iters) for perplexity, or eval_tasks for tasks of lm_eval"
        what = "there is nothing to evaluate: neither validation data nor eval_tasks is set"
        raise Problems(Problem(what, hint=hint, id="evaluation-without-data", about=("data_path", "eval_tasks")))
    config = for_generation(config)
    source = Source("derived", text="an evaluation does not train")
    return Config({**config.values, "train_iters": Value(1, source)}, config.sections, config.warnings, config.dialect)


def reads_data(config: Config) -> bool:
    return bool(config.training.eval_iters) and any(config.get(name) for name in TRAINING_DATA)


def batches(config: Config) -> int:
    """Micro batches of each data parallel rank."""
    return config.training.eval_iters * config.batch.gradient_accumulation_steps


@dataclass
class Perplexity:
    """How well text was predicted; sums over all of it."""

    nats: float
    """Minus the log-probability."""
    tokens: int
    words: int
    """Parts between white space."""
    bytes: int
    """Of UTF-8."""

    def to_json(self) -> dict[str, Any]:
        """The tokenizer's tokens are this model's own; words and bytes compare models with different ones."""
        found = {"tokens": self.tokens, "loss": self.nats / self.tokens, "perplexity": _exp(self.nats / self.tokens)}
        for name, count in (("words", self.words), ("bytes", self.bytes)):
            if count:
                found |= {name: count, f"{name[:-1]}_perplexity": _exp(self.nats / count)}
        return found | ({"bits_per_byte": self.nats / self.bytes / math.log(2)} if self.bytes else {})


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))


def perplexity(scorer: Scorer, data: Loader, count: int, tokenizer: Tokenizer) -> Perplexity:
    """Over `count` micro batches of each data parallel rank; equal on every rank. Raises Problems without such data."""
    if not data.has("validation"):
        what = "there is no validation data"
        hint = "set split to leave a part of data_path for validation, for example split: 969, 30, 1"
        raise Problems(Problem(what, hint=hint, id="evaluation-without-data", about=("data_path",)))
    samples = data.held_out("validation")
    sums = torch.zeros(4, dtype=torch.float64)
    for start in range(0, count, scorer.in_flight):
        sums += _sums(scorer.run(samples, min(scorer.in_flight, count - start)), tokenizer)
    sums = sums.to(scorer.built.deepspeed.device)
    dist.all_reduce(sums)
    nats, *counts = sums.tolist()
    return Perplexity(nats, *map(int, counts))


def _sums(found: Iterable[Scored], tokenizer: Tokenizer) -> torch.Tensor:
    sums = torch.zeros(4, dtype=torch.float64)
    for labels, logs, _ in found:
        texts = [tokenizer.detokenize(row[row != IGNORED].tolist()) for row in labels]
        words, size = sum(len(text.split()) for text in texts), sum(len(text.encode()) for text in texts)
        sums += torch.tensor([-logs.double().sum(), (labels != IGNORED).sum(), words, size])
    return sums


def evaluate_tasks(tasks: Sequence[str], model: lm_eval_harness.Model, seed: int, main: bool) -> dict[str, Any]:
    """What the harness finds, on rank 0; the other ranks compute what it asks."""
    if not main:
        model.follow()
        return {}
    try:
        found = lm_eval_harness.results(tasks, model, seed)
    except Problems:  # any other error may have happened while the ranks compute: then they must not wait
        model.ask("end")
        raise
    model.ask("end")
    return found


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The results for a reader."""
    yield f"{found['checkpoint']}"
    to_json = found.get("validation", {})
    if to_json:
        counts = ", ".join(f"{value:,} {name}" for name, value in to_json.items() if isinstance(value, int))
        yield f"validation | {_joined(to_json)} | {counts}"
    for task, values in found.get("results", {}).items():
        yield f"{task} | {_joined({name.removesuffix(',none'): value for name, value in values.items()})}"


def _joined(values: dict[str, Any]) -> str:
    """Those that are measured: numbers with a decimal point."""
    return " | ".join(f"{name.replace('_', ' ')} {x:.5g}" for name, x in values.items() if isinstance(x, float))


def write(found: dict[str, Any], config: Config) -> Path:
    """All results as JSON, in a file of their own."""
    prefix, day = config.generation.eval_results_prefix, datetime.now().strftime("%Y-%m-%d-%H-%M-%S")
    name = f"eval_results_{day}.json"
    path = Path(f"{prefix}_{name}") if prefix else Path(config.logging.run_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, default=str) + "\n", encoding="utf-8")
    return path
