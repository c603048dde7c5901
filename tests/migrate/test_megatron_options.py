"""Every option of Megatron-LM's parser is read or has a reason; configurations survive a round trip through flags."""

from __future__ import annotations

import json
import random
import shlex
from typing import Any

import pytest

from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.facts.model import mlp_width
from neoxargs.migrate.megatron.convert import convert_script
from neoxargs.migrate.megatron.flags import SPECIAL, by_flag, is_read, is_switch
from neoxargs.registry import REGISTRY
from neoxargs.resolve import File, complete, draft, resolve
from neoxargs.targets.megatron import megatron_flags
from neoxargs.targets.megatron_unsupported import dropped_settings, unsupported
from tests.support.paths import NEOX_2021, NEOX_HEAD, needs_corpus
from tests.support.reference import read
from tests.support.snapshots import pinned


@pytest.fixture(scope="module")
def actions() -> dict[str, str]:
    """Return Megatron-LM's options, in the spelling for lookups, with their argparse actions."""
    options = read("megatron_lm_options.json")
    return {name[2:].replace("_", "-"): option["action"] for name, option in options.items()}


def test_every_flag_of_a_parameter_is_an_option(actions: dict[str, str]) -> None:
    assert [name for name in by_flag() if name.lstrip("!") not in actions] == []


def test_flags_that_take_no_value(actions: dict[str, str]) -> None:
    special = SPECIAL.keys() & actions.keys()
    switches = {name for name in special if actions[name] in ("_StoreTrueAction", "_StoreFalseAction")}
    assert switches == {name for name in special if SPECIAL[name].takes == "nothing"}
    read = [name for name in actions if is_read(name) and name != "onnx-safe"]  # argparse's `type=bool`
    wrong = [name for name in read if is_switch(name) != (actions[name] != "_StoreAction")]
    assert wrong == []


@pytest.mark.parametrize("flags", [
    "--rl-profile", "--window-size 4,4", "--skip-train", "--freeze-all-layers",
    "--rotary-scaling-factor 40", "--rope-scaling-factor 32",
])  # fmt: skip
def test_reasons(flags: str) -> None:
    (problem,) = convert_script(File("run.sh", f"python pretrain_gpt.py {SIZES} {flags}")).problems
    pinned(problem)


@pytest.mark.parametrize(("flags", "hint"), [("--num-layer 3", "did you mean --num-layers?"), ("--of-my-own 3", "")])
def test_flags_that_megatron_does_not_have(flags: str, hint: str) -> None:
    (problem,) = convert_script(File("run.sh", f"python pretrain_gpt.py {SIZES} {flags}")).problems
    assert problem.hint == hint
    pinned(problem.what)


SIZES = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--kv-channels 24", {"head_dim": 24}),
        ("--window-size 128,0", {"sliding_window_width": 128}),
        ('--window-size "(128, 0)"', {"sliding_window_width": 128}),
        ("--window-size -1,-1", {"sliding_window_width": None}),
        ("--window-size 8,0 --window-attn-skip-freq 2", {"window_attn_skip_freq": 2}),
        ('--window-size 8,0 --window-attn-skip-freq "([1]*3+[0]*1)*1"', {"window_attn_skip_freq": [1, 1, 1, 0]}),
        (
            "--use-rope-scaling --position-embedding-type rope",
            {"rope_scaling.rope_type": "llama3", "pos_emb": "rotary"},
        ),
        ("--use-rope-scaling --rope-scaling-factor 32", {"rope_scaling.factor": 32.0}),
        ("--rotary-seq-len-interpolation-factor 4", {"rope_scaling.rope_type": "linear", "rope_scaling.factor": 4.0}),
        (
            "--position-embedding-type yarn --rotary-scaling-factor 40 --yarn-original-max-position-embeddings 4096",
            {"rope_scaling.rope_type": "yarn", "rope_scaling.original_max_position_embeddings": 4096},
        ),
        (
            "--position-embedding-type yarn --rotary-scaling-factor 4 --yarn-beta-fast 16 --yarn-beta-slow 2 "
            "--no-yarn-correction-range-round-to-int",
            {"rope_scaling.beta_fast": 16.0, "rope_scaling.beta_slow": 2.0, "rope_scaling.truncate": False},
        ),
        (
            "--position-embedding-type yarn --rotary-scaling-factor 4 --mscale 1 --mscale-all-dim 0",
            {"rope_scaling.original_max_position_embeddings": 4096, "rope_scaling.mscale": None},
        ),
        ("--normalization RMSNorm --apply-layernorm-1p", {"apply_layernorm_1p": True}),
        ("--disable-bias-linear --add-qkv-bias", {"add_qkv_bias": True, "use_bias_in_attn_linear": False}),
        ("--init-method-xavier-uniform", {"init_method": "xavier_uniform"}),
        ("--init-method-xavier-uniform", {"output_layer_init_method": "xavier_uniform"}),
        ("--optimizer lion --lion-beta2 0.9 --adam-beta1 0.1", {"optimizer.params.betas": [0.95, 0.9]}),
        ("--encoder-num-layers 3", {"num_layers": 3}),
        ("--attention-backend flash", {"attention_backend": "sdpa"}),
        ("--attention-backend fused --window-size 8,0", {"attention_backend": "auto"}),
        ("--attention-backend local", {"attention_backend": "unfused"}),
        ("--attention-backend auto", {"attention_backend": "auto"}),
    ],
)
def test_flags_that_are_read(flags: str, expected: dict[str, Any]) -> None:
    result = convert_script(
        File("run.sh", f"python pretrain_gpt.py {SIZES} --micro-batch-size 1 --train-iters 2 {flags}")
    )
    assert result.problems == []
    config = complete(draft([File("new.yml", result.text)]), 1)
    assert {name: config.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "has_hint"),
    [
        ("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4", [True]),
        ("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes a 4", [True]),
        ("--hierarchical-context-parallel-sizes 2 2", [False]),
        ("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2", [False]),
        ("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 4 1", []),
        (
            "--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2 --group-query-attention "
            "--num-query-groups 2",
            [],
        ),
    ],
)
def test_the_ranks_of_a_hierarchy(flags: str, has_hint: list[bool]) -> None:
    """Sizes that contradict the number of ranks are told with what to set, and others than those of `hybrid` too."""
    result = convert_script(File("run.sh", f"python pretrain_gpt.py {SIZES} --context-parallel-size 4 {flags}"))
    assert [bool(problem.hint) for problem in result.problems] == has_hint
    assert "context_parallel_size: 4" in result.text


