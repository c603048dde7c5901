"""Kinds of layers, and sizes that follow from others."""

from __future__ import annotations

import re

import pytest

from neoxargs.facts.model import mlp_width
from tests.support.configure import configure
from tests.support.refused import refused


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("", "global global global global"),
        ('attention_config: [[["global"], "all"]]', "global global global global"),
        ('attention_config: [[["local", "global"], "all"]]', "local global local global"),
        ('attention_config: [[["local", "global"], 2]]', "local global local global"),
        ('attention_config: [[["flash"], 3], [["global"], 1]]', "flash flash flash global"),
        ("attention_config: [global, flash, local, global]", "global flash local global"),
        ("sparsity: none", "global global global global"),
        ("sparsity: all", "sparse_variable sparse_variable sparse_variable sparse_variable"),
        ("sparsity: interspersed", "global sparse_variable global sparse_variable"),
        ("{sparsity: interspersed, pipe_parallel_size: 2}", "global sparse_variable global sparse_variable"),
        ("{sparsity: interspersed, num_layers: 3}", "global sparse_variable global"),
    ],
)
def test_every_layer_has_its_kind(text: str, layers: str) -> None:
    assert configure(text).attention.attention_config == layers.split()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 256),
        ("intermediate_size: 100", 100),
        ("expansion_factor: 1.5", 96),
        ("activation: geglu", 256),
    ],
)
def test_the_width_of_the_mlp(text: str, size: int) -> None:
    assert configure(text).shape.intermediate_size == size


def test_every_head_has_its_own_keys_by_default() -> None:
    assert configure().shape.num_kv_heads == 4
    assert configure("num_kv_heads: 2").shape.num_kv_heads == 2


def test_scaled_scores_need_a_softmax_in_fp32() -> None:
    assert not configure().attention.attention_softmax_in_fp32
    assert configure("apply_query_key_layer_scaling: true").attention.attention_softmax_in_fp32


@pytest.mark.parametrize(
    "text",
    [
        "{pos_emb: rotary, seq_length: 64}",
        '{attention_config: [[["mamba"], "all"]], num_attention_heads: 3}',
        "{num_unique_layers: 2, param_sharing_style: spaced}",
        '{num_kv_heads: 1, attention_config: [[["flash"], "all"]]}',
        "{moe_num_experts: 8, moe_expert_parallel_size: 8, context_parallel_size: 2}",
        "{moe_num_experts: 8, moe_expert_parallel_size: 4, context_parallel_size: 4, model_parallel_size: 2, "
        "num_attention_heads: 8}",
        "{context_parallel_style: ring, context_parallel_size: 2, soft_prompt_tuning: {enabled: true}, "
        "attention_dropout: 0}",
    ],
)
def test_valid_combinations_in_a_model(text: str) -> None:
    configure(text)


@pytest.mark.parametrize(
    ("scaling", "longest", "warned"),
    [
        ("", 64, False),
        ("", 63, True),
        ("rope_type: linear, factor: 2", 32, False),
        ("rope_type: ntk, factor: 1.9", 32, True),
        ("rope_type: dynamic, factor: 2", 16, False),
        ("rope_type: yarn, factor: 4, original_max_position_embeddings: 16", 16, False),
        ("rope_type: yarn, factor: 4, original_max_position_embeddings: 15", 64, True),
        ("rope_type: yarn, factor: 4", 16, False),
        # Llama 3.1: 131,072 tokens with a factor of 8 and 8,192 before
        ("rope_type: llama3, factor: 8, original_max_position_embeddings: 4", 64, False),
        ("rope_type: llama3, factor: 8, original_max_position_embeddings: 4", 60, True),
        ("rope_type: llama3, factor: 16, original_max_position_embeddings: 4", 32, False),
    ],
)
def test_a_sequence_beyond_the_scaled_positions_is_warned(scaling: str, longest: int, warned: bool) -> None:
    section = f", rope_scaling: {{{scaling}}}" if scaling else ""
    text = f"{{pos_emb: rotary, seq_length: 64, max_position_embeddings: {longest}{section}}}"
    found = [problem for problem in configure(text).warnings if problem.id == "rotary-positions-reach-seq-length"]
    assert len(found) == warned
    assert not any("reach" in problem.id for problem in configure("{pos_emb: alibi, seq_length: 64}").warnings)


