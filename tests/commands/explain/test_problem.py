"""Every kind of problem can be explained, and its example has exactly that problem."""

from __future__ import annotations

import ast
import json
import re

import pytest

from neoxargs.base.request import Request
from neoxargs.commands.explain.catalogue import catalogue
from neoxargs.commands.explain.command import explain
from neoxargs.commands.explain.example import check_example
from neoxargs.registry import REGISTRY
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from tests.support.paths import ROOT

SHOWN = [name for name, entry in catalogue().items() if entry.example]
#: What an example may have beside: an unfinished or idle feature, a missing file, or one file for every split, is not
#: the point.
BESIDE = {"not-built", "no-effect", "frozen-model-has-weights", "data-file-missing", "checkpoint-missing",
          "validation-data-is-not-training-data"}  # fmt: skip
#: What only the machine lacks that runs the test: headers of libaio, pdsh.
OF_THE_MACHINE = {"op-cannot-compile", "launcher-program-missing"}
#: What a DeepSpeed schedule with its default warm-up has in a short run.
DEFAULT_WARM_UP = {"warm-up-ends-before-the-run"}
#: What follows from the one as well.
IMPLIED = {
    "tensor-parallel-divides-hidden-size": {"heads-divide-hidden-size"},
    "epochs-read-each-sample-equally-often": {"epoch-not-countable"},
    "mup-needs-normal-init": {"base-shapes-unreadable"},
    "valid-labels-match-paths": {"no-training-data"},
    "test-labels-match-paths": {"no-training-data"},
    "scheduler-params-belong-to-type": DEFAULT_WARM_UP,
    "scheduler-excludes-lr-decay-style": DEFAULT_WARM_UP,
    "scheduler-params-agree-with-lr": DEFAULT_WARM_UP,
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_has_exactly_its_problem(name: str) -> None:
    example = catalogue()[name].example
    assert example
    found = {problem.id for problem in check_example(example)}
    assert name in found
    assert found <= {name} | BESIDE | OF_THE_MACHINE | IMPLIED.get(name, set())


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: rule.id)
def test_every_check_has_an_explanation_and_an_example(rule) -> None:
    assert len(rule.protects_from.split()) > 8
    assert rule.example


def test_a_derivation_that_has_an_explanation_has_an_example() -> None:
    for rule in DERIVATIONS:
        assert bool(rule.protects_from) == bool(rule.example), rule.id


def test_every_id_is_one_word_of_its_own() -> None:
    for name in catalogue():
        assert name == name.lower().replace("_", "-")
        assert REGISTRY.find(name.replace("-", "_")) is None
        assert name.replace("-", "_") not in REGISTRY.sections
    rules = [rule.id for rule in (*CHECKS, *DERIVATIONS) if rule.example]
    assert len(set(rules)) == len(rules)


TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "neoxargs").rglob("*.py")}


def words(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_id_of_a_problem_is_in_the_catalogue() -> None:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "id":
                assert words(node.value) - {""} <= set(catalogue()), f"{path}:{node.value.lineno}"
        # migrate passes some of its ids as positional arguments
        assert {word for word in words(tree) if re.fullmatch(r"migrate(-[a-z]+)+", word)} <= set(catalogue()), path


def test_every_entry_of_the_catalogue_is_the_id_of_a_problem() -> None:
    rules = {rule.id for rule in (*CHECKS, *DERIVATIONS)}
    assert set(catalogue()) - rules - set().union(*map(words, TREES.values())) == set()


def test_an_explanation_shows_the_example_and_what_check_says_of_it() -> None:
    text = explain("[rotary-dims-even]", Request([]))
    assert text.startswith("rotary-dims-even\n  Rotary position embeddings rotate")
    assert "    pos_emb: rotary\n    rotary_pct: 0.7\n" in text
    assert "    my.yml:2:1: error: rotary_pct (0.7) rotates 11 of each head's 16 dimensions" in text
    assert text.endswith("      = set rotary_pct to 0.625")
    answer = json.loads(explain("rotary_dims_even", Request([], as_json=True)))
    assert answer["name"] == answer["problem"]["id"] == "rotary-dims-even"
    assert "rotary_pct" in answer["about"]


def test_what_check_cannot_show_is_explained_in_words() -> None:
    assert "For example" not in explain("file-missing", Request([]))
    assert json.loads(explain("file-missing", Request([], as_json=True)))["example"] is None