def test_a_multiplier_of_yarn_that_only_megatron_has() -> None:
    flags = "--position-embedding-type yarn --rotary-scaling-factor 4 --mscale 0.7"
    result = convert_script(File("run.sh", f"python pretrain_gpt.py {SIZES} {flags}"))
    assert any("rope_scaling.attention_factor" in line for line in result.to_do)


# -- round trips -----------------------------------------------------------------------------------------------------

#: Parameters that may differ in the same run: kernels that are chosen automatically, widths and their rounding, a norm
#: without a bias, SGD without momentum, betas that equal the optimizer's default, an old name of gradient_clipping,
#: the rate of the first update, and Transformer Engine's layers, which are the same layers. An epsilon outside of
#: RMSNorm's root is refused.
MAY_DIFFER = {"scaled_masked_softmax_fusion", "scaled_upper_triang_masked_softmax_fusion", "intermediate_size",
         "mamba_inner_size", "mlp_multiple_of", "expansion_factor", "use_bias_in_norms", "attention_config",
         "optimizer.params.momentum", "momentum", "optimizer.params.betas", "adam_beta1", "adam_beta2",
         "optimizer.params.max_grad_norm", "warmup_from_zero",
         "rms_norm_epsilon_under_root", "te_layernorm_mlp", "te_mha", "exact_mlp_width"}  # fmt: skip
SAME = [
    parameter.name
    for parameter in REGISTRY.parameters.values()
    if parameter.effect in ("model", "optimizer", "schedule")
    and not parameter.replaced_by
    and parameter.name not in MAY_DIFFER
] + [
    "gradient_clipping", "precision", "zero_optimization.stage", "train_batch_size", "gradient_accumulation_steps",
    "train_micro_batch_size_per_gpu", "model_parallel_size", "sequence_parallel", "checkpoint_activations", "seed",
]  # fmt: skip


def by_name(flags: list[str]) -> dict[str, str]:
    """Return the values of each flag."""
    return {flag.split()[0]: flag for flag in f" {' '.join(flags)}".split(" --")[1:]}


def check_round_trip(before: Config, gpus: int) -> None:
    flags = megatron_flags(before)
    result = convert_script(File("run.sh", f"torchrun pretrain_gpt.py {shlex.join(flags)}"))
    # Settings of fp8 in files whose fp8 is off are left out, which is said.
    assert [problem.what for problem in result.problems if not problem.what.startswith("--fp8-")] == []
    after = complete(draft([File("new.yml", result.text)]), gpus)
    emitted, again = by_name(flags), by_name(megatron_flags(after))
    changed = [flag for flag, words in emitted.items() if again.get(flag) != words]
    assert [flag for flag in changed if not flag.startswith("fp8-")] == []
    assert {name: after.get(name) for name in SAME} == {name: before.get(name) for name in SAME}
    assert mlp_width(after.shape, after.mlp) == mlp_width(before.shape, before.mlp)
    assert (before.norm.use_bias_in_norms, after.norm.norm) in ((True, after.norm.norm), (False, "rmsnorm"))
    assert (after.optimizer_params.momentum or 0.0) == (before.optimizer_params.momentum or 0.0)
    default = [0.9, 0.99] if before.optimizer.type == "Lion" else [0.9, 0.999]
    assert (after.optimizer_params.betas or default) == (before.optimizer_params.betas or default)
    assert set(before.attention.attention_config) <= {"global", "flash"}


SHAPE = "{num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 32, train_iters: 9, batch_size: 2}"


