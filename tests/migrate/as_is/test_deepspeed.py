"""DeepSpeed's JSON is judged as DeepSpeed does: planted mistakes are given to both."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.engine import DeepSpeedEngine

from neoxargs.base.files import Text
from neoxargs.base.problems import render
from neoxargs.migrate.as_is.files import Checked, checked
from neoxargs.registry import receivers
from neoxargs.registry.data_file import strict_keys
from neoxargs.resolve.yaml.edit import corrected
from tests.support import deepspeed_spy
from tests.support.snapshots import pinned

GOOD: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": True,
                          "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    "activation_checkpointing": {"partition_activations": False},
    "wall_clock_breakdown": False,
}  # fmt: skip


def check(values: dict[str, Any] | str, gpus: int | None = None, **versions: str) -> Checked:
    text = values if isinstance(values, str) else json.dumps(values, indent=1)
    found = checked(Text("ds.json", text), versions, gpus)
    assert found and found.program.name == "DeepSpeed"
    return found


def with_value(name: str, value: Any) -> dict[str, Any]:
    """Return GOOD with another value; None removes a key."""
    tree = copy.deepcopy(GOOD)
    *sections, key = name.split(".")
    below = tree
    for section in sections:
        below = below.setdefault(section, {})
    below[key] = value
    return tree


def deepspeed(values: dict[str, Any]) -> None:
    """Read a file with DeepSpeed itself."""
    deepspeed_spy.read({"train_batch_size": 8, **values})


@pytest.mark.parametrize("version", receivers.versions())
def test_a_file_that_deepspeed_accepts_has_no_problems(version: str) -> None:
    deepspeed(GOOD)
    assert check(GOOD, deepspeed=version).problems == []


#: Key -> values: those of the first table are refused by DeepSpeed 0.19.6, those of the second are not.
REFUSED: dict[str, list[Any]] = {
    "zero_optimization.recude_bucket_size": [1],
    "zero_optimization.stage": [5, "two", [1, 2]],
    "zero_optimization.reduce_bucket_size": ["5e8", "many", -1.5],
    "zero_optimization.overlap_comm": ["maybe", 3],
    "zero_optimization.offload_optimizer.device": ["CPU", "gpu"],
    "zero_optimization.offload_optimizer.ratio": [0.5],
    "zero_optimization.offload_optimizer": ["cpu"],
    "fp16.enabled": [True],
    "fp16": [True, None],
    "bf16.loss_scale": [0],
    "bf16.bf16_optimizer_states": [True],
    "tensorboard.enable": [True],
    "flops_profiler": [],
    "train_batch_size": ["16", 9, 0, -8],
}
ACCEPTED: dict[str, list[Any]] = {
    "zero_optimization": [True],
    "zero_optimization.stage": ["2"],
    "zero_optimization.overlap_comm": [1, "yes", None],
    "zero_optimization.reduce_bucket_size": ["500000000", "auto"],
    "zero_optimisation": [{"stage": 2}],
    "optimizer.type": ["Adamm"],
    "flops_profiler.enabeld": [True],
    "steps_per_print": ["often"],
    "gradient_clipping": ["auto"],
    "gradient_accumulation_steps": [None],
    "zero_optimization.leaf_module.classes": ["Layer"],
    "comet.mode": ["any"],
}


@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [(name, value, True) for name, values in REFUSED.items() for value in values]
    + [(name, value, False) for name, values in ACCEPTED.items() for value in values],
)
def test_errors_are_what_deepspeed_refuses(name: str, value: Any, is_refused: bool) -> None:
    values = with_value(name, value)
    try:
        deepspeed(values)
        refused = False
    except Exception:
        refused = True
    assert refused == is_refused
    found = check(values, deepspeed="0.19.6").problems
    assert any(problem.severity == "error" for problem in found) == is_refused, render(found)


@pytest.mark.parametrize("section", strict_keys())
def test_deepspeed_refuses_unknown_keys_of_these_sections(section: str) -> None:
    values = with_value(f"{section}.zzz", 1)
    found = [problem for problem in check(values, deepspeed="0.19.6").problems if problem.severity == "error"]
    assert "zzz" in render(found)
    with pytest.raises(Exception, match="zzz"):
        deepspeed(values)


def test_sequence_parallelism_is_a_key_of_deepspeed() -> None:
    found = check(
        {"train_batch_size": 8, "sequence_parallel_size": 2, "data_parallel_size": 2, "bf16": {"enabled": True}}
    )
    assert [problem.what for problem in found.problems if "parallel_size" in problem.what] == []


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("WarmupDecayLR", {"warmup_num_steps": 10}),
        ("WarmupDecayLR", {"total_num_steps": 100}),
        ("WarmupDecayLR", None),
        ("WarmupCosineLR", {}),
        ("OneCycle", {"cycle_min_lr": 0.1}),
        ("OneCycle", {}),
        ("OneCycle", {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2}),
        ("WarmupLR", {}),
        ("WarmupLR", None),
        ("LRRangeTest", {}),
        ("CosineAnnealingLR", {"T_max": 100, "eta_min": 0.1}),
        ("ExponentialLR", {"gamma": 0.5}),
        ("ExponentialLR", None),
    ],
)
def test_the_arguments_of_schedules(kind: str, params: dict[str, Any] | None) -> None:
    """The schedule is built as by DeepSpeed, which looks for other names in torch.optim.lr_scheduler."""
    section = {"type": kind} | ({} if params is None else {"params": params})
    engine = SimpleNamespace(scheduler_name=lambda: kind, scheduler_params=lambda: params)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
    try:
        DeepSpeedEngine._scheduler_from_config(engine, optimizer)
        refused = False
    except TypeError:
        refused = True
    found = check(with_value("scheduler", section)).problems
    assert [problem.severity for problem in found] == ["error"] * refused
    pinned(render(found))


def test_arguments_of_schedules_that_are_not_known_yet() -> None:
    assert (
        check(with_value("scheduler", {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}})).problems == []
    )
    text = json.dumps(with_value("scheduler", {"type": "WarmupDecayLR", "params": {"total_num_steps": 987}}))
    assert check(text.replace("987", "TOTAL_STEPS")).problems == []
    (problem,) = check(with_value("scheduler", {"type": "WarmupLR", "params": {"T_max": 1}})).problems
    assert problem.id == "other-program-key"


def test_the_sentences() -> None:
    values = copy.deepcopy(GOOD) | {
        "optimzer": {},
        "train_batch_size": 12,
        "reduce_bucket_size": 5e8,
        "elasticity": {"enabled": False},
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 1, "offload_param": {"device": "CPU"}, "stage3_max_live_parameters": "auto"},
        "optimizer": {"type": "Adam", "params": {"lr": "auto", "decay": 0.1}},
    }
    text = json.dumps(values, indent=1).replace('"lr"', '"lr": 1, "lr"').replace("1e-", "# a comment\n1e-")
    pinned(render(check(text).problems))


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("optimizer.type", "Adm", "Adam"),
        ("scheduler.type", "WarmupLr", "WarmupLR"),
        ("zero_optimization.offload_optimizer.device", "cpuu", "cpu"),
        ("communication_data_type", "fp61", "fp16"),
        ("wall_clock_breakdown", "tru", True),
        ("zero_optimization.stage", "two", None),
        ("comms_logger.prof_ops", "all_reduce", ["all_reduce"]),
        ("optimizer.type", "Adamm", None),  # Adam or AdamW
        ("optimizer.type", "Sophia", None),
    ],
)
def test_misspelt_choices_are_corrected_where_only_one_can_be_meant(name: str, wrong: str, right: Any) -> None:
    text = json.dumps(with_value(name, wrong), indent=1)
    edits = [edit for problem in check(text).problems for edit in problem.edits]
    assert bool(edits) == (right is not None)
    after = corrected(Text("ds.json", text), edits).text
    assert json.loads(after) == with_value(name, wrong if right is None else right)
    assert right is None or check(after).problems == []


def test_a_batch_that_the_gpus_cannot_have() -> None:
    values = with_value("train_batch_size", 32)
    assert check(values).problems == check(values, 4).problems == []
    pinned(render([*check(values, 6).problems, *check(values, 8).problems]))


def test_versions() -> None:
    values = with_value("elasticity", {"enabled": False}) | {"log_level": "info"}
    pinned(render([p for version in ("0.18.0", "0.19.8", "0.20.1") for p in check(values, deepspeed=version).problems]))


def test_a_template_is_judged_without_its_words() -> None:
    found = check('{"train_batch_size": BATCH_SIZE, "zero_optimization": {"stage": 7, "overlap_comm": $OVERLAP}}')
    assert [problem.id for problem in found.problems] == ["other-program-value"]
    assert "2 values" in found.remarks["template"]


def test_a_file_that_cannot_be_read() -> None:
    pinned(render(check('{"train_batch_size": 8, "zero_optimization": {"stage": 2\n').problems))
