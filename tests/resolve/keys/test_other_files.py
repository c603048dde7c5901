"""Files of other programs are one problem, which names the program and our names for their settings."""

from __future__ import annotations

import json

import pytest

from neoxargs.base.problems import Problem
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import File, draft
from neoxargs.resolve.keys.other_files import OURS
from neoxargs.resolve.keys.other_programs import files
from tests.support.snapshots import pinned

TRAINER = """\
output_dir: out
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
learning_rate: 2.0e-5
num_train_epochs: 3
warmup_steps: 100
bf16: true
fp16: false
deepspeed: z3.json
push_to_hub: true
"""
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}
AXOLOTL = "base_model: a/b\ndatasets: [{path: x, type: alpaca}]\nsequence_len: 64\nlora_r: 8\nsample_packing: true\n"
TORCHTITAN = '[job]\ndump_folder = "out"\n\n[training]\nlocal_batch_size = 8  # per GPU\nseq_len = 2048\n'
ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
OTHERS = "the other settings have no counterpart, or one with another meaning"


def only(name: str, text: str) -> Problem:
    drafted = draft([File(name, text)])
    (problem,) = drafted.problems
    assert not drafted.readable
    return problem


@pytest.mark.parametrize("indent", [None, 2])
def test_the_arguments_of_hugging_faces_trainer(indent: int | None) -> None:
    arguments = {"output_dir": "out", "per_device_train_batch_size": 4, "learning_rate": 2e-5, "weight_decay": 0.1}
    problem = only("args.json", json.dumps(arguments, indent=indent))
    assert problem.id == "file-of-another-program"
    assert "TrainingArguments of Hugging Face's Trainer" in problem.what
    pinned(problem)


def test_values_of_the_trainer_that_mean_something_else() -> None:
    hint = only("args.yaml", TRAINER).hint
    pinned(hint, "num_train_epochs is")
    pinned(hint, "gradient_accumulation_steps has")
    pinned(hint, "warmup is")
    pinned(hint, "if z3.json")
    assert "fp16" not in hint and hint.endswith(OTHERS)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("config.json", json.dumps(MODEL), 1),
        # Some models have keys that GPT-NeoX has as well.
        ("config.json", json.dumps({"num_layers": 2, "seq_length": 64, **MODEL}), 1),
        ("ax.yml", AXOLOTL, 1),
        ("debug.toml", TORCHTITAN, 4),
        ("my.toml", "# mine\na = 1\n[b.c]\nd = 'x'\n", 3),
        ("acc.yaml", ACCELERATE, 2),
    ],
    ids=["Hugging Face", "Hugging Face, more keys", "axolotl", "torchtitan", "TOML", "Accelerate"],
)
def test_which_program_it_is(name: str, text: str, line: int) -> None:
    problem = only(name, text)
    pinned(problem)
    assert problem.where and problem.where.line == line


@pytest.mark.parametrize(
    "text",
    [
        "num_layers: 2\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-4\n",  # of GPT-NeoX, with wrong names
        "train_batch_size: 8\nnum_train_epochs: 3\noutput_dir: x\n",
        "learning_rate: 1.0e-4\nweight_decay: 0.1\n",
        "model_type: gpt\n",
        "hidden_size: 64\nseed = 1\n",
        "[a, b]\n",
        "num_layers = 2\n[optimizer]\nlr = 1\n",  # TOML, but ours
        "",
    ],
)
def test_any_other_file_is_judged_by_its_keys(text: str) -> None:
    assert "file-of-another-program" not in [problem.id for problem in draft([File("my.yml", text)]).problems]


def test_no_file_is_recognised_by_names_of_ours() -> None:
    assert all(REGISTRY.find(name) or name in REGISTRY.sections for name in OURS)
    for file in files():
        first = file.keys[0]
        assert file.is_toml or not [key for key in first if REGISTRY.find(normal(key))], file.called
        assert set(first).isdisjoint(file.keys[1]), file.called
