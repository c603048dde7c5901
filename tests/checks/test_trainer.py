"""What train.py does not support is reported with its line; its default model is supported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from neoxargs.checks.trainer import LAYERS, reason, supported_values, trainer_problems
from neoxargs.facts.optimizers import OPTIMIZERS
from neoxargs.registry import REGISTRY
from neoxargs.resolve import resolve
from neoxargs.resolve.derive import Unresolved
from neoxargs.resolve.rules.model import LAYER_KINDS
from tests.support.configure import configure
from tests.support.paths import CONFIGS
from tests.support.snapshots import pinned


def test_the_default_model_is_supported() -> None:
    assert trainer_problems(configure()) == []
    assert trainer_problems(configure("dialect: neox-2026")) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("moe_token_dropping: true", True),
        ("moe_token_dropping: true, moe_eval_capacity_factor: 1.99", True),
        ("moe_token_dropping: true, moe_eval_capacity_factor: 2", False),
        ("moe_token_dropping: false", False),
        ("moe_token_dropping: true, moe_num_experts: 1, moe_top_k: 1", False),
    ],
)
def test_a_trained_model_that_drops_tokens_is_told(text: str, told: bool) -> None:
    config = configure(f"{{{text}}}", *[] if "num_experts" in text else ["{moe_num_experts: 4, moe_top_k: 2}"])
    for training, expected in ((True, False), (False, told)):
        found = [problem.id for problem in trainer_problems(config, training)]
        assert ("experts-drop-tokens" in found) == expected


@pytest.mark.parametrize(
    "text",
    [
        "num_kv_heads: 2",
        "{pos_emb: rotary, rotary_pct: 0.25, gpt_j_residual: true, gpt_j_tied: true}",
        "{norm: rmsnorm, activation: swiglu, mlp_multiple_of: 64}",
        'attention_config: [[["flash"], "all"]]',
        'attention_config: [[["local", "global"], "all"]]',
        "{sparsity: interspersed, sliding_window_width: 8}",
        "rpe: true",
        "{pos_emb: alibi, reset_position_ids: true, reset_attention_mask: true}",
        "no_weight_tying: true",
        "{num_unique_layers: 2, pos_emb: sinusoidal, apply_residual_connection_post_layernorm: true}",
        "{precision: fp16, fp16_lm_cross_entropy: true}",
        "{precision: fp16, zero_stage: 1, pipe_parallel_size: 2, model_parallel_size: 2}",
        "optimizer: {type: adamw}",
        's3_path: ""',
        "optimizer: {type: SGD, params: {momentum: 0.9}}",
        "{use_bias_in_mlp: false, use_bias_in_attn_linear: false, init_method: small_init}",
        "{checkpoint_activations: true, lr_decay_style: cosine, gradient_clipping: 1.0}",
    ],
)
def test_what_is_supported(text: str) -> None:
    assert trainer_problems(configure(text)) == []


def test_a_pattern_counts_at_least_one_layer() -> None:
    (problem,) = trainer_problems(configure("{pipe_parallel_size: 2, pipe_partition_method: 'type:Position'}", gpus=2))
    assert problem.id == "no-layer-counted"
    pinned(problem)


@pytest.mark.parametrize(("kind", "hint"), [("Adamm", "did you mean Adam?"), ("lyon", "did you mean Lion?")])
def test_a_misspelt_optimizer_is_unknown(kind: str, hint: str) -> None:
    (problem,) = trainer_problems(configure(f"optimizer: {{type: {kind}}}"))
    assert problem.hint == hint
    pinned(problem.what)
    assert problem.where


@pytest.mark.parametrize("kind", ["Shampoo", "AdaBound"])
def test_another_optimizer_is_not_supported(kind: str) -> None:
    (problem,) = trainer_problems(configure(f"optimizer: {{type: {kind}}}"))
    pinned(problem)


def nested(name: str, value: Any) -> str:
    for part in reversed(name.split(".")):
        value = {part: value}
    return json.dumps(value)


#: An unsupported value for every row.
OTHER: dict[str, Any] = {
    "sliding_window_width": 8,
    "moe_glu": True,
    "optimizer.type": "Shampoo",
    "optimizer.params.comm_backend_name": "mpi",
    "train_impl": "reinforce",
    "train_epochs": 2,
    "dataset_impl": "online",
    "s3_path": "s3://a/b",
    "peak_theoretical_tflops": 10.0,
    "curriculum_learning.enabled": True,
    "checkpoint.writer.io_multiplier": 2,
    "checkpoint.writer.type": "MOCK",
    "tensor_parallel.autotp_size": 2,
    "weight_quantization.quantized_initialization": {"num_bits": 8},
    "zero_optimization.mics_shard_size": 2,
    "zero_optimization.offload_optimizer.ratio": 0.5,
}
_SAMPLING = "data_efficiency.data_sampling"
_HEADS = "compression_training.head_pruning.shared_parameters"
BESIDE = {
    "optimizer.params.comm_backend_name": "optimizer_type: OneBitAdam",
    "checkpoint.writer.io_multiplier": "zero_optimization: {stage: 3}",
    "curriculum_learning.enabled": "curriculum_learning: {schedule_type: custom}",
    "zero_optimization.offload_optimizer.ratio": "zero_optimization: {stage: 3, offload_optimizer: {device: cpu}}",
    f"{_HEADS}.enabled": nested(f"{_HEADS}.num_heads", 2),
    f"{_SAMPLING}.curriculum_learning.enabled": nested(f"{_SAMPLING}.curriculum_learning.curriculum_metrics", {"a": 1}),
    f"{_SAMPLING}.dynamic_batching.enabled": nested(f"{_SAMPLING}.dynamic_batching.max_tokens", 64),
}


@pytest.mark.parametrize("name", supported_values())
def test_what_is_not_supported_is_reported(name: str) -> None:
    default = REGISTRY.parameters[name].default
    value = OTHER.get(name, not default)
    texts = (nested(name, value), BESIDE.get(name, ""))
    config = configure(*texts, without="train_iters" if name == "train_epochs" else "")
    (problem,) = trainer_problems(config)
    assert problem.what.startswith(f"{name} (")
    assert "train.py" in problem.what
    assert problem.where
    assert problem.hint
    assert problem.severity == "error"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("checkpoint: {writer: {decoupled: true}}", True),
        ("checkpoint: {writer: {type: fast}}\nzero_optimization: {stage: 2}", True),
        ("checkpoint: {writer: {type: fast}}\nzero_optimization: {stage: 3}", False),
        ("checkpoint: {writer: {type: PYTHON}}", False),
        ("", False),
    ],
)
def test_the_fast_writer_needs_zero_stage_3(text: str, refused: bool) -> None:
    """DeepSpeed's writer adds the number of the rank to the names of files, which its loader does not expect."""
    found = [problem.what for problem in trainer_problems(configure(text)) if problem.id == "not-built"]
    assert [what.startswith("checkpoint.writer.type (") for what in found] == [True] * refused


