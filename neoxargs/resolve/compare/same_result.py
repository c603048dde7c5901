"""Which settings were shown to leave the result of training as it is, on which path through DeepSpeed.

bench/same_result.py writes same_result.json: it trains pairs of runs that differ in one setting, or in all settings
that must change no bit. docs/same-result.md shows the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.base.shipped import table_beside
from neoxargs.registry import REGISTRY
from neoxargs.resolve.compare.impact import Impact, Values

#: The largest difference that rounding makes, by precision: of losses and weights, as a share of what training changes.
ROUNDING = {"fp32": 1e-3, "bf16": 0.1, "fp16": 0.1}
#: Settings that decide the path, which are tried between two paths -> the value that the other path has.
BETWEEN_PATHS = {
    "zero_optimization.stage": 0, "pipe_parallel_size": 0, "model_parallel_size": 1, "context_parallel_size": 1,
}  # fmt: skip
#: Settings that change together -> the one that was changed.
CHANGES_WITH = {
    "gradient_accumulation_steps": "train_micro_batch_size_per_gpu",
    "pipeline.grad_partitioned": "pipeline.pipe_partitioned",
}
#: What a difference is declared to change at most, in words.
EXPECTED = {"rounding": "only rounding", "nothing": "nothing"}
#: Optimizers that take the path of another one; the table shows that they are equal.
SAME_OPTIMIZER = {"adamw": "adam"}


def path_of(values: Values) -> str:
    """Return the path of a run through DeepSpeed: engine, ZeRO stage, precision, optimizer, and what a GPT has not."""
    engine = f"{'pipeline ' if values.get('pipe_parallel_size') else ''}ZeRO-{values.get('zero_optimization.stage')}"
    precision = {"bfloat16": "bf16"}.get(str(values.get("precision")), str(values.get("precision")))
    optimizer = str(values.get("optimizer.type")).lower()
    return " ".join([engine, precision, SAME_OPTIMIZER.get(optimizer, optimizer), *_features(values)])


def _features(values: Values) -> Iterator[str]:
    """Yield what a run has beside a dense GPT on tensor parallel ranks of 1."""
    layers = str(values.get("attention_config"))
    if (values.get("model_parallel_size") or 1) > 1:
        yield "tensor"
    if (values.get("context_parallel_size") or 1) > 1:
        yield "context"
    if (values.get("moe_num_experts") or 1) > 1:
        yield "experts"
    yield from (kind for kind in ("mamba", "rwkv") if kind in layers)
    if values.get("lora.rank"):
        yield "LoRA"
    if values.get("soft_prompt_tuning.enabled"):
        yield "prompt"
    if values.get("train_impl") not in (None, "normal"):
        yield str(values.get("train_impl"))


def as_shown(
    declared: Impact, names: Sequence[str], values: tuple[Any, Any], sides: tuple[Values, Values]
) -> tuple[Impact, str]:
    """Return what a difference can do as far as it was shown on the paths of both runs, and why that is not `declared`.

    A difference that is smaller than declared is no promise: on GPUs, kernels and sums have another order.
    """
    if not any({"train", "deepspeed"} & {*REGISTRY.parameters[name].to} for name in names):
        return declared, ""  # the trainer does not read it
    paths = path_of(sides[0]), path_of(sides[1])
    largest, reason = _largest(names, values, paths)
    if largest is None:
        return "unshown", f"it should change {EXPECTED[declared]}, but {reason}"
    if largest > min(map(rounding, paths)):
        return "result", f"it was seen to change {largest:.0%} of what training changes, with {_listed(paths)}"
    return "rounding" if largest else declared, ""


def rounding(path: str) -> float:
    """Return the largest difference that rounding makes on a path."""
    return ROUNDING.get(path.partition("ZeRO-")[2].split()[1], 0.0)


def _largest(names: Sequence[str], values: tuple[Any, Any], paths: tuple[str, str]) -> tuple[float | None, str]:
    """Return the largest difference that a setting was seen to make; None if it was not tried, and why."""
    table, names = table_beside(__file__), [CHANGES_WITH.get(name, name) for name in names]
    if name := next((name for name in names if name in table["together"]["names"]), None):
        if all(_together(name, path) for path in paths):
            return 0.0, ""
    elif name := next((name for name in names if name in table["alone"]), None):
        if (largest := _alone(name, values, paths)) is not None:
            return largest, ""
    else:
        reasons = (reason for reason, untried in table["not tried"].items() if {*names} & {*untried})
        return None, f"is not tried: {next(reasons, 'no test changes it')}"
    return None, f"is not tried with {_listed(paths)}"


def _listed(paths: tuple[str, str]) -> str:
    return " and ".join(dict.fromkeys(paths))


def _together(name: str, path: str) -> bool:
    """Return whether a setting was shown to change no bit: with each part of the path, if not with all of them."""
    tried = table_beside(__file__)["together"]
    equal = [other for other, unequal in tried["paths"].items() if name not in unequal]
    engine, _, rest = path.partition("ZeRO-")
    stage, *features = rest.split()
    parts = [other for other in equal if other.startswith(f"{engine}ZeRO-{stage} ")]
    return bool(parts) and all(any(feature in other.split() for other in equal) for feature in features)


def _routes(path: str, other: str) -> Iterator[str]:
    """Yield a path, and those that lie between it and another one."""
    yield path
    for feature in (" tensor", " context"):
        if feature not in other:
            yield (path := path.replace(feature, ""))
    if not other.startswith("pipeline"):
        yield path.removeprefix("pipeline ")


def _alone(name: str, values: tuple[Any, Any], paths: tuple[str, str]) -> float | None:
    row, words = table_beside(__file__)["alone"][name], [json.dumps(value) for value in values]
    cells: list[float | None] = []
    if name in BETWEEN_PATHS:
        other = json.dumps(BETWEEN_PATHS[name])
        sides = [side for side, word in enumerate(words) if word != other]
        routes = [_routes(paths[side], paths[1 - side]) for side in sides]
        cells = [next((row["to"][other][path] for path in each if path in row["to"][other]), None) for each in routes]
    elif any(isinstance(value, bool | str) for value in values):
        if {*words} <= {*row["from"], *row["to"]}:
            cells = [row["to"][word].get(path) for word in words if word in row["to"] for path in {*paths}]
    else:  # a number, or a list of names, stands for others
        cells = [to.get(path) for to in row["to"].values() for path in {*paths}]
    measured = [cell for cell in cells if cell is not None]
    complete = len(measured) == len(cells) if name in BETWEEN_PATHS else bool(measured)
    return max(measured) if measured and complete else None
