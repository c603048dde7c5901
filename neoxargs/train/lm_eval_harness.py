"""EleutherAI's lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness) on a model of ours.

The harness runs on rank 0 alone: one process reads tasks, downloads what they need and adds up the results. What it
asks of the model goes to all ranks, which answer together.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch.distributed as dist

from neoxargs.launch.preflight.packages import harness_missing
from neoxargs.problems import Problem, Problems, did_you_mean
from neoxargs.registry.generation import Generation
from neoxargs.train.data.tokenizer import Tokenizer
from neoxargs.train.generate import ROWS
from neoxargs.train.generation.generator import Generator
from neoxargs.train.generation.logprobs import Scorer, ScoringRow, windows

#: Tokens after which it is looked whether a continuation has said what ends it.
STRIDE = 32
#: How long a continuation gets where the task does not say, and what tasks call that.
LONGEST = 256
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
#: How often the harness draws samples anew to estimate errors of metrics that are no means.
RESAMPLED = 1000
#: Results that are worth keeping; samples, for example, are the task's own data.
KEPT = ("results", "groups", "versions", "n-shot", "higher_is_better", "n-samples")


class Model:
    """What the harness can ask, on every rank alike: rank 0 asks, the others follow."""

    def __init__(self, scorer: Scorer, generator: Generator) -> None:
        self.scorer, self.generator = scorer, generator

    def ask(self, what: str, *arguments: Any) -> Any:
        """On rank 0: have all ranks do something; `end` sends them home."""
        dist.broadcast_object_list([(what, arguments)], 0)
        return getattr(self, what)(*arguments)

    def follow(self) -> None:
        """On the other ranks: do what rank 0 asks until it says `end`."""
        what = ""
        while what != "end":
            asked: list[Any] = [None]
            dist.broadcast_object_list(asked, 0)
            what, arguments = asked[0]
            getattr(self, what)(*arguments)

    def end(self) -> None: ...

    def score(self, rows: list[ScoringRow]) -> list[tuple[float, bool]]:
        self.scorer.built.deepspeed.eval()
        return self.scorer.score(rows)

    def generate(self, contexts: list[str], stops: list[str], options: dict[str, Any]) -> list[str]:
        """Continue every context until one of `stops` or `maximum_tokens`; the stop is left out."""
        self.scorer.built.deepspeed.eval()
        at_once, found = ROWS * self.generator.data.size, []
        for start in range(0, len(contexts), at_once):
            found += self._generate(contexts[start : start + at_once], stops, options)
        return found

    def _generate(self, contexts: list[str], stops: list[str], options: dict[str, Any]) -> list[str]:
        most = options["maximum_tokens"]
        room = max(self.generator.seq_length - most, self.generator.seq_length // 2)  # beyond it the window slides
        going = {index: self.generator.sample(context) for index, context in enumerate(contexts)}
        going = {index: replace(sample, prompt=sample.prompt[-room:]) for index, sample in going.items()}
        ids: list[list[int]] = [[] for _ in contexts]
        for done in range(0, most, STRIDE):
            self.generator.options = Generation(**options | {"maximum_tokens": min(STRIDE, most - done)})
            self.generator.finish(list(going.values()))
            for index, sample in list(going.items()):
                ids[index] += sample.ids
                going[index] = replace(sample, prompt=[*sample.prompt, *sample.ids], ids=[], logits=[])
                if sample.finished or any(stop in self._decode(ids[index]) for stop in stops):
                    del going[index]
            if not going:
                break
        return [text_before_stop(self._decode(each), stops) for each in ids]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.generator.tokenizer.detokenize(ids)


def text_before_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop in it."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def results(tasks: Sequence[str], model: Model, seed: int) -> dict[str, Any]:
    """What the harness finds, on rank 0; raises Problems for tasks that it cannot load."""
    loaded = _loaded(tasks)
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(seed)
    evaluate = _harness("evaluator").evaluate
    found = evaluate(lm=_adapter(model), task_dict=loaded, log_samples=False, bootstrap_iters=RESAMPLED)
    return {key: found[key] for key in KEPT if found.get(key)}


def require_installed() -> None:
    """Raises Problems where the harness is not installed."""
    _harness("evaluator")


def _harness(module: str) -> Any:
    try:
        return importlib.import_module(f"lm_eval.{module}")
    except ImportError as error:
        raise Problems(harness_missing(str(error))) from error


def _loaded(tasks: Sequence[str]) -> dict[str, Any]:
    """The tasks and groups that are meant, with their data."""
    manager = _harness("tasks").TaskManager()
    known = set(manager.all_tasks)
    unknown = [name for name in tasks if name not in known and not Path(name).is_file()]
    if unknown:
        raise Problems(_unknown(name, known) for name in unknown)
    try:
        loaded: dict[str, Any] = manager.load(list(tasks))
    except Exception as error:  # a YAML that is none of a task, no data, no network: each raises its own
        what = f"eval_tasks ({', '.join(tasks)}) cannot be loaded: {type(error).__name__}: {error}"
        raise Problems(Problem(what, id="evaluation-task-not-loadable", about=("eval_tasks",))) from error
    return loaded


def _unknown(name: str, known: Collection[str]) -> Problem:
    if name.endswith((".yaml", ".yml")):
        return Problem(
            f"eval_tasks: the file {name} does not exist", id="evaluation-task-file-missing", about=("eval_tasks",)
        )
    hint = did_you_mean(name, known) or "use the name of a task of lm_eval, or the path of a YAML file that defines one"
    return Problem(
        f"eval_tasks: lm_eval has no task named {name}", hint=hint, id="evaluation-task-unknown", about=("eval_tasks",)
    )


def _adapter(model: Model) -> Any:
    """The model as the harness's own interface has it."""
    base: Any = _harness("api.model").LM

    class Adapter(base):  # type: ignore[misc]
        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            rows = [_row(request.args, tokenizer, length) for request in requests]
            found: list[tuple[float, bool]] = model.ask("score", rows)
            return found

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            parts = [windows(tokenizer.tokenize(request.args[0]), tokenizer.eod, length) for request in requests]
            scores = iter(model.ask("score", [row for rows in parts for row in rows]))
            return [sum(next(scores)[0] for _ in rows) for rows in parts]

        def generate_until(self, requests: list[Any]) -> list[str]:
            return _continued(requests, model)

    tokenizer, length = model.generator.tokenizer, model.generator.seq_length
    return Adapter()


