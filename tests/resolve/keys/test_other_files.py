"""Files of other programs are one problem, which names the program and our names for their settings."""

from __future__ import annotations

import json

import pytest

from neoxargs.base.problems import Problem
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import File, draft
from neoxargs.resolve.keys.other_files import OURS
from neoxargs.resolve.keys.other_programs import files

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
    assert problem.hint == (
        "write a YAML file in which output_dir is save, per_device_train_batch_size is train_micro_batch_size_per_gpu, "
        "learning_rate is lr; weight_decay has the same name"
    )


def test_values_of_the_trainer_that_mean_something_else() -> None:
    hint = only("args.yaml", TRAINER).hint
    assert "num_train_epochs is train_epochs, warmup_steps is warmup, bf16 is `bf16: {enabled: true}`; " in hint
    assert "; gradient_accumulation_steps has the same name; " in hint
    assert "; warmup is a fraction of lr_decay_iters" in hint
    assert "; if z3.json is a DeepSpeed configuration, run `deepy migrate z3.json`" in hint
    assert "fp16" not in hint and hint.endswith(OTHERS)


@pytest.mark.parametrize(
    ("name", "text", "called", "line", "hint"),
    [
        ("config.json", json.dumps(MODEL), "the config.json of a Hugging Face model", 1,
         "to train this model, run `deepy import` on its folder, which writes a model.yml; to train another model, "
         f"write a YAML file in which num_hidden_layers is num_layers; hidden_size has the same name; {OTHERS}"),
        # Some models have keys that GPT-NeoX has as well.
        ("config.json", json.dumps({"num_layers": 2, "seq_length": 64, **MODEL}),
         "the config.json of a Hugging Face model", 1, None),
        ("ax.yml", AXOLOTL, "a configuration of axolotl", 1,
         "write a YAML file in which datasets is data_path, sequence_len is seq_length, lora_r is lora.rank; "
         f"{OTHERS}"),
        ("debug.toml", TORCHTITAN, "a TOML file of torchtitan", 4,
         "write a YAML file in which local_batch_size is train_micro_batch_size_per_gpu, seq_len is seq_length; "
         f"{OTHERS}"),
        ("my.toml", "# mine\na = 1\n[b.c]\nd = 'x'\n", "TOML", 3, "write a YAML file of `key: value` lines"),
        ("acc.yaml", ACCELERATE, "a configuration of Hugging Face's Accelerate", 2,
         "run `deepy migrate acc.yaml` to convert it"),
    ],
)  # fmt: skip
def test_which_program_it_is(name: str, text: str, called: str, line: int, hint: str | None) -> None:
    problem = only(name, text)
    assert problem.what == f"this is {called}, and deepy reads YAML with its own names"
    assert problem.where and problem.where.line == line
    assert hint in (None, problem.hint)


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
