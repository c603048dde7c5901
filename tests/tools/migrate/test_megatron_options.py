"""Each option of Megatron-LM's parser is read or accounted for; and YAML, as flags, comes back as the same run."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest

from neoxargs.launch.targets.megatron import megatron_flags
from neoxargs.launch.targets.megatron_unsupported import dropped_settings, unsupported
from neoxargs.problems import Problems
from neoxargs.registry import REGISTRY
from neoxargs.resolve import Text, complete, draft, resolve
from neoxargs.resolve.config import Config
from neoxargs.sizes.model import mlp_width
from neoxargs.tools.migrate.megatron.convert import convert_script
from neoxargs.tools.migrate.megatron.flags import SPECIAL, SWITCHES, by_flag, is_read, is_switch
from neoxargs.tools.migrate.megatron.reading import EARLIER
from neoxargs.tools.migrate.megatron.unsupported_flags import REASONS, reason
from tests.support.paths import NEOX_2021, NEOX_HEAD, needs_corpus
from tests.support.reference import read


@pytest.fixture(scope="module")
def actions() -> dict[str, str]:
    """Megatron-LM's options, spelt as they are looked up, with argparse's word for what they do."""
    options = read("megatron_lm_options.json")
    return {name[2:].replace("_", "-"): option["action"] for name, option in options.items()}


@pytest.fixture(scope="module")
def options(actions: dict[str, str]) -> list[str]:
    return list(actions)


def test_every_option_is_read_or_accounted_for(options: list[str]) -> None:
    assert len(options) > 850
    assert [name for name in options if not is_read(EARLIER.get(name, name)) and not reason(name)] == []


def test_the_reasons_are_about_options_that_there_are(options: list[str]) -> None:
    patterns = [pattern for names in REASONS.values() for pattern in names.split()]
    assert [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in options)] == []
    assert [name for name in by_flag() if name.lstrip("!") not in options] == []


def test_which_flags_take_no_value(actions: dict[str, str]) -> None:
    there = SPECIAL.keys() & actions.keys()
    switches = {name for name in there if actions[name] in ("_StoreTrueAction", "_StoreFalseAction")}
    assert switches == SWITCHES & actions.keys()
    read = [name for name in actions if is_read(name) and name != "onnx-safe"]  # argparse's `type=bool`
    wrong = [name for name in read if is_switch(name) != (actions[name] != "_StoreAction")]
    assert wrong == []


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        ("--rl-profile", "it is for another of Megatron-LM's programs, not for training a GPT on tokens"),
        ("--kv-channels 7", "each head is hidden_size / num_attention_heads wide"),
        ("--window-size 4,4", "a window here reaches back from each token: W,0"),
        ("--rampup-batch-size 1 1 9", "the batch has one size for the whole run"),
    ],
)
def test_what_is_said_of_one(flags: str, hint: str) -> None:
    (problem,) = convert_script(Text("run.sh", f"python p.py {SIZES} {flags}")).problems
    assert (problem.what, problem.hint) == (f"{flags} has no counterpart", hint)


@pytest.mark.parametrize(
    ("flags", "hint"), [("--num-layer 3", "did you mean --num-layers?"), ("--of-my-own 3", "it is left out")]
)
def test_what_megatron_does_not_have_is_said_to_be_no_flag(flags: str, hint: str) -> None:
    (problem,) = convert_script(Text("run.sh", f"python p.py {SIZES} {flags}")).problems
    assert (problem.what, problem.hint) == (f"{flags} is no flag of Megatron-LM (2026)", hint)


SIZES = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--kv-channels 16", {}),
        ("--window-size 128,0", {"sliding_window_width": 128}),
        ('--window-size "(128, 0)"', {"sliding_window_width": 128}),
        ("--window-size -1,-1", {"sliding_window_width": None}),
        ("--init-method-xavier-uniform", {"init_method": "xavier_uniform"}),
        ("--init-method-xavier-uniform", {"output_layer_init_method": "xavier_uniform"}),
        ("--optimizer lion --lion-beta2 0.9 --adam-beta1 0.1", {"optimizer.params.betas": [0.95, 0.9]}),
        ("--encoder-num-layers 3", {"num_layers": 3}),
    ],
)
def test_what_is_read(flags: str, expected: dict[str, Any]) -> None:
    result = convert_script(Text("run.sh", f"python p.py {SIZES} --micro-batch-size 1 --train-iters 2 {flags}"))
    assert result.problems == []
    config = complete(draft([Text("new.yml", result.text)]), 1)
    assert {name: config.get(name) for name in expected} == expected


# -- there and back --------------------------------------------------------------------------------------------------

#: One run under two names: a kernel that chooses itself here, a width and its rounding, a norm without a bias,
#: SGD without momentum, betas that are the optimizer's own, an earlier name of gradient_clipping.
ALIKE = {"scaled_masked_softmax_fusion", "scaled_upper_triang_masked_softmax_fusion", "intermediate_size",
         "mlp_multiple_of", "expansion_factor", "use_bias_in_norms", "attention_config",
         "optimizer.params.momentum", "momentum", "optimizer.params.betas", "adam_beta1", "adam_beta2",
         "optimizer.params.max_grad_norm"}  # fmt: skip
SAME = [
    parameter.name
    for parameter in REGISTRY.parameters.values()
    if parameter.effect in ("model", "optimizer", "schedule")
    and not parameter.replaced_by
    and parameter.name not in ALIKE
] + [
    "gradient_clipping", "precision", "zero_optimization.stage", "train_batch_size", "gradient_accumulation_steps",
    "train_micro_batch_size_per_gpu", "model_parallel_size", "sequence_parallel", "checkpoint_activations", "seed",
]  # fmt: skip


def comes_back(before: Config, gpus: int) -> None:
    result = convert_script(Text("run.sh", f"torchrun pretrain_gpt.py {shlex.join(megatron_flags(before))}"))
    assert [problem.what for problem in result.problems] == []
    after = complete(draft([Text("new.yml", result.text)]), gpus)
    assert {name: after.get(name) for name in SAME} == {name: before.get(name) for name in SAME}
    assert mlp_width(after.shape, after.mlp) == mlp_width(before.shape, before.mlp)
    assert (before.norm.use_bias_in_norms, after.norm.norm) in ((True, after.norm.norm), (False, "rmsnorm"))
    assert (after.optimizer_params.momentum or 0.0) == (before.optimizer_params.momentum or 0.0)
    own = [0.9, 0.99] if before.optimizer.type == "Lion" else [0.9, 0.999]
    assert (after.optimizer_params.betas or own) == (before.optimizer_params.betas or own)
    assert set(before.attention.attention_config) <= {"global", "flash"}


@pytest.fixture(scope="module")
def published() -> list[Config]:
    """GPT-NeoX's own configurations, with the first weights that Megatron-LM draws."""
    return list(_published())