@pytest.mark.parametrize("name", supported_values())
def test_every_refused_choice_has_a_reason(name: str) -> None:
    parameter, supported = REGISTRY.parameters[name], supported_values()[name]
    for choice in get_args(parameter.type):
        if isinstance(choice, str) and choice not in supported:
            assert reason(parameter, choice), choice


def test_every_refused_layer_and_optimizer_of_torch_has_a_reason() -> None:
    layers = REGISTRY.parameters["attention_config"]
    assert all(reason(layers, [kind]) for kind in set(LAYER_KINDS) - set(LAYERS))
    assert reason(layers, ["gmlp", "amlp"]) == reason(layers, ["gmlp"])
    assert set(layers.refused) == set(LAYER_KINDS) - set(LAYERS)
    kinds = REGISTRY.parameters["optimizer.type"].refused
    assert not {kind.lower() for kind in kinds} & {kind.lower() for kind in OPTIMIZERS}


def test_a_reason_is_followed_by_what_to_write_instead() -> None:
    (problem,) = trainer_problems(configure("managed_gradient_accumulation: false"))
    assert problem.what.startswith("managed_gradient_accumulation (false) is not supported by train.py: the training ")
    assert problem.hint.startswith("remove managed_gradient_accumulation; set the micro batches of a step with ")


def test_a_layer_that_does_not_exist_is_one_problem() -> None:
    with pytest.raises(Unresolved) as stop:
        configure('attention_config: [[["hyena"], 4]]')
    pinned([*stop.value.problems, *trainer_problems(stop.value.certain)])


def test_generate_checks_only_the_model() -> None:
    config = configure("{optimizer: {type: Shampoo}, log_param_norm: true, te_fp8_mha: true}")
    pinned(trainer_problems(config, training=False))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("quickstart*.yml")), ids=lambda path: path.name)
def test_the_quickstart_is_supported(path: Path) -> None:
    assert trainer_problems(resolve([path], gpus=4)) == []


@pytest.mark.parametrize("text", [
    'attention_config: [[["gmlp", "global"], "all"]]', 'attention_config: [[["amlp", "rwkv"], "all"]]',
    "use_bnb_optimizer: true", "serve_model_weights: true", "data_efficiency: {enabled: true}",
])  # fmt: skip
def test_what_stays_unsupported_has_a_reason(text: str) -> None:
    problems = [problem for problem in trainer_problems(configure(text)) if problem.severity == "error"]
    pinned(problems)
    assert problems and all(problem.where for problem in problems)


def test_a_run_that_deepspeed_would_end_for_autotuning_is_refused() -> None:
    (problem,) = trainer_problems(configure("autotuning: {enabled: true, end_profile_step: 7}"))
    assert problem.id == "autotuning-without-tuner"
    pinned(problem)
    assert trainer_problems(configure("{autotuning: {enabled: true}, autotuning_run: tune}")) == []
