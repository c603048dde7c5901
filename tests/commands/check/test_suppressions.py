"""`# deepy: ignore[id]`: which warnings a comment suppresses, and which comments do nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.cli import main
from tests.support.bad_inputs import GOOD
from tests.support.snapshots import pinned

INTERVAL, RATE, NO_DATA = "intervals-fall-into-the-run", "values-are-plausible", "no-training-data"
UNUSED, UNKNOWN, WITHOUT_ID = "unused-suppression", "unknown-suppression", "suppression-without-id"
TEXT = GOOD + "log_interval: 5000\nlr: 5\n"


@pytest.fixture
def warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return the ids of the problems of a text, of those that every text here has only NO_DATA."""
    monkeypatch.chdir(tmp_path)

    def found(text: str, *words: str) -> list[str]:
        Path("my.yml").write_text(text)
        main(["check", "my.yml", "--gpus", "8", "--json", *words])
        problems = json.loads(capsys.readouterr().out)["problems"]
        always = ("dialect-guessed", "vocabulary-not-named", "fp32-without-tf32")
        return sorted(problem["id"] for problem in problems if problem["id"] not in always)

    return found


def commented(comment: str, line: str = "log_interval: 5000") -> str:
    return TEXT.replace(line, f"{line}{comment}")


def test_a_comment_suppresses_the_warning_of_its_line(warnings) -> None:
    assert warnings(TEXT) == [INTERVAL, NO_DATA, RATE]
    assert warnings(commented(f"  # deepy: ignore[{INTERVAL}]")) == [NO_DATA, RATE]
    assert warnings(commented(f"  # why; # deepy: ignore[{INTERVAL}] because")) == [NO_DATA, RATE]


def test_a_comment_that_suppresses_nothing_is_a_warning(warnings) -> None:
    assert warnings(commented(f" # deepy: ignore[{INTERVAL}]", "lr: 5")) == [INTERVAL, NO_DATA, UNUSED, RATE]
    assert warnings(commented(f" # deepy: ignore[{RATE}, {INTERVAL}]")) == [NO_DATA, UNUSED, RATE]
    # what other checks say depends on the machine, and with an error, not every rule is applied
    assert warnings(commented(" # deepy: ignore[data-file-missing]")) == [INTERVAL, NO_DATA, RATE]
    assert warnings(commented(f" # deepy: ignore[{RATE}]") + "seed: red\n") == [
        INTERVAL,
        NO_DATA,
        "type-mismatch",
        RATE,
    ]


@pytest.mark.parametrize("value", ["it's", "'it''s # '", '"a # b"', "[a, 'b']"])
def test_a_comment_behind_quotes_counts_and_one_inside_does_not(warnings, value: str) -> None:
    line = "log_interval: 5000"
    assert warnings(TEXT.replace(line, f"{line}  # {value}  # deepy: ignore[{INTERVAL}]")) == [NO_DATA, RATE]
    inside = TEXT + f'wandb_group: "runs # deepy: ignore-file[{INTERVAL}]"\n'
    assert INTERVAL in warnings(inside)
    named = TEXT + f"wandb_group: {value}  # deepy: ignore-file[{INTERVAL}]\n"
    assert INTERVAL not in warnings(named)


def test_a_comment_for_the_file(warnings) -> None:
    comment = f"# deepy: ignore-file[{INTERVAL},{NO_DATA}]\n"
    assert warnings(TEXT + comment) == warnings(comment + TEXT) == [RATE]
    Path("more.yml").write_text(comment + "seed: 1\n")
    assert warnings(TEXT, "more.yml") == [INTERVAL, UNUSED, RATE]


def test_neither_an_error_nor_a_set_is_suppressed(warnings) -> None:
    error = "gpus-hold-whole-replicas"
    text = TEXT + f"pipe_parallel_size: 16 # deepy: ignore[{error}]\n# deepy: ignore-file[{error},{INTERVAL},{RATE}]\n"
    assert error in warnings(text)
    of_command = TEXT.replace("lr: 5", f"# deepy: ignore-file[{RATE}]")
    assert warnings(of_command, "--set", "lr=5") == [INTERVAL, NO_DATA, UNUSED, RATE]


def test_fix_removes_a_comment_that_suppresses_nothing(warnings, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(commented(f"  # deepy: ignore[{RATE}]"))
    assert main(["check", "my.yml", "--gpus", "8"]) == 0
    pinned(capsys.readouterr().err, "[unused-suppression]")
    assert main(["check", "my.yml", "--gpus", "8", "--fix"]) == 0
    assert Path("my.yml").read_text() == TEXT


def test_a_launch_does_not_print_it_either(warnings, monkeypatch: pytest.MonkeyPatch) -> None:
    from neoxargs.base.request import Request
    from neoxargs.launch import stages

    reported: list[str] = []
    monkeypatch.setattr(stages, "report", lambda problems: reported.extend(problem.id for problem in problems))
    for text in (TEXT, commented(f"  # deepy: ignore[{INTERVAL}]")):
        Path("my.yml").write_text(text)
        state = stages.run_until("resolve", stages.launch_of(Request(["my.yml"], gpus=8, script="train.py")))
        stages.announce(state)
        reported.append("")
    first, second = reported[: reported.index("")], reported[reported.index("") + 1 : -1]
    assert [each for each in first if each not in second] == [INTERVAL] and RATE in second


def test_an_id_that_no_problem_has_is_named(warnings, capsys: pytest.CaptureFixture[str]) -> None:
    near = INTERVAL.replace("run", "rn")
    text = commented(f" # deepy: ignore[{near}, {RATE}]") + "# deepy: ignore-file[no-such-thing]\n"
    assert warnings(text) == [INTERVAL, NO_DATA, UNKNOWN, UNKNOWN, UNUSED, RATE]
    assert main(["check", "my.yml", "--gpus", "8"]) == 0
    pinned(capsys.readouterr().err, f"[{UNKNOWN}]")
    assert main(["check", "my.yml", "--gpus", "8", "--fix"]) == 0
    assert Path("my.yml").read_text() == text.replace(near, INTERVAL)
    capsys.readouterr()
    assert UNKNOWN in warnings(text + "seed: red\n")  # also beside an error


@pytest.mark.parametrize("comment", ["ignore", "ignore[]", f"ignore {INTERVAL}", f"ignore({INTERVAL})", "ignore [x]"])
def test_a_comment_without_an_id_is_a_warning(warnings, comment: str) -> None:
    text = commented(f" # deepy: {comment}")
    assert warnings(text) == [INTERVAL, NO_DATA, WITHOUT_ID, RATE]
    assert warnings(text + "seed: red\n") == [INTERVAL, NO_DATA, WITHOUT_ID, "type-mismatch", RATE]
    assert WITHOUT_ID not in warnings(f'{TEXT}wandb_group: "a # deepy: {comment}"\n')


def test_the_id_that_is_meant_is_named(warnings, capsys: pytest.CaptureFixture[str]) -> None:
    text = commented(" # deepy: ignore, because") + "# deepy: ignore-file\nseed: 1 # deepy: ignore[ ]\n"
    assert warnings(text).count(WITHOUT_ID) == 3
    assert main(["check", "my.yml", "--gpus", "8"]) == 0
    pinned(capsys.readouterr().err, f"[{WITHOUT_ID}]")
    main(["check", "my.yml", "--gpus", "8", "--fix"])
    assert Path("my.yml").read_text() == text
    main(["check", "my.yml", "--gpus", "8", "--fix", "--unsafe-fixes"])
    assert Path("my.yml").read_text() == text.replace("ignore,", f"ignore[{INTERVAL}],")
