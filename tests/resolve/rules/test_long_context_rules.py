"""Hints about lengths and context parallel sizes fit, and contradictory scalings of positions are warned of."""

from __future__ import annotations

import re

import pytest

from neoxargs.base.problems import Problems
from tests.support.configure import configure

LENGTHS = "seq_length: 64, max_position_embeddings: 32"


def hints(text: str) -> dict[str, str]:
    """Return the hint of each problem of the configuration, by its id."""
    try:
        found = configure(text, "attention_dropout: 0", gpus=240).warnings
    except Problems as stop:
        found = stop.problems
    return {problem.id: problem.hint for problem in found}


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("context-parallel-divides-seq-length", "context_parallel_size: 5, seq_length: 64, num_attention_heads: 16"),
        ("context-parallel-divides-seq-length", "context_parallel_size: 6, seq_length: 6, num_attention_heads: 16"),
        ("context-parallel-divides-seq-length", "context_parallel_size: 3, seq_length: 64, num_attention_heads: 4, "
         "context_parallel_style: all_to_all"),
        ("context-parallel-divides-seq-length", "context_parallel_size: 5, seq_length: 96, num_attention_heads: 4, "
         "context_parallel_style: ring, sequence_parallel: true, model_parallel_size: 4"),
        ("learned-positions-cover-seq-length", LENGTHS),
        ("rotary-positions-reach-seq-length", f"{LENGTHS}, pos_emb: rotary"),
        ("rotary-positions-reach-seq-length", f"{LENGTHS}, pos_emb: rotary, rope_scaling: {{rope_type: longrope, "
         "short_factor: [1, 1], long_factor: [1, 1]}"),
        ("rotary-positions-reach-seq-length", f"{LENGTHS}, pos_emb: rotary, rope_scaling: {{rope_type: yarn, "
         "factor: 1.5}"),
    ],
)  # fmt: skip
def test_each_value_that_a_hint_offers_fits(rule: str, text: str) -> None:
    hint = hints(f"{{{text}}}")[rule]
    offers = re.findall(r"(\w+)(?: to)?(?: at least)? ((?:\d+(?: or )?)+)", hint)
    offers = [(name, value) for name, values in offers for value in values.split(" or ")]
    assert "seq_length" in {name for name, _ in offers} and len({name for name, _ in offers}) > 1
    for name, value in offers:
        name = "factor" if name == "least" else name
        changed = re.sub(rf"\b{name}: [\d.]+", f"{name}: {value}", text)
        assert changed != text
        remaining = hints(f"{{{changed}}}")
        assert rule not in remaining
        assert name != "context_parallel_size" or "context-ranks-can-compute-attention" not in remaining


def test_the_scaling_that_a_hint_offers_fits_also_if_the_context_is_derived() -> None:
    rule, text = "rotary-positions-reach-seq-length", f"{LENGTHS}, pos_emb: rotary"
    found = re.search(r"{.*?}", hints(f"{{{text}}}")[rule])
    assert found and rule not in hints(f"{{{text}, rope_scaling: {found[0]}}}")
    assert "original_max_position_embeddings: 32" in found[0]


SCALED = "pos_emb: rotary, max_position_embeddings: 64, rope_scaling: {{rope_type: {}}}"


@pytest.mark.parametrize(
    ("rule", "scaling", "warned"),
    [
        ("rope-scaling-factor-at-least-one", "dynamic, factor: 0.5", True),
        ("rope-scaling-factor-at-least-one", "dynamic, factor: 1", False),
        ("rope-scaling-factor-at-least-one", "yarn, factor: 0.99", True),
        ("rope-scaling-lengthens-the-context", "yarn, factor: 2, original_max_position_embeddings: 65", True),
        ("rope-scaling-lengthens-the-context", "dynamic, factor: 2, original_max_position_embeddings: 65", True),
        ("rope-scaling-lengthens-the-context", "dynamic, factor: 2, original_max_position_embeddings: 64", False),
        ("rope-scaling-lengthens-the-context", "linear, factor: 2, original_max_position_embeddings: 65", False),
    ],
)
def test_a_scaling_that_shortens_the_context_is_warned_of(rule: str, scaling: str, warned: bool) -> None:
    assert (rule in hints(f"{{{SCALED.format(scaling)}}}")) == warned


def test_samples_may_be_shorter_than_the_original_context() -> None:
    text = "{pos_emb: rotary, rope_scaling: {rope_type: yarn, factor: 2, original_max_position_embeddings: 65}}"
    found = configure(text, without="max_position_embeddings").warnings
    assert "rope-scaling-lengthens-the-context" not in [problem.id for problem in found]