def _published() -> Iterator[Config]:
    for case in read("neox_head_translations.json").values():
        files = [NEOX_HEAD / name.removeprefix("configs/") for name in case["files"]]
        given = ["init_method=normal", "output_layer_init_method=scaled_normal"]
        try:
            yield resolve(files, given, gpus=case["num_gpus"] or 8)
        except Problems:  # refused for a reason that test_corpus.py holds
            continue
    yield resolve([NEOX_2021 / "ds_pretrain_gpt2.yml", NEOX_2021 / "local_setup.yml"], gpus=8)


@needs_corpus
def test_published_configurations_come_back(published: list[Config]) -> None:
    expressible = [config for config in published if not unsupported(config)]
    assert len(expressible) > 30
    for config in expressible:
        comes_back(config, config.get("world_size"))


@needs_corpus
def test_what_a_published_configuration_loses_is_told_with_its_line(published: list[Config]) -> None:
    told = [problem for config in published for problem in dropped_settings(config)]
    assert all(problem.where and problem.severity == "warning" for problem in told)
    assert {problem.what.split(" for ")[1].split(" (")[0] for problem in told} >= {
        "keep_last_n_checkpoints", "zero_optimization.overlap_comm", "synchronize_each_layer",
    }  # fmt: skip


CHOICES: dict[str, list[Any]] = {
    "num_layers": [2, 8], "hidden_size": [64, 256], "num_attention_heads": [4, 8], "num_kv_heads": [1, 2, 4],
    "seq_length": [32], "train_iters": [10, 1000], "train_micro_batch_size_per_gpu": [1, 3],
    "gradient_accumulation_steps": [1, 4], "model_parallel_size": [1, 2], "pipe_parallel_size": [0, 2],
    "norm": ["layernorm", "rmsnorm"], "rms_norm_epsilon": [1e-6], "layernorm_epsilon": [1e-6],
    "pos_emb": ["learned", "rotary", "none"], "rotary_pct": [0.25, 1.0], "rotary_emb_base": [10000, 500000],
    "no_weight_tying": [True, False], "use_qk_layernorm": [True], "intermediate_size": [192, 768],
    "activation": ["gelu", "swiglu"], "apply_query_key_layer_scaling": [True], "init_method_std": [0.01],
    "precision": ["fp16", "bfloat16", "fp32"], "loss_scale": [512], "zero_stage": [0, 1], "lr": [1e-4, 3e-3],
    "weight_decay": [0.0, 0.1], "gradient_clipping": [0.0, 0.5, 1.0], "min_lr": [0.0, 1e-5], "warmup": [0.0, 0.1],
    "lr_decay_style": ["constant", "linear", "cosine"], "lr_decay_iters": [5], "attention_dropout": [0.0, 0.1],
    "hidden_dropout": [0.2], "checkpoint_activations": [True], "sliding_window_width": [16],
    "make_vocab_size_divisible_by": [64], "seed": [7], "reset_attention_mask": [True], "openai_gelu": [True],
    "sequence_parallel": [True], "bias_gelu_fusion": [True], "optimizer": [{"type": "Lion"}, {"type": "SGD"},
    {"type": "Adam", "params": {"betas": [0.8, 0.9], "eps": 1e-6}}, {"type": "cpu_adam"}],
}  # fmt: skip
NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "train_iters")


def drawn(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    wanted = [name for name in CHOICES if name in NEEDED or chance.random() < 0.4]
    values = {name: chance.choice(CHOICES[name]) for name in wanted}
    if chance.random() < 0.3:
        values |= {"use_bias_in_mlp": False, "use_bias_in_attn_linear": False}
    unread = "layernorm_epsilon" if values.get("norm") == "rmsnorm" else "rms_norm_epsilon"
    values.pop(unread, None)  # two names for one flag, of which the norm reads one
    return values | {"dialect": chance.choice(["neox-2021", "neox-2026"])}


def test_drawn_configurations_come_back() -> None:
    drawn_and_good = 0
    for seed in range(150):
        try:
            config = complete(draft([Text("drawn.yml", json.dumps(drawn(seed)))]), 8)
        except Problems:
            continue
        if not unsupported(config):
            drawn_and_good += 1
            comes_back(config, 8)
    assert drawn_and_good > 40
