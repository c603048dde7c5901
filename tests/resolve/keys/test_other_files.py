"""Files of other programs are one problem, which names the program and our names for their settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from neoxargs.base.problems import Problem
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import File, draft
from neoxargs.resolve.keys.other_files import INSIDE, OURS, file_of_another_program
from neoxargs.resolve.keys.other_programs import files
from tests.support.paths import ROOT
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
    ("name", "text"),
    [
        ("args.yaml", TRAINER + "eval_strategy: steps\neval_steps: 50\nfsdp: full_shard\nweight_decay: 0.0\n"),
        ("ax.yml", AXOLOTL + "optimizer: adamw_8bit\nflash_attention: true\nval_set_size: 0.1\nweight_decay: 0.0\n"),
        ("a.toml", TORCHTITAN + "[parallelism]\ndata_parallel_shard_degree = -1\n"),
        ("b.toml", TORCHTITAN + 'mixed_precision_param = "float32"\n'),
    ],
    ids=["Trainer", "axolotl", "torchtitan", "torchtitan, with a precision"],
)
def test_what_cannot_be_written_under_our_name_is_said_otherwise(name: str, text: str) -> None:
    pinned(only(name, text).hint.replace("; ", "\n"))


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
        assert all(set(first).isdisjoint({*group} - {*INSIDE}) for group in file.keys[1:]), file.called


OF_NO_RUN = {
    "Kubernetes": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 3\n",
    "several documents": "apiVersion: v1\nkind: Service\n---\napiVersion: v1\nkind: Pod\n",
    "Compose": "version: '3'\nservices:\n  web: {image: nginx}\nvolumes: {}\n",
    "workflow": "name: CI\non: [push]\njobs:\n  test: {runs-on: ubuntu-latest}\n",
    "conda": "name: env\nchannels: [conda-forge]\ndependencies: [python=3.11]\n",
    "Hydra": "model:\n  net:\n    _target_: my.Net\nseed: 1\noptimizer: {lr: 1}\n",
    "Hydra, with its list": "defaults:\n  - _self_\ntrainer: {max_epochs: 3}\n",
    "NeMo": "name: gpt\ntrainer: {devices: 8}\nexp_manager: {}\nmodel: {micro_batch_size: 4}\n",
    "LLaMA-Factory": "model_name_or_path: a/b\nadapter_name_or_path: c\ntemplate: llama3\n",
    "any other": "title: My site\nauthor: me\ntheme: minima\nmarkdown: kramdown\npermalink: pretty\n",
}


@pytest.mark.parametrize("text", OF_NO_RUN.values(), ids=OF_NO_RUN)
def test_what_is_no_run_at_all_is_one_problem(text: str) -> None:
    pinned(only("my.yml", text))


CONFIGS = sorted((ROOT / "configs").rglob("*.yml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_misspelt_keys_do_not_make_a_file_another_programs(path: Path) -> None:
    """Some keys, all keys, and parts of the file: a letter is lost, doubled or written twice the wrong way round."""
    lines = path.read_text().split("\n")
    keys = [number for number, line in enumerate(lines) if re.match(r'\s{0,2}"?[a-z][\w-]{4,}"?\s*:', line)]
    for wrong in (keys[:3], keys[1::2], keys):
        spoilt = [_misspelt(line, number) if number in wrong else line for number, line in enumerate(lines)]
        assert file_of_another_program(File("my.yml", "\n".join(spoilt))) is None


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_small_file_of_misspelt_keys_is_ours(count: int) -> None:
    words = ["num_layers", "hidden_size", "seq_length", "train_iters", "model_parallel_size", "zero_optimization"]
    text = "".join(f"{_misspelt(f'{word}: 8', number)}\n" for number, word in enumerate(words[:count]))
    found = draft([File("my.yml", text)]).problems
    assert [problem.id for problem in found].count("unknown-key") == count
    unlike = "".join(f"{word}: 8\n" for word in ["alpha", "bravo", "title"][:count])
    assert file_of_another_program(File("my.yml", unlike)) is None


def _misspelt(line: str, number: int) -> str:
    at = len(line) - len(line.lstrip(' "')) + 2
    return (
        line[:at] + line[at + 1 :],
        line[:at] + line[at] + line[at:],
        line[:at] + line[at + 1] + line[at] + line[at + 2 :],
    )[number % 3]
