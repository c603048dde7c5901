"""Pairs that differ in one parameter of GPT-NeoX's first table: no difference is missed, and its impact is right.

docs/effects.md lists the same parameters and their effects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from neoxargs.commands.diff.differences import ranked
from neoxargs.commands.diff.side import Side, short_json, short_pair
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import File, complete, draft
from neoxargs.resolve.compare.differences import SETTINGS
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.rules.synonyms import names_of_setting
from tests.support.configure import SHAPE
from tests.support.shows import effect, names

RANKS = 2
#: No dropout, whose masks depend on the layout.
BASE = SHAPE | {"hidden_dropout": 0, "attention_dropout": 0, "train_batch_size": 8}
#: Effect in docs/effects.md -> what a difference can do.
BY_EFFECT = {
    "launcher": "nothing", "layout": "rounding", "engine": "rounding", "model": "result", "optimizer": "result",
    "schedule": "result", "data": "result", "memory": "rounding", "checkpoint": "nothing", "log": "nothing",
    "run": "result", "not built": "result", "none": "unread",
}  # fmt: skip
#: What a difference does in finer words than the effect's -> its impact, and the parameters.
FINER = {
    "changes the samples of a step or limits the gradient": ("result", "train_batch_size gradient_clipping"),
    "is not tried in these runs (docs/same-result.md)": (
        "unshown",
        "bias-dropout-fusion distributed-backend deepspeed_mpi fp32-allreduce fp32_allreduce partition-activations "
        "distribute-checkpointed-activations contigious-checkpointing activation_checkpointing",
    ),
    "begins elsewhere": ("result", "load no-load-optim no-load-rng finetune"),
    "computes the same function with other kernels": (
        "rounding",
        "onnx-safe scaled-upper-triang-masked-softmax-fusion scaled-masked-softmax-fusion",
    ),
    "computes it in another precision": ("rounding", "apply-query-key-layer-scaling attention-softmax-in-fp32"),
    "stores numbers in another format": ("result", "fp16"),
    "adds rows that no token has": ("rounding", "make-vocab-size-divisible-by"),
    "reads the same data in another way": ("nothing", "mmap-warmup num-workers data-impl"),
    "evaluates, or waits for a file": ("nothing", "eval-iters eval-interval adlr-autoresume adlr-autoresume-interval"),
    "measures, or allows something": (
        "nothing",
        "synchronize-each-layer profile-backward zero_allow_untested_optimizer",
    ),
}
IMPACT = {name: impact for impact, listed in FINER.values() for name in listed.split()}
#: Without these settings, these parameters have no effect.
NEEDED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"num-unique-layers": 1}, "param-sharing-style"),
    (
        {"checkpoint-activations": True},
        "distribute-checkpointed-activations checkpoint-num-layers deepspeed-activation-checkpointing "
        "partition-activations checkpoint-in-cpu synchronize-each-layer profile-backward activation_checkpointing",
    ),
    ({"rpe": True}, "rpe-num-buckets rpe-max-distance"),
    ({"rms-norm": True}, "rms-norm-epsilon"),
    ({"load": "here"}, "override-lr-scheduler use-checkpoint-lr-scheduler no-load-optim no-load-rng finetune"),
    ({"save": "here", "save-interval": 5}, "save-interval no-save-optim no-save-rng"),
    ({"precision": "fp16"}, "fp32-allreduce fp32_allreduce hysteresis loss-scale loss-scale-window min-scale"),
    ({"adlr-autoresume": True}, "adlr-autoresume-interval"),
)
#: Parameter -> what both configurations set beside it, where it needs other values.
BESIDE: dict[str, dict[str, Any]] = {name: needed for needed, listed in NEEDED for name in listed.split()} | {
    "batch-size": {"train_micro_batch_size_per_gpu": None, "batch-size": 2},
    "contigious-checkpointing": {"partition_activations": True, "checkpoint-activations": True},
    "fp16-lm-cross-entropy": {"precision": "fp16"},
    "gradient_accumulation_steps": {"train_micro_batch_size_per_gpu": None},
    "include": {"hostfile": "h"},
    "rpe-causal": {"rpe": True, "rpe-causal": True},
    "save": {"checkpoint_factor": 5},
}
#: Parameter -> another value, where the first of its type cannot be used.
OTHER = {"max-position-embeddings": 64, "min-lr": 1e-5, "min-scale": 2, "train_batch_size": 16, "batch-size": 4,
         "rpe-causal": False, "rpe-max-distance": 256, "train_micro_batch_size_per_gpu": 4}  # fmt: skip


def other_values(kind: Any) -> Iterator[Any]:
    """Yield some values of a type."""
    origin = get_origin(kind)
    plain = {bool: (True, False), int: (2, 3, 4, 1), float: (0.5, 0.25), str: ("other",)}
    if kind in plain:
        yield from plain[kind]
    elif origin is Literal:
        yield from get_args(kind)
    elif origin is list:
        yield [1]
    else:
        for part in get_args(kind)[: 1 if origin is Annotated else None]:
            yield from other_values(part)


def side(values: dict[str, Any]) -> Side:
    return _side(json.dumps({name: value for name, value in values.items() if value is not None}))


@cache
def _side(text: str) -> Side:
    return Side("my.yml", "file", complete(draft([File("my.yml", text)]), RANKS), RANKS)


def pair(name: str) -> tuple[Side, Side]:
    """Return two configurations that differ only in this parameter, or in the first key of this section."""
    section = REGISTRY.sections.get(normal(name))
    parameter = next(iter(section.parameters.values())) if section else REGISTRY.find(name)
    assert parameter is not None
    base = BASE | BESIDE.get(name, {})
    before = side(base)
    for value in [OTHER[name]] if name in OTHER else other_values(parameter.type):
        if before.get(parameter.name) == value:
            continue
        try:
            rest = {key: known for key, known in base.items() if normal(key) != normal(name)}
            return before, side({**rest, name: {parameter.attribute: value} if section else value})
        except Unresolved:
            continue
    raise AssertionError(f"no other value of {name} resolves")


def names_shown(name: str) -> set[str]:
    """Return the names under which a difference may be shown: the other names of a setting, today's name of a retired
    parameter."""
    section = REGISTRY.sections.get(normal(name))
    first = next(iter(section.parameters.values())) if section else REGISTRY.find(name)
    assert first is not None
    if first.name == "sparsity":
        return {"attention_config"}
    if batch := next((names for names in SETTINGS if first.name in names), None):
        return set(batch)
    today = {target for row in (first.replaced_by or {}).values() for target in row}
    return {other for each in today or {first.name} for other in names_of_setting(each)}


@pytest.mark.parametrize("name", names())
def test_the_difference_is_found_and_ranked(name: str) -> None:
    found = ranked(*pair(name))
    of_parameter = [each for each in found if each.name in names_shown(name)]
    assert len(of_parameter) == 1, found
    impact = IMPACT.get(name, BY_EFFECT[effect(name).partition(":")[0]])
    assert of_parameter[0].impact == impact
    assert found[0].impact == impact, "what follows from the difference has no higher impact"


def test_an_explicit_switch_disables_as_much_as_the_default() -> None:
    a, b = (BASE | {"weight_by_num_documents": False, "weighted_sampler_alpha": alpha} for alpha in (0.3, 0.5))
    (difference,) = ranked(side(a), side(b))
    assert (difference.name, difference.impact) == ("weighted_sampler_alpha", "unread")
    a, b = (each | {"weight_by_num_documents": True} for each in (a, b))
    (difference,) = ranked(side(a), side(b))
    assert difference.impact == "result"


def test_finer_words_are_needed() -> None:
    assert set(IMPACT) <= set(names())
    assert not {name for name in IMPACT if BY_EFFECT[effect(name).partition(":")[0]] == IMPACT[name]}


@pytest.mark.parametrize("end", ["", " that goes on for more than a line of the table"])
def test_long_values_are_shown_where_they_differ(end: str) -> None:
    beginning = [f"data/source {number}" for number in range(9)]
    one, other = short_pair([*beginning, f"four{end}"], [*beginning, f"five{end}"])
    assert "four" in one and "five" in other and max(len(one), len(other)) <= 36
    assert short_pair([*beginning], ["x"]) == (short_json(beginning), '["x"]')
    same = ["global"] * 12
    assert short_pair(same, [*same[:-1], "local"]) == ('12 x "global"', '… "global", "local"]')
