"""Rules in order, rewrites, defaults of the dialect, cross-checks, and everything that is wrong at once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.registry import REGISTRY
from neoxargs.registry.training import Training
from neoxargs.resolve import File
from neoxargs.resolve.derive import EXAMPLES, before_ranks, complete, ordered
from neoxargs.resolve.merge import draft
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from neoxargs.resolve.rules.rule import Contradiction, Finding, Rule, refuse, warn
from neoxargs.resolve.values.coerce import coerce
from tests.support.paths import ROOT
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

SIZES = "num_layers: 2\nhidden_size: 8\nnum_attention_heads: 2\nseq_length: 16\nmax_position_embeddings: 16\n"


def rule(function: Callable[..., Any], *results: str) -> Rule:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    return Rule(function, tuple(results), tuple(name.replace("__", ".") for name in names))


def run(text: str = SIZES, rules: tuple[Rule, ...] = (), checks: tuple[Any, ...] = (), gpus: int | None = 8) -> Config:
    return complete(draft([File("my.yml", text)]), gpus, rules, [rule(check) for check in checks])


def wrong(*arguments: Any, **more: Any) -> list[Problem]:
    return refused(run, *arguments, **more)


# -- derivations -------------------------------------------------------------------------------------------------------


def test_rules_run_after_the_rules_they_read() -> None:
    def seed(train_iters: int) -> int:
        """ten more"""
        return train_iters + 10

    def train_iters(gpus: int) -> int:
        return gpus

    config = run(rules=(rule(seed, "seed"), rule(train_iters, "train_iters")))
    assert (config.training.train_iters, config.training.seed) == (8, 18)
    assert str(config.source("seed")) == "derived: ten more"
    assert config.source("seed").inputs == ("train_iters",)


def test_a_value_that_is_set_is_not_derived() -> None:
    config = run(SIZES + "seed: 3", (rule(lambda gpus: gpus, "seed"),))
    assert config.training.seed == 3
    assert config.is_set("seed")


def test_defaults_are_inputs() -> None:
    config = run(rules=(rule(lambda seed: seed + 1, "train_iters"),))
    assert config.training.train_iters == REGISTRY.parameters["seed"].default + 1


def test_a_rule_that_returns_none_keeps_the_default() -> None:
    config = run(rules=(rule(lambda gpus: None, "seed"),))
    assert config.source("seed").kind == "default"


def solve(train_iters: int | None, lr_decay_iters: int | None) -> dict[str, Any]:
    """the same"""
    if train_iters and lr_decay_iters and train_iters != lr_decay_iters:
        raise Contradiction(f"train_iters ({train_iters}) is not lr_decay_iters ({lr_decay_iters})", "leave one out")
    either = train_iters or lr_decay_iters or 7
    return {"train_iters": either, "lr_decay_iters": either}


SOLVE = rule(solve, "train_iters", "lr_decay_iters")


@pytest.mark.parametrize(
    ("text", "values", "written"),
    [
        ("", (7, 7), (False, False)),
        ("train_iters: 3", (3, 3), (True, False)),
        ("lr_decay_iters: 4", (4, 4), (False, True)),
        ("lr_decay_iters: 4\ntrain_iters: 4", (4, 4), (True, True)),
    ],
)
def test_a_rule_solves_for_what_is_missing(text: str, values: tuple[int, int], written: tuple[bool, bool]) -> None:
    config = run(SIZES + text, (SOLVE,))
    assert (config.get("train_iters"), config.get("lr_decay_iters")) == values
    assert (config.is_set("train_iters"), config.is_set("lr_decay_iters")) == written


def test_a_normalised_value_keeps_the_users_source() -> None:
    def save(save: str) -> str:
        """made absolute"""
        return "/" + save

    config = run(SIZES + "save: here", (rule(save, "save"),))
    assert config.get("save") == "/here"
    assert config.is_set("save")
    assert config.source("save").text == "made absolute"


def test_special_inputs() -> None:
    seen: dict[str, Any] = {}

    def seed(gpus: int, written: Any, sections: Any, auto: Any, default: Any) -> None:
        seen.update(gpus=gpus, written=written, sections=sections, auto=auto, attention=default("attention_dropout"))

    text = SIZES + "dialect: neox-2026\npos_emb: none\nfp16: {}\ntrain_batch_size: auto\n"
    run(text, (rule(seed, "seed"),))
    assert seen["gpus"] == 8
    assert {"pos_emb", "num_layers"} <= set(seen["written"])
    assert seen["sections"] == {"fp16"}
    assert seen["auto"] == {"train_batch_size"}
    assert seen["attention"] == 0.0  # neox-2026's


def test_dotted_inputs() -> None:
    config = run(SIZES + "fp16: {loss_scale: 4}", (rule(lambda fp16__loss_scale: int(fp16__loss_scale), "seed"),))
    assert config.training.seed == 4


def test_rules_that_depend_on_each_other_are_an_assertion() -> None:
    with pytest.raises(AssertionError, match="circular dependency"):
        ordered((rule(lambda seed: seed, "train_iters"), rule(lambda train_iters: 1, "seed")))


def test_two_rules_for_one_result_are_an_assertion() -> None:
    with pytest.raises(AssertionError, match="two rules derive seed"):
        ordered((rule(lambda gpus: 1, "seed"), rule(lambda gpus: 1, "seed")))


# -- dialects and retired names ----------------------------------------------------------------------------------------


def test_defaults_of_the_dialect() -> None:
    config = run("dialect: neox-2026\n" + SIZES)
    assert config.regularization.attention_dropout == 0.0
    assert str(config.source("attention_dropout")) == "default: neox-2026"
    assert run().regularization.attention_dropout == 0.1
    assert config.dialect
    assert config.dialect.name == "neox-2026"


def test_a_retired_name_is_rewritten() -> None:
    config = run(SIZES + "geglu: true")
    assert config.mlp.activation == "geglu"
    assert str(config.source("activation")) == "derived: `geglu: true` (my.yml:6:1)"


def test_a_rewritten_value_is_not_derived_again() -> None:
    assert run(SIZES + "geglu: true", (rule(lambda gpus: "relu", "activation"),)).mlp.activation == "geglu"


def test_a_retired_name_may_agree_with_its_replacement() -> None:
    assert run(SIZES + "geglu: true\nactivation: geglu").mlp.activation == "geglu"
    assert run(SIZES + "geglu: false\nactivation: relu").mlp.activation == "relu"
    for old, now in itertools.product(("bfloat16", "bf16"), repeat=2):
        text = f"fp16: {{enabled: true, type: {old}}}\nprecision: {now}"
        assert run(SIZES + text).precision.precision == now


def test_a_retired_name_that_contradicts_its_replacement() -> None:
    (problem,) = wrong(SIZES + "geglu: true\nactivation: relu")
    means = '`geglu: true` is the old form of `activation: "geglu"`'
    assert problem.what == f'{means}, which contradicts `activation: "relu"`'
    assert [str(place) for place in (problem.where, *problem.also)] == ["my.yml:6:1", "my.yml:7:1"]


# -- problems ----------------------------------------------------------------------------------------------------------


def test_a_file_without_a_model_is_one_problem() -> None:
    problem = wrong("seed: 1")[0]
    assert problem.what.endswith("num_layers, hidden_size, num_attention_heads and seq_length are missing")
    assert ROOT.joinpath(re.findall(r"configs/\S+\.yml", problem.hint)[0]).exists()


def test_required_parameters_that_are_missing() -> None:
    found = [each for name in EXAMPLES for each in wrong(f"{name}: 4") if each.id == "required-parameter-missing"]
    required = {name: parameter.type for name, parameter in REGISTRY.parameters.items() if parameter.required}
    assert {problem.what.split()[0] for problem in found} == required.keys()
    assert all(coerce(EXAMPLES[name], kind) for name, kind in required.items())


def test_a_misspelt_required_parameter_is_one_problem() -> None:
    (problem,) = wrong(SIZES.replace("hidden_size", "hiden_size"))
    assert problem.hint == "did you mean hidden_size?"


def test_a_wrong_value_is_one_problem() -> None:
    config_rule = rule(lambda hidden_size: hidden_size * 4, "intermediate_size")
    (problem,) = wrong(
        SIZES.replace("hidden_size: 8", "hidden_size: x"), (config_rule,), (lambda intermediate_size: refuse("x"),)
    )
    assert "hidden_size" in problem.what


def test_a_contradiction_has_the_places_of_its_values() -> None:
    (problem,) = wrong(SIZES + "train_iters: 3\nlr_decay_iters: 4", (SOLVE,))
    pinned(problem)
    assert problem.hint == "leave one out"
    assert [str(place) for place in (problem.where, *problem.also)] == ["my.yml:6:1", "my.yml:7:1"]


def test_rules_that_read_an_unknown_value_are_skipped() -> None:
    assert len(wrong(SIZES + "train_iters: 3\nlr_decay_iters: 4", (SOLVE,), (lambda train_iters: refuse("no"),))) == 1


def test_a_problem_is_about_the_inputs_of_its_rule_or_the_names_it_gives() -> None:
    def width_is_small(hidden_size: int, num_layers: int, seed: int) -> Finding:
        return refuse("too wide", "write less")

    def layers_are_few(hidden_size: int, num_layers: int) -> Finding:
        return refuse("too deep", about=["num_layers"])

    wide, deep = wrong(SIZES, (), (lambda seed: None, width_is_small, layers_are_few))
    assert (wide.id, wide.about) == ("width-is-small", ("hidden_size", "num_layers", "seed"))
    assert [str(place) for place in (wide.where, *wide.also)] == ["my.yml:2:1", "my.yml:1:1"]
    assert (deep.id, deep.about) == ("layers-are-few", ("num_layers",))
    assert [str(place) for place in (deep.where, *deep.also)] == ["my.yml:1:1"]


def test_a_problem_about_defaults_has_the_places_of_the_rules_other_inputs() -> None:
    (problem,) = wrong(SIZES, (), (lambda seed, hidden_size: refuse("no luck", about=["seed"]),))
    assert (problem.about, str(problem.where)) == (("seed",), "my.yml:2:1")


def test_a_problem_of_several_rules_has_its_own_id() -> None:
    def train_iters(seed: int) -> int:
        raise Contradiction("no", id="several-rules-say-no")

    (problem,) = wrong(SIZES, (rule(train_iters, "train_iters"),))
    assert problem.id == "several-rules-say-no"


def test_a_problem_with_a_derived_value_has_the_place_of_its_source() -> None:
    (problem,) = wrong(
        SIZES, (rule(lambda num_layers: num_layers, "train_iters"),), (lambda train_iters, seed: refuse("few"),)
    )
    assert str(problem.where) == "my.yml:1:1"


def test_a_problem_with_defaults_has_no_place() -> None:
    (problem,) = wrong(SIZES, (), (lambda seed: refuse("bad luck"),))
    assert problem.where is None


def test_warnings_do_not_stop_a_run() -> None:
    config = run(checks=(lambda hidden_size: warn("narrow"),))
    warning, _ = config.warnings  # the other: no dialect is written
    assert (warning.what, str(warning.where)) == ("narrow", "my.yml:2:1")


def test_without_a_number_of_gpus_other_rules_still_run() -> None:
    problems = wrong(SIZES, (), (lambda gpus: refuse("gpus"), lambda seed: refuse("seed")), gpus=None)
    assert [problem.what for problem in problems] == ["seed"]


def test_rules_do_not_run_on_an_unreadable_file() -> None:
    (problem,) = wrong("num_layers: [", (), (lambda gpus: refuse("gpus"),))
    assert problem.where


#: Derived where the run lands: by the launcher from the repository, by the ranks from the tokenizer.
KNOWN_LATER = {"git_hash", "padded_vocab_size"}

# -- the real rules ----------------------------------------------------------------------------------------------------


def test_rules_know_their_parameters() -> None:
    special = {"gpus", "written", "sections", "auto", "default", "day", "samples_per_epoch"}
    for each in [*DERIVATIONS, *CHECKS]:
        assert set(each.results) <= set(REGISTRY.parameters), each.id
        assert set(each.inputs) <= special | set(REGISTRY.parameters), each.id
        assert each.reason, each.id


def test_the_rules_have_an_order() -> None:
    assert len(ordered(tuple(DERIVATIONS))) == len(DERIVATIONS)


def test_every_derived_parameter_has_a_rule() -> None:
    results = {name for each in DERIVATIONS for name in each.results}
    derived = {name for name, parameter in REGISTRY.parameters.items() if parameter.derived}
    assert derived - results == KNOWN_LATER


def test_rules_that_need_no_ranks_run_before_them() -> None:
    """Those that need them do so directly, or through what another one derives."""
    ranks = rule(lambda gpus: gpus, "world_size")
    rules = (rule(lambda world_size: world_size, "seed"), ranks, rule(lambda hidden_size: 7, "train_iters"))
    partial = before_ranks(draft([File("my.yml", SIZES)]), rules)
    assert partial.group(Training).train_iters == 7
    assert {"world_size", "seed"}.isdisjoint(partial.values)
    for gpus in (4, 8):  # one does not change what the next starts from
        config = partial.complete(gpus, checks=())
        assert (config.parallel.world_size, config.training.seed, config.training.train_iters) == (gpus, gpus, 7)


def test_problems_are_in_the_order_of_the_rules_and_after_those_of_finding_the_ranks() -> None:

    def seed(gpus: int) -> int:
        raise Contradiction("wrong")

    def train_iters(hidden_size: int) -> int:
        raise Contradiction("wrong")

    rules = (rule(seed, "seed"), rule(train_iters, "train_iters"))
    partial = before_ranks(draft([File("my.yml", SIZES)]), rules)
    problems = refused(lambda: partial.complete(1, checks=(), found=[Problem("no hosts", id="no-hosts")]))
    assert ids(problems) == ["no-hosts", "seed", "train-iters"]
