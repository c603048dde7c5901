"""TrainingArguments are judged as Transformers does: planted mistakes are given to both."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, render
from neoxargs.migrate.as_is.files import checked
from neoxargs.resolve.yaml.edit import corrected
from tests.support.snapshots import pinned

GOOD = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "learning_rate": 5e-05,
    "use_cpu": True,
    "save_steps": 500,
}
#: The version whose class the tests import.
VERSION = "5.23.0"


def check(text: str, name: str = "args.yaml", **versions: str) -> list[Problem]:
    found = checked(Text(name, text), versions, None)
    assert found and found.program.name == "Transformers"
    return [*found.problems]


#: Arguments that TrainingArguments refuses.
REFUSED: list[dict[str, Any]] = [
    {"fp16": True, "bf16": True},
    {"eval_strategy": "step"},
    {"lr_scheduler_type": "cosin"},
    {"optim": "adamw"},
    {"eval_strategy": "STEPS"},
    {"eval_strategy": False},
    {"hub_strategy": "never"},
    {"load_best_model_at_end": True, "eval_strategy": "epoch"},
    {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 150},
    {"lr_scheduler_type": "reduce_lr_on_plateau"},
    {"dataloader_prefetch_factor": 2},
    {"evaluation_strategy": "no"},
    {"no_cuda": True},
    {"warmup_ratio": 0.1},
    {"eval_strategy": 5},
    {"optim": None},
    {"optim": "adamw_hf"},
    {"fsdp": "full_shrd"},
    {"fsdp": "full_shard auto_wrp"},
    {"fsdp": ["full_shrd", "auto_wrap"]},
    {"debug": "underflow"},
    {"logging_steps": "ten"},
    {"logging_steps": 2.5},
    {"save_steps": None},
    {"warmup_steps": -1},
    {"eval_strategy": "steps", "eval_steps": "often"},
    {"torch_empty_cache_steps": 0},
    {"output_dir": 5},
]
ACCEPTED: list[dict[str, Any]] = [
    {},
    {"learning_rate": "5e-5"},
    {"num_train_epochs": "3"},
    {"bf16": "false"},
    {"load_best_model_at_end": True, "save_strategy": "best", "eval_strategy": "steps"},
    {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 250},
    {"eval_strategy": "steps", "max_steps": 10, "num_train_epochs": 3},
    {"logging_strategy": "no", "logging_steps": "ten"},
    {"eval_steps": "often"},
    {"save_steps": True},
    {"debug": "underflow_overflow tpu_metrics_debug"},
    {"torch_empty_cache_steps": None},
    {"report_to": ["none"], "max_grad_norm": 1, "logging_steps": 0.1, "warmup_steps": 0.1},
]


@pytest.mark.parametrize("changes", [*REFUSED, *ACCEPTED], ids=str)
def test_errors_are_what_transformers_refuses(changes: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers", VERSION)
    from transformers import TrainingArguments

    values = GOOD | {"output_dir": str(tmp_path)} | changes
    try:
        TrainingArguments(**values)
        refused = False
    except (TypeError, ValueError):
        refused = True
    assert refused == (changes in REFUSED)
    found = check(json.dumps(values), "args.json", transformers=VERSION)
    assert any(problem.severity == "error" for problem in found) == refused, render(found)


def test_the_sentences() -> None:
    text = """\
output_dir: out
per_device_train_batch_size: 4
learning_rate: 5e-5
lr_scheduler_type: cosin
evaluation_strategy: steps
warmup_ratio: 0.1
num_train_epochs: 3
max_steps: 100
weight_decy: 0.1
bf16: "yes"
my_own_setting: 1
"""
    pinned(render([*check(text), *check(text, transformers="4.46.3")]))


PYTHON = """\
import sys
import transformers
from transformers import TrainingArguments, Trainer

LR = 1e-4
first = TrainingArguments(
    "é", per_device_train_batch_size=4, learning_rate=LR, logging_steps="ten", fsdp="full_shrd",
    evaluation_strategy=sys.argv[1],
    weight_decy=0.1,
)
second = transformers.Seq2SeqTrainingArguments(output_dir="out", fp16=True, bf16=True)
other = MyArguments(logging_steps="ten")
"""


def test_the_calls_of_a_python_program() -> None:
    found = checked(Text("train.py", PYTHON), {}, None)
    assert found
    pinned(render([*found.problems]))
    pinned(found.remarks)
    edits = [edit for problem in found.problems for edit in problem.edits]
    fixed = corrected(Text("train.py", PYTHON), edits).text
    calls = [node for node in ast.walk(ast.parse(fixed)) if isinstance(node, ast.Call)]
    assert {"weight_decay", "eval_strategy", "fsdp"} <= {word.arg for call in calls for word in call.keywords}
    for old, new in (("TrainingArguments(", "Arguments("), ("transformers", "my.arguments")):
        assert checked(Text("train.py", PYTHON.replace(old, new)), {}, None) is None
    assert checked(Text("train.py", f"{PYTHON}]"), {}, None) is None


@pytest.mark.parametrize(
    ("words", "is_error"),
    [
        ("load_best_model_at_end=True", True),
        ("load_best_model_at_end=True, eval_strategy=EVAL", False),
        ("load_best_model_at_end=True, **others", False),
        ("save_steps=None", True),
        ("save_steps=None or 5", False),
        ("report_to=('none',), debug=[*options]", False),
        ("evaluation_strategy='no', eval_strategy='no'", False),
    ],
)
def test_what_a_program_computes_is_not_judged(words: str, is_error: bool) -> None:
    found = check(f"from transformers import *\nTrainingArguments('out', {words})", "train.py")
    assert any(problem.severity == "error" for problem in found) == is_error, render(found)
    assert not any(problem.edits for problem in found)


def test_against_the_deepspeed_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    }
    Path("ds.json").write_text(json.dumps(values, indent=1))
    arguments = {
        "output_dir": "o",
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "bf16": True,
        "use_cpu": True,
    }
    pinned(render(check(json.dumps({**arguments, "deepspeed": "ds.json"}, indent=1), "args.json")))
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    theirs = HfTrainerDeepSpeedConfig("ds.json")
    theirs.trainer_config_process(TrainingArguments(**arguments))
    assert [line.split("=")[0] for line in theirs.mismatches] == [
        "- ds train_micro_batch_size_per_gpu", "- ds gradient_clipping",
    ]  # fmt: skip


def test_numbers_that_are_not_finite() -> None:
    text = "output_dir: o\nper_device_train_batch_size: .inf\nnum_train_epochs: .nan\nseed: -.inf\n"
    assert {problem.id for problem in check(text)} == {"other-program-value"}
