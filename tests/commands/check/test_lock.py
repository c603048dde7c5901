"""`deepy check run.lock.yml`, and `deepy diff` of lock files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.files.run_record import write_record
from neoxargs.resolve import resolve
from neoxargs.runs.fingerprints import environment
from neoxargs.runs.lockfile import lock_text, write_lock
from tests.support.smallest import YAML
from tests.support.snapshots import pinned


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder of my.yml, launched with lr=0.5."""
    monkeypatch.chdir(tmp_path)
    for suffix in ("idx", "bin"):
        Path(f"d.{suffix}").write_text(suffix)
    Path("my.yml").write_text(YAML + "data_path: d\nrun_dir: run\n")
    launch("lr=0.5")
    return tmp_path


def launch(*overrides: str, folder: str = "run", **sections: dict[str, object]) -> None:
    config = resolve(["my.yml"], overrides, gpus=1)
    Path(folder).mkdir(exist_ok=True)
    write_record(config)
    now = environment(config, "train.py")
    changed = {name: section | sections.get(name, {}) for name, section in now.items()}
    Path(folder, "run.lock.yml").write_text(lock_text(config, "train.py", changed))


def check(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[tuple[str, str, int | None]]]:
    """Return the exit code, and id, severity and line of each problem."""
    code = main(["check", "run/run.lock.yml", "--json"])
    problems = json.loads(capsys.readouterr().out)["problems"]
    return code, [(problem["id"], problem["severity"], problem["line"]) for problem in problems]


def line_of(word: str) -> int:
    lines = Path("run/run.lock.yml").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(f"  {word}:"))


def test_nothing_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "run/run.lock.yml"]) == 0
    pinned(capsys.readouterr().out)


def test_the_rates_that_the_plan_used_are_recorded_like_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    rates = Path("ours.rates.yml")
    rates.write_text("format: 1\n")
    write_lock(resolve(["my.yml"], ["lr=0.5"], gpus=1), "train.py", str(rates))
    assert check(capsys) == (0, [])
    rates.write_text("format: 1  # other\n")
    assert check(capsys) == (0, [("lock-hardware-differs", "warning", line_of("rates"))])
    rates.unlink()
    assert check(capsys) == (0, [("lock-hardware-differs", "warning", line_of("rates"))])


def test_files_of_which_samples_were_compared_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with Path("d.bin").open("r+b") as file:
        file.truncate((1 << 24) + 1)
    launch("lr=0.5")
    assert main(["check", "run/run.lock.yml"]) == 0
    told = "d.bin: compared by size and samples only; deepy data --verify compares token files completely"
    assert told in capsys.readouterr().out


def test_a_changed_value(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(Path("my.yml").read_text() + "seed: 7\nlog_interval: 3\nzero_optimization: {stage: 1}\n")
    code, found = check(capsys)
    assert code == 1
    assert ("lock-value-differs", "error", line_of("seed")) in found
    assert ("lock-value-differs", "warning", line_of("zero_optimization.stage")) in found
    assert ("lock-value-differs", "warning", line_of("log_interval")) in found


def test_a_value_that_cannot_change_training_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").write_text(Path("my.yml").read_text() + "log_interval: 3\nnum_workers: 5\n")
    assert check(capsys) == (0, [
        ("lock-value-differs", "warning", line_of("num_workers")),
        ("lock-value-differs", "warning", line_of("log_interval")),
    ])  # fmt: skip
    main(["check", "run/run.lock.yml"])
    printed = capsys.readouterr()
    pinned(printed.out)
    # The lines of the lock, which names the installed packages, are those of `line_of`.
    pinned(re.sub(r"(run\.lock\.yml):\d+", r"\1:LINE", printed.err), "[lock-value-differs]")
    assert printed.err.count("; the difference cannot change training") == 2


def test_missing_configuration_files_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yml").rename("other.yml")
    assert main(["check", "run/run.lock.yml"]) == 0
    printed = capsys.readouterr()
    pinned(printed.err, "[lock-configuration-missing]")
    pinned(printed.out)


def test_options_that_do_not_apply_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "run/run.lock.yml", "--gpus", "4", "--set", "lr=1", "-d", "."]) == 1
    text = capsys.readouterr().err
    assert text.count("[lock-option-not-applicable]") == 3
    pinned(text, "[lock-option-not-applicable]")


def test_a_renamed_lock_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run/run.lock.yml").rename("bad.lock.yml")
    assert main(["check", "bad.lock.yml"]) == 0
    pinned(capsys.readouterr().out)
    assert main(["diff", "bad.lock.yml", "run"]) == 0
    assert "A  bad.lock.yml  (lock file, " in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", ["plan LOCK", "explain lr LOCK", "migrate LOCK", "check my.yml LOCK", "train.py LOCK --dry-run"]
)
def test_a_lock_is_not_a_configuration(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.replace("LOCK", "run/run.lock.yml").split()) == 1
    first, *hints = capsys.readouterr().err.splitlines()
    pinned(first)
    assert len(hints) == 1 and "`deepy check`" in hints[0] and "`deepy diff`" in hints[0]


@pytest.mark.parametrize("path", ["run", "run/run.lock"])
@pytest.mark.parametrize("command", ["check", "plan"])
def test_of_a_run_folder_only_what_is_read_is_recommended(
    command: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run/run.lock").write_text(json.dumps({"host": "h", "pid": 5, "token": "t"}))
    assert main([command, path]) == 1
    pinned(capsys.readouterr().err)


@pytest.mark.parametrize(("names", "hint"), [([], "pass a YAML file"), (["a.yml"], "pass one of its files: a.yml")])
def test_no_record_of_a_checkpoint_or_a_model_is_recommended(
    names: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("step").mkdir()
    for name in ("config.json", "config.yml", "files.json", *names):
        Path("step", name).touch()
    assert main(["plan", "step"]) == 1
    assert capsys.readouterr().err.endswith(f"= {hint}\n")


def test_changed_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("d.bin").write_text("other")
    Path("d.idx").unlink()
    assert check(capsys) == (1, [("lock-file-differs", "error", line_of("data_path"))] * 2)
    main(["check", "run/run.lock.yml"])
    text = capsys.readouterr().err
    assert "data_path: d.idx does not exist here" in text
    assert "data_path: the content of d.bin has changed since the run was launched" in text


def test_another_environment_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    launch("lr=0.5", packages={"torch": "0.1"}, hardware={"processor": "x"}, code={"neoxargs": "0" * 64})
    assert check(capsys) == (0, [
        ("lock-code-differs", "warning", line_of("neoxargs")), ("lock-package-differs", "warning", line_of("torch")),
        ("lock-hardware-differs", "warning", line_of("processor")),
    ])  # fmt: skip


def test_diff_of_a_run_and_a_lock(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "run", "run/run.lock.yml"]) == 0
    for suffix in ("idx", "bin"):
        Path(f"e.{suffix}").write_text(suffix)
    launch("lr=0.5", "data_path=e", folder="moved")
    assert main(["diff", "run/run.lock.yml", "moved/run.lock.yml"]) == 0
    pinned(capsys.readouterr().out, "the files")
    Path("e.bin").write_text("other")
    launch("lr=0.25", "data_path=e", folder="other", packages={"torch": "0.1"})
    assert main(["diff", "run/run.lock.yml", "other/run.lock.yml", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["differences"]
    assert [(each["name"], each["kind"], each["impact"]) for each in found] == [
        ("lr", "optimizer", "result"), ("data_path", "data", "result"), ("data_path", "content", "result"),
        ("torch", "package", "unshown"),
    ]  # fmt: skip
