"""Options of `deepy plan` that name a network, an attention kernel or assumptions."""

from __future__ import annotations

import pytest

from neoxargs.cli import main
from neoxargs.hosts.device_table import DEVICES
from neoxargs.plan.given.assumptions import NAMES


def test_the_assumptions_are_listed_without_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--assumptions"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name}: " in f"\n{printed}" for name in NAMES)
    with pytest.raises(SystemExit):
        main(["plan", "--assumptions", "--assume", "workspace=7"])
    changed = capsys.readouterr().out
    assert "workspace: 7 " in changed and "workspace: 7 " not in printed


def test_the_help_names_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    printed = capsys.readouterr().out
    assert [name for name in DEVICES if name not in printed] == []


def test_a_short_name_that_stands_for_one_of_two_sizes_is_an_assumption(
    middle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, said in (("A100", True), ("a100 80gb", False), ("H200", False)):
        main(["plan", middle, "--device", name])
        printed = " ".join(capsys.readouterr().out.split())
        assert ("--device A100 means A100-80GB; there is also A100-40GB" in printed) == said


@pytest.mark.parametrize(("name", "rate"), [("ethernet-25", 3.125), ("EDR", 12.5), ("40", 5)])
def test_a_network_is_a_name_or_a_rate(name: str, rate: float, middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", middle, "--gpus", "16", "--device", "A100", "--network", name])
    assert f"{rate:g} GB/s per device between hosts" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["token-ring", "-1", "inf"])
def test_an_unknown_network_is_an_error(name: str, middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", middle, f"--network={name}"])
    assert ended.value.code != 0
    error = capsys.readouterr().err
    assert "expected one of ndr, hdr" in error and repr(name) in error


@pytest.mark.parametrize("option", [["--write", "layout.yml"], ["--left-out"]])
def test_an_option_of_a_search_without_a_search_is_an_error(
    option: list[str], middle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", middle, *option]) == 1
    error = capsys.readouterr().err
    assert f"{option[0]} requires --search or --fewest" in error and "add --search" in error


def test_the_model_line_ends_with_the_precision(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", middle, "--set", "precision=bfloat16"])
    assert "; bf16 " in " ".join(capsys.readouterr().out.partition("\nranks ")[0].split())
