"""Other programs' names are answered with ours."""

import pytest

from neoxargs.registry import REGISTRY
from neoxargs.resolve import Text, draft
from neoxargs.resolve.foreign import CHOICES, ELSEWHERE, ours


def test_every_name_leads_to_a_parameter_and_is_none():
    assert not [name for name in ELSEWHERE if REGISTRY.find(name) or name in REGISTRY.sections]
    assert not [name for name in ELSEWHERE.values() if name not in REGISTRY.parameters]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("num_hidden_layers", "num_layers"),
        ("global-batch-size", "train_batch_size"),
        ("num_query_groups", "num_kv_heads"),
        ("pipeline_model_parallel_size", "pipe_parallel_size"),
    ],
)
def test_told_with_its_meaning(written, meant):
    (problem,) = draft([Text("my.yml", f"{written}: 2\n")]).problems
    assert problem.hint == f"here it is {meant}: {REGISTRY.parameters[meant].brief}"


def test_a_flag_that_says_the_opposite_is_not_suggested():
    inverted = [p.megatron[1:] for p in REGISTRY.parameters.values() if (p.megatron or "").startswith("!")]
    assert inverted
    assert {ours(flag.replace("-", "_")) for flag in inverted} == {None}


def test_choices():
    (problem,) = draft([Text("my.yml", "pos_emb: rope\n")]).problems
    assert problem.hint == "write rotary"
    assert CHOICES["rms_norm"] == "rmsnorm"
