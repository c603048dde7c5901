"""Which other values of each setting are tried, and what its declared effect promises of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problems, has_errors, sentence
from neoxargs.base.record import Record
from neoxargs.checks.trainer import trainer_problems
from neoxargs.commands.verify.shrink import Small, Values
from neoxargs.config.config import Config
from neoxargs.registry import ABSENT, REGISTRY, Parameter
from neoxargs.registry.types import choices_of
from neoxargs.resolve.compare.continuing import matters
from neoxargs.resolve.compare.differences import same_function
from neoxargs.resolve.compare.impact import IMPACTS, Impact, impact_of, kind_of
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.resolve.values.coerce import Mismatch, coerce

#: How many other values of a setting are tried at most, until one shows its effect.
TRIES = 3

#: Why no trial shows a setting.
NOT_SHOWN = {
    "dialect": "it only selects defaults",
    "tokenizer_type": "trials read random documents",
    "vocab_file": "trials read random documents",
    "merge_file": "trials read random documents",
    "num_gpus": "the launcher reads it",
    "peak_theoretical_tflops": "it scales a number in log lines",
}
#: Other values of settings whose type lists none.
OTHERS = {"split": ("60,30,10",), "optimizer.type": ("lamb", "adam", "lion")}
#: Tried also where the file does not set them, because every run depends on them.
ALWAYS = ("optimizer.type", "gradient_clipping", "weight_decay")
#: Settings that other trials show than one with another value: see verify.py.
BY_OTHER_TRIALS = (
    "load", "finetune", "model_parallel_size", "pipe_parallel_size", "context_parallel_size", "context_parallel_style",
)  # fmt: skip


class Setting(Record):
    """A setting of the file, with other values for it."""

    name: str
    expected: Impact = "unread"
    """What its declared effect promises of another value."""
    others: tuple[Values, ...] = ()
    """Other values, with what has to change with them."""
    reason: str = ""
    """Why no trial shows it; "" if one does."""


def settings(small: Small, base: Config, folder: Path) -> Iterator[Setting]:
    """Yield every parameter that the user set, and those of ALWAYS. base: the small run."""
    unread = unread_by_run(base)
    for name, parameter in REGISTRY.parameters.items():
        if not small.full.is_set(name) and name not in ALWAYS:
            continue
        if name in BY_OTHER_TRIALS:
            yield Setting(name, "rounding")
        elif reason := _reason(name, parameter, base, unread(name)):
            yield Setting(name, reason=reason)
        else:
            yield _tried(name, parameter, small, base, folder)


def _reason(name: str, parameter: Parameter, base: Config, is_unread: bool) -> str:
    """Return why no trial shows a setting; "" if one does."""
    kind = kind_of(parameter)
    has_no_bias = name == "use_bias_in_mlp" and base.moe.moe_num_experts > 1
    has_phases = base.schedule.lr_schedule is not None and name in ("lr", "optimizer.params.lr")
    reasons = (
        (has_phases, "the phases of lr_schedule have their own rates"),
        (name in NOT_SHOWN, NOT_SHOWN.get(name, "")),
        (has_no_bias or not matters(name, base), "with these values, the model does not depend on it"),
        (kind == "run" and parameter.to[:1] != ("train",), "the launcher reads it"),
        (kind == "launch", "it concerns how ranks are started or stopped"),
        ("path" in name and kind in ("data", "evaluation", "speed"), "trials read random documents"),
        (kind == "sampling", "trials do not sample text"),
        (is_unread or IMPACTS[kind] == "unread", "this run does not read it"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _tried(name: str, parameter: Parameter, small: Small, base: Config, folder: Path) -> Setting:
    """Return a setting with the first other values that a run accepts."""
    found: list[Values] = []
    expected, refused = IMPACTS[kind_of(parameter)], ""
    for changes in _candidates(name, parameter, base):
        try:
            other = small.config(folder, changes)
        except Problems as problems:
            refused = sentence(problems.problems[0])
            continue
        if has_errors(unsupported := trainer_problems(other)):
            refused = sentence(unsupported[0])
            continue
        impact, _ = impact_of(parameter, (base, other))
        if not found or impact == expected:
            expected = impact
            found.append(changes)
        if len(found) == TRIES:
            break
    if found:
        return Setting(name, expected, tuple(found))
    return Setting(name, reason=f"no other value is accepted ({refused})" if refused else "no other value is known")


def _candidates(name: str, parameter: Parameter, base: Config) -> Iterator[Values]:
    batch = base.batch
    micro, accumulated = batch.train_micro_batch_size_per_gpu, batch.gradient_accumulation_steps
    if name == "train_batch_size":
        yield {name: 2 * batch.train_batch_size, "gradient_accumulation_steps": 2 * accumulated}
    elif name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "batch_size", "gas"):
        pairs = (micro // 2, accumulated * 2), (micro * 2, accumulated // 2)
        yield from (
            {"train_micro_batch_size_per_gpu": one, "gradient_accumulation_steps": other}
            for one, other in pairs
            if one and other
        )
    elif name in OTHERS:
        yield from ({name: value} for value in OTHERS[name] if value != str(base.get(name)).lower())
    else:
        now = base.get(name)
        for value in _values(parameter, now):
            try:
                fitting = coerce(value, parameter.type)
            except Mismatch:
                continue
            if not same_function(name, fitting, now):
                yield {name: fitting}


def _values(parameter: Parameter, now: Any) -> Iterator[Any]:
    """Yield other values: the default, the other choices, larger and smaller numbers, none."""
    if isinstance(now, bool):
        yield not now
        return
    if isinstance(now, int | float):
        yield from (0.1, 0.3) if now == 0 else (now * 2, now / 100, now // 2 or 1)
    if isinstance(now, list | tuple) and now and all(isinstance(item, float) for item in now):
        yield [item / 2 for item in now]
    if parameter.default is not ABSENT and not isinstance(parameter.default, str):
        yield parameter.default
    yield from (choice for choice in choices_of(parameter.type) if not isinstance(choice, bool))
    yield None
