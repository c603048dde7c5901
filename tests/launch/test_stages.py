"""Whatever a launch can refuse before it starts, `deepy check` refuses: shown for every id of a problem.

Who can report which id is read from the code: beginning with the stages of a command and the rows of the table of
checks, every function, class and table that is named there, and so on. By hand are only the exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any, get_args

import pytest

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.programs import READERS, Program, Script
from neoxargs.base.record import Record, replace
from neoxargs.base.request import Request
from neoxargs.checks import all as checks
from neoxargs.commands.check import command as check
from neoxargs.commands.explain.catalogue import catalogue
from neoxargs.commands.explain.example import as_files
from neoxargs.hosts.hosts import Resources
from neoxargs.launch import become_rank, main, stages
from neoxargs.plan import gate
from neoxargs.resolve.rules import CHECKS
from neoxargs.runs.run_spec import RunSpec
from tests.support.configure import configure

#: Why check does not report an id -> the ids.
EXCEPTIONS = {
    "other hosts take seconds: check names --check-hosts": {"host-not-reached", "host-with-fewer-gpus"},
    "the memory of the devices: check names deepy plan": {
        "plan-does-not-fit", "plan-of-several-runs", "no-bf16-tensor-cores", "unknown-device",
    },
    "a lock may be gone when the run starts: check names that of the run": {"run-folder-in-use", "op-lock-held"},
    "no refusal: a record of another script is replaced, with a warning": {"record-replaced", "lock-unreadable"},
    "no refusal: damaged rates beside a file give a warning, and no plan": {"rates-unreadable"},
    "of a process that another launcher has started as a rank": {
        "rank-variable-not-a-number", "text-not-tokenised", "rendezvous-failed",
    },
    "of other scripts than train.py: --dry-run reports them": {
        "evaluation-not-divided",
        "script-missing", "checkpoint-unread", "output-file-unwritable", "prompt-lines-empty",
        "reward-model-writes-nothing", "chat-template-missing", "chat-template-unknown", "chat-template-unreadable",
    },
}  # fmt: skip


def test_check_reports_all_that_a_launch_can_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused_by_a_launch_alone(monkeypatch) == set().union(*EXCEPTIONS.values())


def test_check_and_a_launch_find_the_same_errors_in_every_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neoxargs.runs.fingerprints.git_hash", lambda: None)
    differ, shown = {}, set()
    for name, entry in catalogue().items():
        if not entry.example:
            continue
        with as_files(entry.example) as request:
            here = replace(request, gpus=None, script="train.py")
            checked = errors(check.find_problems(here)[1])
            try:
                stages.run_until("refuse", stages.launch_of(here))
                launched = set()
            except Problems as stop:
                launched = errors(stop.problems)
        shown |= checked
        if checked != launched:
            differ[name] = checked ^ launched
    assert differ == {}
    assert len(shown) > 200


def errors(problems: Iterable[Problem]) -> set[str]:
    return {problem.id for problem in problems if problem.severity == "error"}


def refuses(*_: object) -> list[Problem]:
    """A fault: a refusal of which check knows nothing; the id is that of another command."""
    return [Problem("planted", id="prune-all")]


@pytest.mark.parametrize("subject", get_args(checks.Subject))
def test_a_check_that_only_a_launch_makes_is_found(subject: checks.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKS", (*checks.CHECKS, checks.Check(subject, refuses)))
    # hosts: the exceptions above. program: check cannot know which script will be launched, and warns.
    assert ("prune-all" in refused_by_a_launch_alone(monkeypatch)) == (subject in ("hosts", "program"))


@pytest.mark.parametrize("stage", stages.STAGES)
def test_so_is_a_stage_that_only_a_launch_has(stage: stages.Name, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(state: stages.State) -> stages.State:
        return replace(state, problems=tuple(refuses()))

    monkeypatch.setitem(stages.STAGES, stage, planted)  # type: ignore[arg-type]
    runs = ("resolve", "memory", "command", "problems")
    assert ("prune-all" in refused_by_a_launch_alone(monkeypatch)) == (stage not in runs)


def refused_by_a_launch_alone(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    rows, asked = checks.CHECKS, []

    def run_until(last: stages.Name, state: stages.State) -> None:
        asked.append((last, state))
        raise Problems([])

    monkeypatch.setattr(check, "can_train_here", lambda: True)
    monkeypatch.setattr(check, "run_until", run_until)
    check.find_problems(Request(["my.yml"]))
    [(last, state)] = asked
    names = list(stages.STAGES)
    errors = [row for row in rows if row.subject in state.subjects and row.subject not in state.lenient]
    checked = [stages.STAGES[name] for name in names[: names.index(last) + 1]]
    checked += [row.find for row in errors if state.script.program in row.programs]
    launched = [main.run, gate.check_memory, become_rank.become_rank, *stages.STAGES.values()]
    return reached([*launched, *(row.find for row in rows)]) - reached(checked)


# -- what code can report --------------------------------------------------------------------------------------------


def reached(roots: Iterable[Any]) -> set[str]:
    """The ids of the catalogue that this code contains, or what it names, and so on."""
    # Which stages and checks run depends on the command: these tables are not followed, but their rows are roots.
    seen, left, found = {id(stages.STAGES), id(checks.CHECKS)}, list(roots), set[str]()
    kept = []  # so that no id is given twice
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        kept.append(each)
        if isinstance(each, str):
            found.add(each)
        elif isinstance(each, Mapping):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, tuple | list | set | frozenset):
            left += each
        elif isinstance(each, FunctionType):
            found |= {each.__name__.replace("_", "-")}  # the id of a rule
            left += named(each) if ours(each) else ()
        else:
            left += parts(each)
    return found & set(catalogue())


def parts(each: Any) -> Iterator[Any]:
    """What an object that is no function consists of."""
    if isinstance(each, type):
        yield from vars(each).values() if ours(each) else ()
    elif isinstance(each, Record):
        yield from (type(each), *vars(each).values())
    elif isinstance(each, property | classmethod | staticmethod | partial):
        yield getattr(each, "fget", None) or getattr(each, "__func__", None) or getattr(each, "func", None)
    elif hasattr(each, "__wrapped__"):
        yield each.__wrapped__
    elif ours(type(each)):
        yield type(each)


def named(function: FunctionType) -> Iterator[Any]:
    """What a function contains and names: texts, globals, imports, attributes of modules, types of its parameters."""
    codes = list(with_nested(function.__code__))
    names = {name for code in codes for name in code.co_names}
    types = {word for text in function.__annotations__.values() for word in re.findall(r"\w+", str(text))}
    yield from (text for code in codes for text in code.co_consts if isinstance(text, str))
    yield from (*(function.__defaults__ or ()), *(cell.cell_contents for cell in function.__closure__ or ()))
    found = [function.__globals__[name] for name in names | types if name in function.__globals__]
    found += [import_module(name) for name in names if name.startswith("neoxargs.")]
    while found:
        each = found.pop()
        if not isinstance(each, ModuleType):
            yield each
        elif each.__name__.startswith("neoxargs"):
            found += [vars(each)[name] for name in names if name in vars(each)]


def with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_nested(constant)


def ours(each: Any) -> bool:
    return each.__module__.partition(".")[0] in ("neoxargs", "tests")


@pytest.mark.parametrize("script", READERS)
def test_warnings_of_positions_are_for_trained_models_too(script: Program, capsys: pytest.CaptureFixture[str]) -> None:
    scaling = "rope_scaling: {rope_type: linear, factor: 0.5}"
    of_training = "seq_length_schedule: [{until: 1000, length: 16}, {length: 32}]"
    config = configure(f"{{pos_emb: rotary, max_position_embeddings: 16, {scaling}, {of_training}}}")
    run = RunSpec(config, Resources({"localhost": [0]}, "cpu"))
    assert {*stages.OF_A_TRAINED_MODEL} <= {rule.id for rule in CHECKS}
    assert {warning.id for warning in config.warnings} - {*stages.OF_A_TRAINED_MODEL}
    state = stages.State(Script(f"{script}.py", script), Request([]), {}, resolved=run)
    stages.announce(state)
    told = capsys.readouterr().err
    assert set(re.findall(r"\[([\w-]+)\]$", told, re.M)) == {*stages.OF_A_TRAINED_MODEL[:2]}
