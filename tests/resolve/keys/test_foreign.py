"""Other programs' names are answered with ours."""

import pytest

from neoxargs.registry import REGISTRY
from neoxargs.resolve import Text, draft
from neoxargs.resolve.keys.foreign import CHOICES, ELSEWHERE, ours


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


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("optimizer: {params: {learning_rate: 1}}", "did you mean lr?"),
        ("optimizer: {learning_rate: 1}", "did you mean optimizer.params.lr? it is written inside `optimizer.params:`"),
        ("optimizer: {params: {adam_beta1: 0.9}}", "did you mean betas?"),
        ("optimizer: {params: {epsilon: 1}}", "did you mean eps?"),
        ("optimizer: {params: {Beta1: 1}}", "did you mean betas?"),
        ("optimizer: {params: {wd: 1}}", "did you mean weight_decay?"),
        ("optimizer: {params: {lr: 1}}\ndialect: neox-2023", "write a day of that year, such as 2023-01-01"),
        (
            "lr_decay_style: WSD",
            "it is not built: constant has the plateau without the decay, linear and cosine the "
            "decay without the plateau",
        ),
        ("fp16s: {enabled: true}", "did you mean fp16?"),
    ],
)
def test_a_word_inside_a_section_means_what_stands_there(text: str, hint: str) -> None:
    (problem,) = draft([Text("my.yml", text)]).problems
    assert problem.hint == hint


def test_no_single_value_is_suggested_for_a_section() -> None:
    (problem,) = draft([Text("my.yml", "hidden_sizes: {a: 1}")]).problems
    assert "hidden_size" not in problem.hint