def _row(asked: tuple[str, str], tokenizer: Tokenizer, length: int) -> ScoringRow:
    """A context and its continuation in the harness's own way: spaces between them belong to the continuation, and
    what is too long loses its beginning."""
    context = asked[0].rstrip()
    before, whole = tokenizer.tokenize(context) if context else [], tokenizer.tokenize("".join(asked))
    ids = whole if before else [tokenizer.eod, *whole]
    count = max(0, min(len(whole) - len(before), length))  # together they may be fewer tokens than the context alone
    return ScoringRow(ids[-(length + 1) :], count)


def _continued(requests: list[Any], model: Model) -> list[str]:
    """Requests with the same options go through the model together."""
    wanted = [(index, request.args[0], _options(request.args[1])) for index, request in enumerate(requests)]
    found: dict[int, str] = {}
    for _, same in groupby(sorted(wanted, key=lambda each: repr(each[2])), key=lambda each: repr(each[2])):
        group = list(same)
        texts = model.ask("generate", [context for _, context, _ in group], *group[0][2])
        found |= dict(zip([index for index, *_ in group], texts, strict=True))
    return [found[index] for index in range(len(requests))]


def _options(given: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """What ends a continuation, and how it is sampled; without `do_sample` the likeliest token is taken."""
    stops = given.get("until") or []
    most = next((given[name] for name in LENGTHS if given.get(name)), LONGEST)
    sampled = {"temperature": float(given.get("temperature") or 0.0)} if given.get("do_sample", True) else {}
    choice = {name: given[name] for name in ("top_k", "top_p") if given.get(name)}
    return [stops] if isinstance(stops, str) else list(stops), {"maximum_tokens": int(most), **sampled, **choice}
