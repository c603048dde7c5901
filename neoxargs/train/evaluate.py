"""`python deepy.py eval.py my.yml`: perplexity of a checkpoint on validation data, and its results on tasks.

The validation samples are those of the first evaluation of `train.py` (`eval_iters` batches), so that checkpoints can
be compared. Without `repeat_eval_samples`, the later evaluations of `train.py` have other samples, and other losses.
Tasks (`eval_tasks`) are those of the lm-evaluation-harness; see lm_eval_harness.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from neoxargs.base.files import replace_text
from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.config.value import Source
from neoxargs.data.tokenizer import Tokenizer, build_tokenizer
from neoxargs.facts.context import undivided_evaluation
from neoxargs.facts.data import SPLITS
from neoxargs.facts.validation_sets import mean_loss, validation_sets
from neoxargs.files import metrics
from neoxargs.files.token_files.sources import TRAINING_DATA, Part, part_of
from neoxargs.targets.wire_format import RankArguments
from neoxargs.train.batches.datasets import build_datasets
from neoxargs.train.batches.loader import Loader
from neoxargs.train.evaluation import lm_eval_harness
from neoxargs.train.evaluation.lm_eval_tasks import Tasks, harness
from neoxargs.train.generation.loading import for_generation, load_model, make_generator, without_training
from neoxargs.train.generation.logprobs import Scored, Scorer
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.process import setup
from neoxargs.train.process.mesh import build_mesh, destroy_groups

#: Said beside the loss, which is not that of train.py's last evaluation.
SAMPLES = "on the samples of the first evaluation of train.py"


def run(arguments: RankArguments) -> None:
    """Evaluate as the rank's command line says. Raises Problems."""
    config = for_evaluation(arguments.config)
    tasks = Tasks.of(config)
    if tasks.names:
        harness("evaluator")  # raises Problems if it is not installed: before the model is loaded, which takes minutes
    process = setup.start(config.training.distributed_backend, config.training.seed, arguments.local_rank)
    mesh = build_mesh(config)
    tokenizer = build_tokenizer(config.tokenizer)
    data = build_datasets(config, tokenizer, mesh, process.local_rank, ["validation"]) if reads_data(config) else None
    json = without_training(arguments.deepspeed, arguments.config.parallel.context_parallel_size)
    trainer, checkpoint = load_model(config, json, tokenizer, mesh, process)
    scorer = Scorer(trainer, mesh, config.batch.train_micro_batch_size_per_gpu)
    count = micro_batches(arguments.config)
    results: dict[str, Any] = {"checkpoint": str(checkpoint)}
    if data:
        sets = validation_sets(config.data.validation)
        for part in [each.part for each in sets] or ["validation"]:
            results[part] = perplexity(scorer, data, count, tokenizer, part).to_json()
        if sets:
            mean = mean_loss(sets, {each.name: results[each.part]["loss"] for each in sets})
            results["validation"] = {"loss": mean, "perplexity": metrics.perplexity(mean)}
        data.comparison.end()
    if tasks.names:
        model = lm_eval_harness.Model(scorer, make_generator(trainer, config, tokenizer, mesh, process))
        results |= lm_eval_harness.run_tasks(tasks, model)
    if process.main:
        print("\n".join([*result_lines(results), f"results written to {write_results(results, config)}"]), flush=True)
    destroy_groups()
    setup.stop()


def for_evaluation(config: Config) -> Config:
    """Return the configuration for evaluation, without training state; raise Problems if nothing is to be evaluated."""
    if not (reads_data(config) or config.generation.eval_tasks):
        given = next((name for name in TRAINING_DATA if config.get(name)), None)
        if given:
            what = f"there is nothing to evaluate: eval_iters is 0, so {given} is not used, and eval_tasks is not set"
            hint = "set eval_iters, for example to 10, to compute perplexity, or eval_tasks to run lm_eval tasks"
        else:
            what = "there is nothing to evaluate: neither validation data nor eval_tasks is set"
            hint = "set data_path or text_path to compute perplexity, or eval_tasks to run lm_eval tasks"
        about = ("eval_iters" if given else "data_path", "eval_tasks")
        raise Problems(Problem(what, hint=hint, id="evaluation-without-data", about=about))
    if problems := [*undivided_evaluation(config)]:
        raise Problems(problems)
    return for_generation(_without_preferences(config))