@pytest.mark.parametrize(
    ("sizes", "width"),
    [
        # Llama 2 13B and 70B, Qwen2 0.5B: the sizes of Hugging Face, which are multiples of 3 or not
        ({"hidden_size": 5120, "intermediate_size": 13824}, 4608),
        ({"hidden_size": 8192, "intermediate_size": 28672}, 9557),
        ({"hidden_size": 896, "intermediate_size": 4864}, 1621),
        ({"hidden_size": 5120, "intermediate_size": 13825, "mlp_multiple_of": 128}, 4608),
        ({"hidden_size": 5120, "intermediate_size": 41472}, 0),
        ({"hidden_size": 5120, "intermediate_size": 13824, "exact_mlp_width": "true"}, 0),
        ({"hidden_size": 5120}, 0),
        ({"hidden_size": 5120, "intermediate_size": 13824, "activation": "gelu"}, 0),
        # OLMoE: experts are often narrow
        ({"hidden_size": 2048, "intermediate_size": 3072, "moe_num_experts": 4}, 0),
    ],
)
def test_a_gated_width_in_the_convention_of_hugging_face(sizes: dict[str, object], width: int) -> None:
    values = {"activation": "swiglu", "num_attention_heads": 4, **sizes}
    config = configure(f"{{{', '.join(f'{name}: {value}' for name, value in values.items())}}}")
    found = [problem for problem in config.warnings if problem.id == "gated-width-is-a-third"]
    assert [problem.what.rpartition("each is ")[2] for problem in found] == ([f"{width} wide"] if width else [])
    if found:  # what the hint says gives the same widths, and no warning
        meant = {**values, "intermediate_size": width, "exact_mlp_width": "true"}
        again = configure(f"{{{', '.join(f'{name}: {value}' for name, value in meant.items())}}}")
        assert f"set intermediate_size: {width} and exact_mlp_width: true" in found[0].hint
        assert mlp_width(again.shape, again.mlp) == mlp_width(config.shape, config.mlp) == width
        assert "gated-width-is-a-third" not in [problem.id for problem in again.warnings]


def test_the_width_of_a_retired_llama_layer_is_one_problem_and_each_hint_resolves_it() -> None:
    (problem,) = refused(configure, "{mlp_type: llama, activation: silu, hidden_size: 64, intermediate_size: 96}")
    assert problem.id == "mlp-width-given-once"
    for instead in (
        "mlp_type: llama, activation: silu, exact_mlp_width: true, intermediate_size: 96",
        "activation: swiglu, use_bias_in_mlp: false, intermediate_size: 288",
    ):
        config = configure(f"{{hidden_size: 64, {instead}}}")
        assert mlp_width(config.shape, config.mlp) == 96
        assert not config.mlp.use_bias_in_mlp


@pytest.mark.parametrize(
    "text",
    [
        "activation: swiglu",
        "intermediate_size: 213",
        "{activation: geglu, intermediate_size: 213, mlp_multiple_of: 25}",
        "{activation: swiglu, intermediate_size: 213, exact_mlp_width: true}",
        "{activation: swiglu, moe_num_experts: 2, moe_num_shared_experts: 1}",
        "{activation: swiglu, moe_num_experts: 2, enable_expert_tensor_parallelism: true}",
    ],
)
def test_tensor_parallel_ranks_share_the_width_equally(text: str) -> None:
    configure(text)
    found = refused(configure, text, "model_parallel_size: 2", gpus=2)
    [problem] = [each for each in found if each.severity == "error"]
    assert problem.id.startswith("tensor-parallel-divides-")
    name, value = re.findall(r"set (\w+) to (\d+)", problem.hint)[0]
    words = {key: word for key, word in re.findall(r"(\w+): (\w+)", text)} | {name: value}
    as_hinted = ", ".join(f"{key}: {word}" for key, word in words.items())
    config = configure(f"{{{as_hinted}}}", "model_parallel_size: 2", gpus=2)
    assert mlp_width(config.shape, config.mlp) % 2 == 0


def test_whole_experts_may_have_any_width() -> None:
    configure("{activation: swiglu, moe_num_experts: 2}", "model_parallel_size: 2", gpus=2)
