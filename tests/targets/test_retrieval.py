"""Parameters of BERT, ICT and REALM: taken, passed on to Megatron-LM and to every rank, and told to have no effect."""

from __future__ import annotations

import json

import pytest

from neoxargs.checks.trainer import trainer_problems
from neoxargs.config.config import Config
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import File, complete, draft
from neoxargs.targets.megatron import megatron_flags
from neoxargs.targets.ranks import train_values
from tests.support import smallest

#: Parameter -> another value than the default.
CHANGED = {
    "mask-prob": 0.2,
    "short-seq-prob": 0.3,
    "ict-head-size": 128,
    "ict-load": "ict",
    "bert-load": "bert",
    "titles-data-path": "titles",
    "query-in-block-prob": 0.4,
    "use-one-sent-docs": True,
    "report-topk-accuracies": [1, 5],
    "faiss-use-gpu": True,
    "block-data-path": "blocks",
    "indexer-batch-size": 64,
    "indexer-log-interval": 10,
}
#: Megatron-LM has dropped its flag.
NO_FLAG = ("faiss-use-gpu",)


def config(text: str = "") -> Config:
    return complete(draft([File("my.yml", smallest.YAML + "data_path: x\n" + text)]), 1)


@pytest.mark.shows(*CHANGED)
@pytest.mark.parametrize("name", CHANGED)
def test_the_value_is_passed_on_and_reported_with_its_line(name: str) -> None:
    before, after = config(), config(f"{name}: {json.dumps(CHANGED[name])}")
    parameter = REGISTRY.find(name)
    assert parameter and parameter.effect == "none"

    assert train_values(after)[normal(name)] == CHANGED[name] != before.get(name)
    if name not in NO_FLAG:
        flag = f"--{parameter.megatron}"
        words = megatron_flags(after)
        assert flag not in megatron_flags(before)
        value = CHANGED[name] if isinstance(CHANGED[name], list) else [CHANGED[name]]
        expected = [] if value == [True] else [str(item) for item in value]
        assert words[words.index(flag) + 1 :][: len(expected)] == expected

    (warning,) = [problem for problem in trainer_problems(after) if problem not in trainer_problems(before)]
    assert warning.severity == "warning"
    assert warning.what.startswith(f"{normal(name)} (")
    assert warning.what.endswith("has no effect: only BERT, ICT and REALM read it")
    assert warning.where and (warning.where.file, warning.where.line) == ("my.yml", 9)


@pytest.mark.shows("DDP-impl", "local_rank", "sparse_gradients")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("DDP-impl: torch", "DeepSpeed averages the gradients"),
        ("local_rank: 1", "the launcher sets it for every process"),
        ("sparse_gradients: true", "DeepSpeed uses it only for torch.nn.Embedding(sparse=True), which"),
    ],
)
def test_parameters_without_effect_on_a_gpt(text: str, reason: str) -> None:
    before, after = config(), config(text)
    assert trainer_problems(before) == []
    (warning,) = trainer_problems(after)
    assert f"has no effect: {reason}" in warning.what
    name = normal(text.partition(":")[0])
    assert name in train_values(after) and name not in train_values(before)
