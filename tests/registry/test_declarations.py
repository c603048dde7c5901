"""Every parameter has a description, a type, a unique name and a valid default."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import pytest

from neoxargs import registry
from neoxargs.base.problems import Problems
from neoxargs.registry import ABSENT, REGISTRY, SUBJECTS, Group, Parameter, descriptions
from neoxargs.registry.declare import Effect
from neoxargs.resolve.values.coerce import coerce
from tests.support.configure import configure
from tests.support.each import for_each
from tests.support.reference import read

PARAMETERS = list(REGISTRY.parameters.values())


def named(parameter: Parameter) -> str:
    return parameter.name


@for_each(PARAMETERS, named)
def test_description_is_a_sentence(parameter: Parameter) -> None:
    text = parameter.description
    assert len(text) >= 15
    assert text.endswith(".")
    assert text.count("`") % 2 == 0


#: Words that descriptions may quote besides names of parameters and their choices: kinds of layers and of messages.
OTHER_WORDS = {"sparse_variable", "sparse_fixed", "all_reduce"}


@cache
def quotable() -> set[str]:
    """Every key of every section, and every choice."""
    choices = {word for p in PARAMETERS for word in re.findall(r"'([^']+)'", str(p.type))}
    names = [*REGISTRY.parameters, *REGISTRY.renamed, *REGISTRY.sections]
    return choices | OTHER_WORDS | {name.rpartition(".")[2] for name in names}


@for_each(PARAMETERS, named)
def test_names_in_descriptions_exist(parameter: Parameter) -> None:
    """A word in backquotes that looks like a parameter name must be one."""
    quoted = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", parameter.description))
    assert quoted - quotable() == set()


@for_each(PARAMETERS, named)
def test_default_conforms_to_type(parameter: Parameter) -> None:
    assert parameter.type is not None
    if parameter.default is not ABSENT:
        assert coerce(parameter.default, parameter.type) == parameter.default


@for_each(PARAMETERS, named)
def test_replacements_are_current_parameters_with_legal_values(parameter: Parameter) -> None:
    """Every legal value of a retired parameter is replaced by current parameters with legal values."""
    for value, written in (parameter.replaced_by or {}).items():
        assert coerce(value, parameter.type) == value
        for name, successor in written.items():
            assert not REGISTRY.parameters[name].replaced_by
            assert coerce(successor, REGISTRY.parameters[name].type) == successor
    if parameter.replaced_by:
        assert parameter.description.startswith("Retired")
        assert parameter.default is None or parameter.default in parameter.replaced_by


@for_each(PARAMETERS, named)
def test_effect_is_declared(parameter: Parameter) -> None:
    """A parameter without effect has a reason: a clause that follows "has no effect:"."""
    assert parameter.effect in get_args(Effect)
    assert bool(parameter.no_effect_reason) is (parameter.effect == "none")
    assert not parameter.no_effect_reason.endswith(".")


@for_each(PARAMETERS, named)
def test_a_refused_parameter_has_a_reason(parameter: Parameter) -> None:
    """A parameter with the effect `not built` says why: a clause that follows "is not supported by train.py:"."""
    if parameter.effect == "not built":
        assert parameter.refused
    clauses = [parameter.refused] if isinstance(parameter.refused, str) else [*parameter.refused.values()]
    for clause in (*clauses, parameter.instead):
        assert not clause.endswith(".") and "yet" not in clause.split()
    if parameter.instead:
        assert parameter.refused


def test_a_group_without_an_effect_is_refused() -> None:
    with pytest.raises(TypeError, match="effect"):
        type("Nameless", (Group,), {"__annotations__": {}}, origin="Meg")


def test_no_name_has_two_meanings() -> None:
    spellings = Counter([*REGISTRY.parameters, *REGISTRY.renamed])
    assert [name for name, count in spellings.items() if count > 1] == []
    assert set(REGISTRY.parameters) & set(REGISTRY.sections) == set()


@for_each(REGISTRY.groups)
def test_groups_are_documented(group: type[Group]) -> None:
    assert (inspect.getdoc(group) or "").endswith(".")
    assert set(descriptions(group)) == set(group.parameters)


@pytest.mark.parametrize("module", SUBJECTS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_modules_are_documented(module: Any) -> None:
    assert (module.__doc__ or "").strip().endswith(".")


def test_every_subject_is_listed() -> None:
    """A module that is not listed is not part of the registry."""
    others = {"__init__", "data_file", "declare", "docstrings", "history", "plugins", "types"}
    others |= {"other_keys", "receivers"}
    files = {path.stem for path in Path(registry.__file__).parent.glob("*.py")}
    assert files - others == {module.__name__.rpartition(".")[2] for module in SUBJECTS}


def test_groups_follow_the_order_of_the_subjects() -> None:
    """The order must not depend on imports; otherwise renaming a module would reorder generated files."""
    order = [module.__name__ for module in SUBJECTS]
    places = [order.index(group.__module__) for group in REGISTRY.groups]
    assert places == sorted(places)


def test_descriptions_are_our_own() -> None:
    """No sentence is shared with the table the names come from."""
    theirs = {digest for row in read("seed_parameters.tsv") for digest in row["sentences_sha256"].split()}
    ours = {sentence: p.name for p in PARAMETERS for sentence in sentences(p.description)}
    assert {name: sentence for sentence, name in ours.items() if digest(sentence) in theirs} == {}


def test_a_copied_sentence_would_be_found() -> None:
    theirs = {row["name"]: row["sentences_sha256"].split() for row in read("seed_parameters.tsv")}
    assert theirs["num-layers"] == [digest(sentence) for sentence in sentences("Number of transformer layers.")]


def digest(sentence: str) -> str:
    """Return the hash by which the table stores a sentence, so that it contains no text of GPT-NeoX."""
    return sha256(sentence.encode()).hexdigest()[:16]


def sentences(text: str) -> list[str]:
    """Split into sentences, in lower case without punctuation, so that a changed comma does not hide a copy."""
    found = re.split(r"(?<=[.!?])\s+", text)
    return [words for words in (" ".join(re.findall(r"\w+", s.lower())) for s in found) if len(words.split()) > 2]


@for_each([p for p in PARAMETERS if p.megatron], named)
def test_megatron_flags_exist(parameter: Parameter) -> None:
    assert parameter.megatron
    option = read("megatron_lm_options.json")[f"--{parameter.megatron.removeprefix('!')}"]
    if parameter.megatron.startswith("!"):
        assert option["action"] == "_StoreFalseAction"
        assert parameter.annotation == "bool"
    else:
        assert (option["action"] == "_StoreTrueAction") is (parameter.annotation == "bool")


@for_each([p for p in PARAMETERS if p.megatron and "train" in p.to], named)
def test_megatron_defaults_are_pinned(parameter: Parameter) -> None:
    """A receiver's default that differs from ours is Megatron's, as its parser has it."""
    assert parameter.megatron
    if parameter.receiver_default is not parameter.default and "DSC" not in parameter.origins:
        option = read("megatron_lm_options.json")[f"--{parameter.megatron.removeprefix('!')}"]
        assert repr(parameter.receiver_default) == option["default"]


def test_the_first_clause_of_a_description_is_whole() -> None:
    briefs = {name: parameter.brief for name, parameter in REGISTRY.parameters.items()}
    broken = {name: text for name, text in briefs.items() if text.count("`") % 2 or text.count("(") != text.count(")")}
    assert broken == {}


@pytest.mark.parametrize("name", ["dpo_beta", "kto_beta"])
def test_a_loss_without_a_gradient_is_refused(name: str) -> None:
    with pytest.raises(Problems, match=f"{name} .*greater than 0"):
        configure(f"{name}: 0")