def _without_preferences(config: Config) -> Config:
    """Return the configuration that measures the loss of answers; of preference pairs, that of the preferred ones."""
    source = Source("derived", text="the loss of answers is measured, of pairs only that of the preferred ones")
    changed = {"train_impl": "normal"}
    if config.data.dataset_impl == "pairwise":
        changed |= {f"{split}_{kind}data_paths": config.get(f"pos_{split}_{kind}data_paths")
                    for split in SPLITS for kind in ("", "label_")}  # fmt: skip
        changed["dataset_impl"] = "gpt2"
    return config.with_values(changed, source)


def reads_data(config: Config) -> bool:
    return bool(config.training.eval_iters) and any(config.get(name) for name in TRAINING_DATA)


def micro_batches(config: Config) -> int:
    """Return the number of micro batches per rank. config: of training, whose context parallel ranks divide them."""
    batches = config.training.eval_iters * config.batch.gradient_accumulation_steps
    return batches // config.parallel.context_parallel_size


@dataclass
class Perplexity:
    """Sums over the evaluated text, from which perplexities follow."""

    nats: float
    """Negative log-likelihood."""
    tokens: int
    words: int
    """Number of words, as separated by white space."""
    bytes: int
    """Size of the text in UTF-8."""

    def to_json(self) -> dict[str, Any]:
        """Return counts, loss (nats per token), perplexities per token, word and byte, and bits per byte.

        Perplexities per word and per byte compare models with different tokenizers.
        """
        values = {
            "tokens": self.tokens,
            "loss": self.nats / self.tokens,
            "perplexity": metrics.perplexity(self.nats / self.tokens),
        }
        for name, count in (("words", self.words), ("bytes", self.bytes)):
            if count:
                values |= {name: count, f"{name[:-1]}_perplexity": metrics.perplexity(self.nats / count)}
        return values | ({"bits_per_byte": self.nats / self.bytes / math.log(2)} if self.bytes else {})


def perplexity(scorer: Scorer, data: Loader, count: int, tokenizer: Tokenizer, part: Part = "validation") -> Perplexity:
    """Evaluate `count` micro batches per data parallel rank; the result is equal on every rank.

    part: `validation`, or a named set. Raises Problems if there is no validation data.
    """
    if not data.has(part):
        what = "there is no validation data"
        hint = "set split so that validation gets a part of the data, for example split: 969, 30, 1"
        raise Problems(Problem(what, hint=hint, id="evaluation-without-data", about=("data_path",)))
    samples = data.held_out(part)
    sums = torch.zeros(4, dtype=torch.float64)
    for start in range(0, count, scorer.in_flight):
        sums += _sums(scorer.run(samples, min(scorer.in_flight, count - start)), tokenizer)
    sums = sums.to(scorer.trainer.deepspeed.device)
    # Over all ranks; those that do not report scores add 0.
    dist.all_reduce(sums)
    nats, *counts = sums.tolist()
    return Perplexity(nats, *map(int, counts))


def _sums(scored: Iterable[Scored], tokenizer: Tokenizer) -> torch.Tensor:
    sums = torch.zeros(4, dtype=torch.float64)
    for labels, logs, _ in scored:
        texts = [tokenizer.detokenize(row[row != IGNORED].tolist()) for row in labels]
        words, size = sum(len(text.split()) for text in texts), sum(len(text.encode()) for text in texts)
        sums += torch.tensor([-logs.double().sum(), (labels != IGNORED).sum(), words, size])
    return sums


def result_lines(results: dict[str, Any]) -> Iterator[str]:
    """Yield the results as lines of text."""
    yield f"{results['checkpoint']}"
    for part, validation in results.items():
        if part_of(part) == "validation":
            counts = ", ".join(f"{value:,} {name}" for name, value in validation.items() if isinstance(value, int))
            yield " | ".join((part, _format(validation), counts or "the mean of all sets", SAMPLES))
    for task, values in lm_eval_harness.measured(results).items():
        yield f"{task} | {_format(values)}"


def _format(values: dict[str, Any]) -> str:
    """Format the measured values, which are the floats."""
    return " | ".join(f"{name.replace('_', ' ')} {x:.5g}" for name, x in values.items() if isinstance(x, float))


def write_results(results: dict[str, Any], config: Config) -> Path:
    """Write all results to a new JSON file and return its path."""
    prefix, day = config.generation.eval_results_prefix, datetime.now().strftime("%Y-%m-%d-%H-%M-%S")
    name = f"eval_results_{day}.json"
    path = Path(f"{prefix}_{name}") if prefix else Path(config.logging.run_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(results, indent=1, default=str) + "\n")
    return path
