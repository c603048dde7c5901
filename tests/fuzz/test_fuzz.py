"""A small, fixed part of the fuzz run; `python -m tests.fuzz --inputs 200000` runs it all."""

from __future__ import annotations

import pytest

from neoxargs.base.problems import Problem
from neoxargs.checks import all as checks
from neoxargs.launch import stages
from neoxargs.runs.run_spec import RunSpec
from tests.fuzz import judge
from tests.fuzz.judge import Input, described, judged, made
from tests.fuzz.mutant import Mutant, Spot
from tests.fuzz.planted import faults_of_planting
from tests.fuzz.sources import yaml_sources

INPUTS = 2_000
PARTS = 20


@pytest.mark.parametrize(
    "part", [*range(10), *(pytest.param(part, marks=pytest.mark.slow) for part in range(10, PARTS))]
)
def test_every_answer_is_valid(part: int) -> None:
    outcomes = set()
    for number in range(part, INPUTS, PARTS):
        given = made(0, number)
        verdict = judged(given)
        outcomes.add(verdict.outcome)
        assert not verdict.faults, f"#{number} of seed 0: {described(given, verdict)}"
    assert {"refused", "migrates"} <= outcomes


def test_a_wrong_answer_is_detected() -> None:
    text = "num_layers: 4\nhiden_size: 64\n"
    right, wrong = (Input(Mutant(text, "misspelt key", Spot(line, 1)), "check") for line in (2, 1))
    assert judged(right).faults == []
    assert "nothing points at line 1, column 1" in judged(wrong).faults[0]


def test_an_input_that_hangs_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(given: Input, faults: list[str]) -> str:
        while True:
            pass

    monkeypatch.setattr(judge, "HANG", 0.1)
    monkeypatch.setitem(judge.READERS, "check", hang)
    verdict = judged(Input(Mutant("", "none"), "check"))
    assert (verdict.outcome, verdict.faults) == ("hangs", ["no answer after 0.1 s of CPU"])


def test_inputs_are_reproducible() -> None:
    assert [made(7, number) for number in range(50)] == [made(7, number) for number in range(50)]


def planting_is_wrong() -> bool:
    """Whether planting an error in one of some shipped configurations brings a false one or hides one."""
    texts = (f"{source.text}\n# {number}\n" for number in range(60) for source in yaml_sources()[number::60][:1])
    return any(map(faults_of_planting, texts))


def test_planted_errors_bring_no_false_ones_and_hide_none() -> None:
    assert not planting_is_wrong()


def test_a_false_error_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKS", (checks.Check("values", false_after_errors),))
    assert planting_is_wrong()


def false_after_errors(spec: RunSpec) -> list[Problem]:
    return [Problem("planted", id="planted", about=("seed",))] if spec.config.broken else []


def test_a_hidden_error_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_with_further", lambda stop, state: stages.Incomplete(stop.problems, {}))
    assert planting_is_wrong()
