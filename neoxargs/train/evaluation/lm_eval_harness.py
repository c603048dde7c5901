"""Adapter for EleutherAI's lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness).

The harness runs on rank 0 only, where it reads tasks, downloads their data and aggregates the results. Its requests to
the model are broadcast to all ranks, which compute them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from neoxargs.base.problems import Problems
from neoxargs.data.tokenizer import Tokenizer
from neoxargs.registry.generation import Generation
from neoxargs.train.evaluation.lm_eval_tasks import Tasks, harness
from neoxargs.train.generation.generator import Generator
from neoxargs.train.generation.loading import ROWS
from neoxargs.train.generation.logprobs import Scorer, ScoringRow, windows
from neoxargs.train.process.from_rank0 import FromRank0

#: Number of generated tokens between checks for a stop string.
STOP_CHECK_INTERVAL = 32
#: Maximum number of tokens of a continuation if the task sets none, and the keys by which tasks set it.
DEFAULT_MAX_TOKENS = 256
MAX_TOKENS_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
#: Number of bootstrap resamples with which the harness estimates standard errors of metrics that are not means.
BOOTSTRAP_ITERATIONS = 1000
#: Keys of the harness's results that are saved.
RESULT_KEYS = ("results", "groups", "versions", "n-shot", "higher_is_better", "n-samples")


class Model:
    """The requests that the harness makes. Rank 0 calls them, and the other ranks serve them."""

    def __init__(self, scorer: Scorer, generator: Generator) -> None:
        self.scorer, self.generator, self.requests = scorer, generator, FromRank0()

    def call(self, method: str, *arguments: Any) -> Any:
        """On rank 0: call a method on all ranks and return its result; `end` makes the others leave `serve`."""
        self.requests.broadcast((method, arguments))
        return getattr(self, method)(*arguments)

    def serve(self) -> None:
        """On the other ranks: call the methods that rank 0 calls, until `end`."""
        method = ""
        while method != "end":
            request: Any = self.requests.broadcast()
            method, arguments = request
            getattr(self, method)(*arguments)

    def end(self) -> None: ...

    def score(self, rows: list[ScoringRow]) -> list[tuple[float, bool]]:
        """Return what `Scorer.score` returns: log-probability in nats, and whether all tokens are the likeliest."""
        # Between steps of a run, the engine may be in training mode.
        self.scorer.trainer.deepspeed.eval()
        return self.scorer.score(rows)

    def generate(self, contexts: list[str], stops: list[str], options: dict[str, Any]) -> list[str]:
        """Continue every context until one of `stops`, which is left out, or for `maximum_tokens` tokens."""
        self.scorer.trainer.deepspeed.eval()
        at_once, texts = ROWS * self.generator.data.size, []
        for start in range(0, len(contexts), at_once):
            texts += self._generate(contexts[start : start + at_once], stops, options)
        return texts

    def _generate(self, contexts: list[str], stops: list[str], options: dict[str, Any]) -> list[str]:
        maximum = options["maximum_tokens"]
        # Longer prompts lose their beginning: beyond seq_length the window slides and every pass is a full one.
        room = max(self.generator.seq_length - maximum, self.generator.seq_length // 2)
        going = {index: self.generator.sample(context) for index, context in enumerate(contexts)}
        going = {index: replace(sample, prompt=sample.prompt[-room:]) for index, sample in going.items()}
        ids: list[list[int]] = [[] for _ in contexts]
        for done in range(0, maximum, STOP_CHECK_INTERVAL):
            # In parts, because only the finished text shows whether a stop string is in it.
            self.generator.options = Generation(
                **options | {"maximum_tokens": min(STOP_CHECK_INTERVAL, maximum - done)}
            )
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
    """Return the text before the first stop string in it."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def run_tasks(tasks: Tasks, model: Model) -> dict[str, Any]:
    """Run tasks on rank 0 and return the harness's results; the other ranks return {}. Raises Problems."""
    if not model.requests.leads:
        model.serve()
        return {}
    try:
        loaded = tasks.load()
    except Problems:  # after any other error a rank may be inside a request
        model.call("end")
        raise
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(tasks.seed)
    evaluate = harness("evaluator").evaluate
    options = {"log_samples": False, "bootstrap_iters": BOOTSTRAP_ITERATIONS, "limit": tasks.limit}
    results = evaluate(lm=_adapter(model), task_dict=loaded, **options)
    model.call("end")
    return {key: results[key] for key in RESULT_KEYS if results.get(key)}


def measured(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the measured values of the harness's results: task -> metric -> value."""
    return {
        # The harness appends the name of a filter to each metric; `none` is the usual one.
        task: {name.removesuffix(",none"): x for name, x in values.items() if isinstance(x, float)}
        for task, values in results.get("results", {}).items()
    }


def _adapter(model: Model) -> Any:
    """Return the model with the interface of the harness, `lm_eval.api.model.LM`."""
    # The class is made here, because its base is there only if the harness is installed.
    base: Any = harness("api.model").LM

    class Adapter(base):  # type: ignore[misc]
        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            rows = [_scoring_row(request.args, tokenizer, length) for request in requests]
            scores: list[tuple[float, bool]] = model.call("score", rows)
            return scores

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            parts = [windows(tokenizer.tokenize(request.args[0]), tokenizer.start, length) for request in requests]
            scores = iter(model.call("score", [row for rows in parts for row in rows]))
            return [sum(next(scores)[0] for _ in rows) for rows in parts]

        def generate_until(self, requests: list[Any]) -> list[str]:
            return _continuations(requests, model)

    tokenizer, length = model.generator.tokenizer, model.generator.seq_length
    return Adapter()


def _scoring_row(asked: tuple[str, str], tokenizer: Tokenizer, length: int) -> ScoringRow:
    """Tokenise a context and its continuation as the harness does.

    Spaces between them belong to the continuation, and a text that is too long loses its beginning.
    """
    context = asked[0].rstrip()
    before, full = tokenizer.tokenize(context) if context else [], tokenizer.tokenize("".join(asked))
    ids = full if before else [tokenizer.start, *full]
    count = max(0, min(len(full) - len(before), length))  # both together may have fewer tokens than the context
    return ScoringRow(ids[-(length + 1) :], count)


def _continuations(requests: list[Any], model: Model) -> list[str]:
    """Generate all continuations; requests with the same options form a batch."""
    wanted = [(index, request.args[0], _stops_and_options(request.args[1])) for index, request in enumerate(requests)]
    text_of: dict[int, str] = {}
    # By their text, because dictionaries have no order.
    for _, equal in groupby(sorted(wanted, key=lambda each: repr(each[2])), key=lambda each: repr(each[2])):
        group = list(equal)
        texts = model.call("generate", [context for _, context, _ in group], *group[0][2])
        text_of |= dict(zip([index for index, *_ in group], texts, strict=True))
    return [text_of[index] for index in range(len(requests))]


def _stops_and_options(given: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return stop strings and sampling options. `do_sample: false` or no temperature takes the likeliest token."""
    stops = given.get("until") or []
    maximum = next((given[name] for name in MAX_TOKENS_KEYS if given.get(name)), DEFAULT_MAX_TOKENS)
    sampled = {"temperature": float(given.get("temperature") or 0.0)} if given.get("do_sample", True) else {}
    choice = {name: given[name] for name in ("top_k", "top_p") if given.get(name)}
    return [stops] if isinstance(stops, str) else list(stops), {"maximum_tokens": int(maximum), **sampled, **choice}
