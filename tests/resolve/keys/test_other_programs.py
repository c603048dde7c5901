"""The hints for names and values of other programs and of forks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neoxargs.registry import REGISTRY
from neoxargs.registry.history import removed
from neoxargs.resolve import File, draft
from neoxargs.resolve.keys import other_programs
from neoxargs.resolve.keys.other_programs import counterpart, find, our_choice
from tests.support.snapshots import pinned

FILE = Path(other_programs.__file__).with_name("other_programs.json")


def no_double(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert not [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    return dict(pairs)


TABLE = json.loads(FILE.read_text(), object_pairs_hook=no_double)


def rows() -> Iterator[tuple[str, str | None, str]]:
    """Yield key, counterpart and advice of every program."""
    for program in TABLE["programs"]:
        yield from ((key, name, "") for key, name in program.get("counterparts", {}).items())
        yield from ((key, None, advice) for key, advice in program.get("advice", {}).items())
        yield from ((key, None, "") for key in program.get("no_counterpart", []))


KEYS = [key for key, _, _ in rows()]


def hint(text: str) -> str:
    (problem,) = draft([File("my.yml", text)]).problems
    return problem.hint


# -- the table -------------------------------------------------------------------------------------------------------


def test_no_name_of_the_table_is_one_of_ours() -> None:
    names = {name.rpartition(".")[2] for name in [*REGISTRY.parameters, *REGISTRY.sections, *REGISTRY.renamed]}
    assert len(set(KEYS)) > 450
    assert not set(KEYS) & names
    assert not [key for key in TABLE["several_programs"] if REGISTRY.find(key) or key in REGISTRY.sections]
    assert all(key.isidentifier() for key in [*KEYS, *TABLE["several_programs"]])


def test_a_key_means_one_thing_whichever_program_has_it() -> None:
    meanings: dict[str, set[tuple[str | None, str]]] = {}
    for key, name, advice in rows():
        meanings.setdefault(key.lower(), set()).add((name, advice))
    assert not {key: found for key, found in meanings.items() if len(found) > 1}
    flags = {key for key in [*KEYS, *TABLE["several_programs"]] if key in other_programs._flags()}
    assert not flags, "the registry says what these flags of Megatron-LM mean"
    assert not set(KEYS) & set(TABLE["several_programs"])


def test_a_program_names_a_key_once() -> None:
    for program in TABLE["programs"]:
        keys = [*program.get("counterparts", {}), *program.get("advice", {}), *program.get("no_counterpart", [])]
        assert len(set(keys)) == len(keys), program["name"]
        assert program["source"]


def test_every_counterpart_is_a_parameter() -> None:
    counterparts = {**TABLE["several_programs"], **{key: name for key, name, _ in rows() if name}}
    assert not {key: name for key, name in counterparts.items() if name not in REGISTRY.parameters}
    assert not [key for key in counterparts if removed(key)]
    assert not [key for key, name in counterparts.items() if REGISTRY.parameters[name].effect == "none"]
    assert not set(TABLE["values"]) - set(REGISTRY.parameters)


# -- hints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("num_hidden_layers", "num_layers"),
        ("global-batch-size", "train_batch_size"),
        ("num_query_groups", "num_kv_heads"),
        ("num_attention_heads_kv", "num_kv_heads"),
        ("pipeline_model_parallel_size", "pipe_parallel_size"),
        ("Learning_Rate", "lr"),
    ],
)
def test_the_hint_for_a_name_of_several_programs(written: str, meant: str) -> None:
    assert hint(f"{written}: 2\n") == f"use {meant} instead ({REGISTRY.parameters[meant].brief})"


@pytest.mark.parametrize("written", [
    "hyena_mlp_len", "short-conv-L", "qkv-slot-num", "operator_config", "load_best_model_at_end",
    "ga_dataset_impl", "use_cpu", "adapter", "lora_target_modules", "tie-word-embeddings", "model",
])  # fmt: skip
def test_the_hint_for_a_name_of_one_program(written: str) -> None:
    (problem,) = draft([File("my.yml", f"{written}: 2\n")]).problems
    assert problem.id == "unknown-key"
    pinned(problem)


def test_the_problem_is_about_the_counterpart() -> None:
    found = draft([File("my.yml", "n_ctx: 8\n")])
    assert found.problems[0].about == ("max_position_embeddings",)
    assert found.broken == {"max_position_embeddings"}


def test_a_word_that_no_program_has() -> None:
    assert find("no_such_word") is None


def test_a_flag_with_the_opposite_meaning_is_not_suggested() -> None:
    inverted = [p.megatron[1:] for p in REGISTRY.parameters.values() if (p.megatron or "").startswith("!")]
    assert inverted
    assert {counterpart(flag) for flag in inverted} == {None}


def test_choices_and_values() -> None:
    assert hint("pos_emb: rope\n") == "write rotary"
    assert our_choice("RMS_norm") == "rmsnorm"
    assert hint("tokenizer_type: hf\n") == "write HFTokenizer"
    assert hint("warmup: 100\n").endswith("write the result of 100 / lr_decay_iters")
    assert hint("precision: 16\n") == "write fp16 or bf16"
    assert hint("tokenizer_type: bytelevel\n") == "write ByteLevelTokenizer"
    pinned(hint("optimizer: {params: {betas: 0.9}}\n"))
    assert "which is the opposite" in hint("weight_tying: true\n")
    assert "deepy migrate ds.json" in hint("deepspeed: ds.json\n") and not hint("deepspeed: maybe\n")


def test_a_misspelt_name_of_another_program() -> None:
    pinned(hint("lerning_rate: 1\n"))


@pytest.mark.parametrize("text", [
    "optimizer: {params: {learning_rate: 1}}", "optimizer: {learning_rate: 1}",
    "optimizer: {params: {adam_beta1: 0.9}}", "optimizer: {params: {epsilon: 1}}",
    "optimizer: {params: {Beta1: 1}}", "optimizer: {params: {wd: 1}}", "optimizer: {optim: AdamW}",
    "rope_scaling: {type: linear}",
])  # fmt: skip
def test_a_word_inside_a_section_matches_parameters_of_that_section(text: str) -> None:
    pinned(hint(text))


def test_the_table_is_read_only_for_a_mistake() -> None:
    other_programs._table.cache_clear()
    assert not draft([File("my.yml", "num_layers: 2\nfp16: {enabled: true}\n")]).problems
    assert not other_programs._table.cache_info().currsize


def test_pefts_names_in_the_section_of_adapters() -> None:
    text = "lora: {r: 8, lora_alpha: 16, lora_dropout: 0.1, target_modules: [q_proj], use_rslora: true}\n"
    hints = [problem.hint for problem in draft([File("my.yml", text)]).problems]
    assert hints == [f"did you mean {name}?" for name in ("rank", "alpha", "dropout", "targets", "rank_stabilized")]
