"""`--emit megatron`: every flag is one that Megatron-LM's parser has, and what it has none for is refused."""

from __future__ import annotations

import argparse

import pytest

from neoxargs.files.token_files.sources import with_text
from neoxargs.resolve import File, complete, draft, resolve
from neoxargs.targets.megatron import megatron_flags
from neoxargs.targets.megatron_unsupported import unsupported
from tests.support.paths import NEOX_HEAD, QUICKSTART, needs_corpus
from tests.support.reference import read
from tests.support.refused import refused
from tests.support.targets import SHAPE, configured


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """Megatron-LM's options by name, kind and choices (the table does not know how many values each takes)."""
    options = read("megatron_lm_options.json")
    made = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, option in options.items():
        if option["action"] == "_StoreAction":
            made.add_argument(name, nargs="+", choices=option["choices"])
        elif option["action"] == "_StoreTrueAction":
            made.add_argument(name, action="store_true")
        else:
            made.add_argument(name, action="store_false")
    return made


def told(parser: argparse.ArgumentParser, text: str) -> dict[str, object]:
    """What Megatron-LM would read: lists of one word as that word."""
    flags = megatron_flags(configured(text))
    read = vars(parser.parse_args(flags))
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in read.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"tensor_model_parallel_size": "1", "pipeline_model_parallel_size": "1", "fp16": False, "bf16": False}),
        ("", {"global_batch_size": "16", "micro_batch_size": "2", "data_path": "my_text_document"}),
        ("", {"no_masked_softmax_fusion": False, "no_bias_gelu_fusion": False, "ffn_hidden_size": "256"}),
        ("bias_gelu_fusion: true", {"no_bias_gelu_fusion": True}),
        ("{model_parallel_size: 2, pipe_parallel_size: 4}", {"tensor_model_parallel_size": "2"}),
        ("{model_parallel_size: 2, pipe_parallel_size: 4}", {"pipeline_model_parallel_size": "4"}),
        ("context_parallel_size: 2", {"context_parallel_size": "2", "cp_comm_type": "a2a"}),
        ("{context_parallel_size: 2, context_parallel_style: ring, attention_dropout: 0}", {"cp_comm_type": "p2p"}),
        (
            "{context_parallel_size: 4, context_parallel_style: hybrid, num_kv_heads: 2}",
            {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": ["2", "2"]},
        ),
        (
            "{pos_emb: rotary, rope_scaling: {rope_type: yarn, factor: 4, original_max_position_embeddings: 16, "
            "mscale: 0.7, mscale_all_dim: 1, beta_fast: 16, beta_slow: 2, truncate: false}}",
            {"position_embedding_type": "yarn", "rotary_scaling_factor": "4.0", "mscale": "0.7"}
            | {"yarn_original_max_position_embeddings": "16", "yarn_beta_fast": "16.0", "yarn_beta_slow": "2.0"}
            | {"no_yarn_correction_range_round_to_int": False, "mscale_all_dim": "1.0"},
        ),
        ("rope_scaling: {rope_type: yarn, factor: 4}", {"position_embedding_type": "learned_absolute"}),
        ("zero_stage: 1", {"use_distributed_optimizer": True, "use_megatron_fsdp": False}),
        ("zero_stage: 2", {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"}),
        ("zero_stage: 3", {"data_parallel_sharding_strategy": "optim_grads_params"}),
        ("precision: fp16", {"fp16": True, "initial_loss_scale": "65536", "hysteresis": "2"}),
        ("{precision: fp16, loss_scale: 512}", {"loss_scale": "512.0", "initial_loss_scale": None}),
        ("precision: bf16", {"bf16": True, "initial_loss_scale": None}),
        ("pos_emb: rotary", {"position_embedding_type": "rope"}),
        ("{norm: rmsnorm, rms_norm_epsilon: 1e-6}", {"normalization": "RMSNorm", "norm_epsilon": "1e-06"}),
        ("num_kv_heads: 2", {"group_query_attention": True, "num_query_groups": "2"}),
        ("", {"group_query_attention": False, "num_query_groups": None}),
        ("{activation: swiglu, intermediate_size: 192}", {"swiglu": True, "ffn_hidden_size": "64"}),
        ("{use_bias_in_mlp: false, use_bias_in_attn_linear: false}", {"disable_bias_linear": False}),
        ("optimizer: {type: cpu_torch_adam}", {"optimizer": "adam", "use_torch_optimizer_for_cpu_offload": True}),
        ("optimizer: {type: SGD, params: {momentum: 0.9}}", {"optimizer": "sgd", "sgd_momentum": "0.9"}),
        (
            "optimizer: {type: Muon}",
            {
                "muon_momentum": "0.95",
                "muon_nesterov": True,
                "muon_scale_mode": "shape_scaling",
                "muon_no_split_qkv": True,
            },
        ),
        (
            "optimizer: {type: Muon, params: {adjust_lr_fn: match_rms_adamw, nesterov: false, split_qkv: false}}",
            {"muon_scale_mode": "spectral", "muon_extra_scale_factor": "0.2", "muon_nesterov": False}
            | {"muon_no_split_qkv": False},
        ),
        ("checkpoint_activations: true", {"recompute_granularity": "full", "recompute_num_layers": "1"}),
        (
            "checkpoint_activations: selective",
            {"recompute_granularity": "selective", "recompute_modules": "layernorm"},
        ),
        ("checkpoint_activations: false", {"recompute_granularity": None, "recompute_num_layers": None}),
        ("clip_grad: 0.5", {"clip_grad": "0.5"}),
        ("warmup: 0.1", {"lr_warmup_fraction": "0.1"}),
        ("{save: out, checkpoint_factor: 50}", {"save": "out", "save_interval": "50"}),
        ("split: 949, 50, 1", {"split": "949,50,1"}),
        ("{tokenizer_type: HFTokenizer, vocab_file: t.json}", {"tokenizer_model": "t.json", "vocab_file": None}),
        ("{vocab_file: v.json, merge_file: m.txt}", {"tokenizer_type": "GPT2BPETokenizer", "merge_file": "m.txt"}),
        ("{use_wandb: true, wandb_team: us}", {"wandb_project": "neox", "wandb_entity": "us"}),
        ("wandb_team: us", {"wandb_project": None, "wandb_entity": None}),
        ("no_weight_tying: true", {"untie_embeddings_and_output_weights": True}),
        ("{moe_num_experts: 4, moe_top_k: 2}", {"num_experts": "4", "moe_router_topk": "2"}),
        ("", {"num_experts": None}),
    ],
)
def test_a_setting_as_flags(parser: argparse.ArgumentParser, text: str, expected: dict[str, object]) -> None:
    found = told(parser, text)
    assert {name: found[name] for name in expected} == expected


def test_no_flag_is_written_twice() -> None:
    experts = "{moe_num_experts: 4, moe_top_k: 2, moe_expert_parallel_size: 2, model_parallel_size: 2}"
    flags = [word for word in megatron_flags(configured(experts, gpus=8)) if word.startswith("--")]
    assert "--expert-model-parallel-size" in flags
    assert len(flags) == len({*flags})


def test_scaled_positions_reach_farther_than_the_original_context() -> None:
    """Megatron-LM refuses sequences longer than --max-position-embeddings."""
    scaled = "pos_emb: rotary\nrope_scaling: {rope_type: linear, factor: 4}"
    shape = SHAPE.replace("max_position_embeddings: 32", "max_position_embeddings: 16")
    flags = megatron_flags(complete(draft([File("shape.yml", shape), File("my.yml", scaled)]), 8))
    assert flags[flags.index("--max-position-embeddings") + 1] == flags[flags.index("--seq-length") + 1] == "32"


def test_the_sizes_of_a_batch_by_phases() -> None:
    phases = "{train_samples: 999, train_batch_size: 64, batch_size_schedule: [{until: 3, size: 16}, {size: 64}]}"
    files = [File("shape.yml", SHAPE.replace("train_iters: 100", "")), File("my.yml", phases)]
    flags = megatron_flags(complete(draft(files), 8))
    assert flags[flags.index("--step-batch-size-schedule") + 1] == f"0:16 {3 * 16 * 32}:64"
    assert "--global-batch-size" not in flags
    in_iterations = configured(phases.replace("train_samples: 999, ", ""), gpus=8)
    [problem] = refused(megatron_flags, in_iterations)
    assert problem.about == ("batch_size_schedule", "train_iters")


def test_datasets_with_weights(parser: argparse.ArgumentParser) -> None:
    text = "{train_data_paths: [a, b], train_data_weights: [1, 2], valid_data_paths: 'c', test_data_paths: [d]}"
    texts = [File("shape.yml", SHAPE.replace("data_path: my_text_document", "")), File("my.yml", text)]
    read = vars(parser.parse_args(megatron_flags(complete(draft([File(*text) for text in texts]), 8))))
    assert read["train_data_path"] == ["1.0", "a", "2.0", "b"]
    assert read["valid_data_path"] == ["1.0", "c"]
    assert read["split"] is None


@pytest.mark.parametrize(
    "text",
    [
        "activation: geglu",
        "pos_emb: alibi",
        "norm: scalenorm",
        "{pos_emb: rotary, rotary_pct: 0.5, rope_scaling: {rope_type: yarn, factor: 4}}",
        'attention_config: [[["local"], "all"]]',
        "use_bias_in_mlp: false",
        "{save: out, checkpoint_factor: 2, checkpoint_scale: log}",
        "lr_decay_style: exponential",
        "init_method: small_init",
        "tokenizer_type: CharLevelTokenizer",
        "onebitadam: true",
        "scheduler: {type: WarmupLR}",
        "zero_optimization: {stage: 3, offload_param: {device: cpu}}",
    ],
)
def test_what_has_no_flag_is_refused(text: str) -> None:
    problems = refused(lambda: megatron_flags(configured(text)))
    assert all("Megatron-LM" in problem.what for problem in problems)
    assert all(problem.where for problem in problems)
    assert not any("None" in problem.what + problem.hint for problem in problems)


def test_the_quickstart_as_flags(parser: argparse.ArgumentParser) -> None:
    """Its text is tokenised to `data_path` beforehand; Megatron-LM only needs to know how many tokens there are."""
    config = with_text(resolve([QUICKSTART], gpus=4))
    read = vars(parser.parse_args(megatron_flags(config)))
    assert (read["tokenizer_type"], read["vocab_size"]) == (["NullTokenizer"], ["256"])
    assert read["data_path"] == ["runs/quickstart/data/text"]


@needs_corpus
@pytest.mark.parametrize("size", ["125M", "1-3B", "20B", "350M", "6-7B", "175B"])
def test_published_models(parser: argparse.ArgumentParser, size: str) -> None:
    """Apart from its own initial weights (and the parallel residual of 20B), GPT-NeoX's models are Megatron's."""
    files = [NEOX_HEAD / f"{size}.yml", *([NEOX_HEAD / "local_setup.yml"] if size != "20B" else [])]
    config = resolve(files, ["init_method=normal", "output_layer_init_method=scaled_normal"], gpus=8)
    assert [problem.what for problem in unsupported(config)] == (
        ["Megatron-LM does not support gpt_j_residual (true)"] if size == "20B" else []
    )
    config = resolve(
        files, ["init_method=normal", "output_layer_init_method=scaled_normal", "gpt_j_residual=false"], gpus=8
    )
    parser.parse_args(megatron_flags(config))