@pytest.mark.parametrize(
    "text",
    [
        "data_path: my_text_document",
        "{model_parallel_size: 2, pipe_parallel_size: 2, sequence_parallel: true}",
        "{zero_stage: 1, precision: fp16, bias_gelu_fusion: true, bias_dropout_fusion: true}",
        "{zero_stage: 2, precision: bf16, rope_fusion: true, pos_emb: rotary, rotary_pct: 0.5}",
        "{zero_stage: 3, precision: fp16, loss_scale: 512, scaled_masked_softmax_fusion: true}",
        "{norm: rmsnorm, activation: swiglu, use_bias_in_mlp: false, use_bias_in_attn_linear: false}",
        "{num_kv_heads: 2, no_weight_tying: true, checkpoint_activations: true, checkpoint_num_layers: 2}",
        "{optimizer: {type: SGD, params: {momentum: 0.9, lr: 0.1}}, clip_grad: 0.5, warmup: 0.1, min_lr: 0.01}",
        "{optimizer: {type: cpu_adam, params: {betas: [0.8, 0.9], eps: 1.0e-6}}}",
        "{save: out, load: out, checkpoint_factor: 50, finetune: true, no_load_optim: true, seed: 5}",
        "{tokenizer_type: HFTokenizer, vocab_file: t.json, split: '90,5,5', num_workers: 4}",
        "{train_data_paths: [a, b], train_data_weights: [1, 2], valid_data_paths: c, test_data_paths: [d]}",
        "{moe_num_experts: 4, moe_top_k: 2, moe_expert_interval: 2}",
        "{use_wandb: true, wandb_team: us, log_interval: 5, eval_iters: 3, attention_dropout: 0.2}",
    ],
)
def test_round_trip(text: str) -> None:
    check_round_trip(complete(draft([File("shape.yml", SHAPE), File("my.yml", text)]), 8), 8)


@pytest.fixture(scope="module")
def published() -> list[Config]:
    """Return GPT-NeoX's published configurations, with Megatron-LM's initialisation."""
    found = [resolve([NEOX_2021 / "ds_pretrain_gpt2.yml", NEOX_2021 / "local_setup.yml"], gpus=8)]
    for case in read("neox_head_translations.json").values():
        files = [NEOX_HEAD / name.removeprefix("configs/") for name in case["files"]]
        given = ["init_method=normal", "output_layer_init_method=scaled_normal"]
        try:
            found.append(resolve(files, given, gpus=case["num_gpus"] or 8))
        except Problems:  # test_corpus.py lists the refused ones
            continue
    return found


@needs_corpus
def test_round_trip_of_published_configurations(published: list[Config]) -> None:
    expressible = [config for config in published if not unsupported(config)]
    assert len(expressible) > 30
    for config in expressible:
        check_round_trip(config, config.get("world_size"))


@needs_corpus
def test_dropped_settings_of_published_configurations_are_warnings_with_a_line(published: list[Config]) -> None:
    warnings = [problem for config in published for problem in dropped_settings(config)]
    assert all(problem.where and problem.severity == "warning" for problem in warnings)
    assert {problem.what.split(" for ")[1].split(" (")[0] for problem in warnings} >= {
        "keep_last_n_checkpoints", "zero_optimization.overlap_comm", "synchronize_each_layer",
    }  # fmt: skip


YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "beta_fast": 16, "truncate": False,
        "mscale": 0.7, "mscale_all_dim": 1}  # fmt: skip
CHOICES: dict[str, list[Any]] = {
    "num_layers": [2, 8], "hidden_size": [64, 256], "num_attention_heads": [4, 8], "num_kv_heads": [1, 2, 4],
    "head_dim": [32],
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
    "window_attn_skip_freq": [2, [1, 0]], "add_qkv_bias": [True], "apply_layernorm_1p": [True], "rope_scaling": [
    {"rope_type": "linear", "factor": 4},
    {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 8192}, YARN],
    "sequence_parallel": [True], "bias_gelu_fusion": [True], "optimizer": [{"type": "Lion"}, {"type": "SGD"},
    {"type": "Adam", "params": {"betas": [0.8, 0.9], "eps": 1e-6}}, {"type": "cpu_adam"}],
}  # fmt: skip
NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "train_iters")


def random_values(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    wanted = [name for name in CHOICES if name in NEEDED or chance.random() < 0.4]
    values = {name: chance.choice(CHOICES[name]) for name in wanted}
    if chance.random() < 0.3:
        values |= {"use_bias_in_mlp": False, "use_bias_in_attn_linear": False}
    if values.get("rope_scaling") == YARN:  # which is a kind of positions in Megatron-LM
        values = {**values, "pos_emb": "rotary", "rotary_pct": 1.0}
    unread = "layernorm_epsilon" if values.get("norm") == "rmsnorm" else "rms_norm_epsilon"
    values.pop(unread, None)  # both are --norm-epsilon, and the norm reads only one of them
    return values | {"dialect": chance.choice(["neox-2021", "neox-2026"])}


def test_round_trip_of_random_configurations() -> None:
    valid = 0
    for seed in range(150):
        try:
            config = complete(draft([File("random.yml", json.dumps(random_values(seed)))]), 8)
        except Problems:
            continue
        if not unsupported(config):
            valid += 1
            check_round_trip(config, 8)
    assert valid > 40
