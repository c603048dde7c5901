"""Every flag of the installed DeepSpeed launcher is declared with its default and choices, and no other."""

from __future__ import annotations

import argparse
from typing import Any, get_args, get_origin

import pytest
from deepspeed.launcher import constants, runner

from neoxargs.hosts.launchers import BUILT_IN
from neoxargs.registry import REGISTRY
from neoxargs.registry.runner import Runner, RunnerExtras
from tests.support.deepspeed_spy import version_note

#: Names that differ from the flag's.
RENAMED = {"autotuning": "autotuning_run"}

#: Declared, but no flags of stock DeepSpeed.
EXTRAS = {"comment", "account", "detect_nvlink_pairs", "fork_ranks", "restarts", "step_timeout"}


@pytest.fixture(scope="module")
def flags() -> dict[str, argparse.Action]:
    """Parameter name -> the launcher's own option."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", lambda parser, args=None: parser)
        parser: Any = runner.parse_args([])
    options = [a for a in parser._actions if a.option_strings and a.dest != "help"]
    return {RENAMED.get(a.dest, a.dest): a for a in options}


def test_the_launchers_flags_and_the_declared_ones_are_the_same(flags: dict[str, argparse.Action]) -> None:
    assert set(flags) == {*Runner.parameters, *RunnerExtras.parameters} - EXTRAS, version_note()


def test_receiver_defaults_are_the_parsers(flags: dict[str, argparse.Action]) -> None:
    expected = {name: flag.default for name, flag in flags.items() if name not in RENAMED.values()}
    assert {name: REGISTRY.parameters[name].receiver_default for name in expected} == expected, version_note()
    assert not flags["autotuning_run"].default
    assert REGISTRY.parameters["autotuning_run"].default is None


def test_every_long_spelling_of_a_flag_is_known(flags: dict[str, argparse.Action]) -> None:
    for name, flag in flags.items():
        spellings = {option[2:] for option in flag.option_strings if option.startswith("--")}
        assert {RENAMED.get(s, REGISTRY.find(s) and REGISTRY.find(s).name) for s in spellings} == {name}  # type: ignore[union-attr]


def test_choices_are_the_parsers(flags: dict[str, argparse.Action]) -> None:
    assert get_args(REGISTRY.parameters["log_level"].type) == tuple(flags["log_level"].choices or ()), version_note()
    tuning, _ = get_args(REGISTRY.parameters["autotuning_run"].type)
    assert get_args(tuning) == tuple(flags["autotuning_run"].choices or ()), version_note()
    assert {name for name, flag in flags.items() if flag.choices} == {"log_level", "autotuning_run"}, version_note()


def test_the_launchers_to_choose_from_are_those_with_a_record() -> None:
    assert get_args(REGISTRY.parameters["launcher"].type) == tuple(launcher.name for launcher in BUILT_IN)


def test_launchers_through_deepspeed_are_choices_of_its_launcher() -> None:
    known = {value for name, value in vars(constants).items() if name.endswith("_LAUNCHER")}
    assert {launcher.name for launcher in BUILT_IN if launcher.through_deepspeed} == known, version_note()


def test_a_flag_without_a_value_is_a_bool_and_no_other(flags: dict[str, argparse.Action]) -> None:
    for name, flag in flags.items():
        declared = REGISTRY.parameters[name].type
        assert (declared is bool) == (flag.nargs == 0), name
        if flag.type is int:
            assert int in _bases(declared), name


def _bases(annotation: Any) -> set[Any]:
    """int of `int`, `Annotated[int, ...]` and `Annotated[int, ...] | None`."""
    if get_origin(annotation) is None:
        return {annotation}
    return set().union(*(_bases(part) for part in get_args(annotation) if isinstance(part, type) or get_origin(part)))
