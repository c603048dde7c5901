"""`deepy check DIR`: the runs of a repository's table, its mistakes, and what pre-commit and the Action do with it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from neoxargs.cli import main
from tests.support.bad_inputs import GOOD
from tests.support.paths import ROOT
from tests.support.report_formats import REQUIRED
from tests.support.snapshots import pinned

SIZES = ("nano", "micro", "tiny", "mini", "small", "medium", "large", "xl")
COMMON, MODEL = GOOD.splitlines()[3:], GOOD.splitlines()[:3]
#: A dozen runs: one for each size, and four others.
TABLE = """\
base = "configs/common.yml"
gpus = 8
ignore = ["no-training-data", "vocabulary-not-named", "fp32-without-tf32", "dialect-guessed"]

[runs]
sizes = "configs/sizes/*.yml"
pretrain = { files = ["configs/sizes/large.yml", "configs/cluster.yml"], gpus = 64 }
cluster = { files = ["configs/common.yml", "configs/sizes/xl.yml", "configs/cluster.yml"], hostfile = "hosts" }

[runs.alone]
base = []
files = ["alone.yml"]

[runs.smoke]
files = [
    "configs/sizes/tiny.yml",
    "configs/smoke.yml",
]
"""
FILES = {
    "configs/common.yml": "\n".join(COMMON) + "\n",
    **{f"configs/sizes/{size}.yml": "\n".join(MODEL) + "\n" for size in SIZES},
    "configs/cluster.yml": "model_parallel_size: 2\n",
    "configs/smoke.yml": "log_interval: 5\n",
    "alone.yml": GOOD,
    "hosts": "a slots=4\nb slots=4\n",
    "deepy.toml": TABLE,
    "README.md": "",
}
Written = Callable[..., None]
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Write a repository with a dozen runs, and work in it; the function writes other files over it."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)

    def write(files: Mapping[str, str]) -> None:
        for name, text in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)

    write(FILES)
    return write


def answer(capsys: Printed, *words: str) -> tuple[int, Any]:
    code = main(["check", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def told(found: Any) -> list[tuple[str, str, Sequence[str]]]:
    return [(each["id"], f"{each['file']}:{each['line']}:{each['column']}", each["runs"]) for each in found["problems"]]


def test_every_run_is_checked(repository: Written, capsys: Printed) -> None:
    code, found = answer(capsys)
    assert (code, found["problems"]) == (0, [])
    gpus = {name: run["gpus"] for name, run in found["runs"].items()}
    assert gpus == {f"sizes/{size}": 8 for size in SIZES} | {"pretrain": 64, "cluster": 8, "alone": 8, "smoke": 8}
    assert found["runs"]["smoke"]["files"] == ["configs/common.yml", "configs/sizes/tiny.yml", "configs/smoke.yml"]
    assert found["runs"]["alone"]["files"] == ["alone.yml"]
    assert main(["check"]) == 0
    pinned(capsys.readouterr().out)


def test_the_table_can_be_in_pyproject(repository: Written, capsys: Printed) -> None:
    Path("deepy.toml").unlink()
    table = TABLE.replace("[runs", "[tool.deepy.runs")
    repository(
        {"pyproject.toml": f'[project]\nname = "x"\n\n[tool.deepy]\n{table}', "sub/pyproject.toml": "[tool.x]\n"}
    )
    for words in ([], ["."], [str(Path.cwd())], ["pyproject.toml"], [f"{Path.cwd()}/pyproject.toml"]):
        assert len(answer(capsys, *words)[1]["runs"]) == 12
    repository({"pyproject.toml": '[tool.deepy]\ngpus = 8\nruns = { a = "../b.yml" }\n', "../b.yml": GOOD})
    assert [*answer(capsys, ".")[1]["runs"]] == ["a"]
    repository({"pyproject.toml": f"[tool.deepy]\n{table}"})
    os.chdir("sub")  # the table of the folder above, whose pyproject.toml has one
    assert len(answer(capsys)[1]["runs"]) == 12
    Path("../pyproject.toml").write_text(f"[tool.deepy]\ngpu = 8\n{table}")
    assert ("runs-table-key", "../pyproject.toml:2:1", []) in told(answer(capsys)[1])


def test_a_problem_of_several_runs_is_told_once(repository: Written, capsys: Printed) -> None:
    repository({
        "configs/common.yml": FILES["configs/common.yml"] + "weight_decy: 0.1\n",
        "configs/cluster.yml": "model_parallel_size: two\n",
        "configs/sizes/xl.yml": FILES["configs/sizes/xl.yml"] + "hidden_droput: 0\n",
    })  # fmt: skip
    code, found = answer(capsys)
    assert code == 1 and not found["ok"] and found["runs"]["alone"]["ok"]
    runs = {of: each for _, of, each in told(found)}
    assert runs.keys() == {"configs/common.yml:5:1", "configs/cluster.yml:1:22", "configs/sizes/xl.yml:4:1"}
    assert len(runs["configs/common.yml:5:1"]) == 11
    assert runs["configs/sizes/xl.yml:4:1"] == ["sizes/xl", "cluster"]
    os.chdir("configs")
    assert main(["check"]) == 1
    shown = capsys.readouterr()
    pinned(shown.err)
    pinned(shown.out.partition("unchecked")[2])


def test_a_pattern_does_not_match_what_is_below_every_run(repository: Written, capsys: Printed) -> None:
    for base in ("configs/common.yml", "./configs/common.yml"):
        table = f'tool.deepy = {{ base = "{base}", gpus = 8, runs = {{ a = "configs/**/[cm]*.yml" }} }}'
        Path("deepy.toml").unlink(missing_ok=True)
        repository({"pyproject.toml": table})
        runs = answer(capsys)[1]["runs"]
        assert [*runs] == ["a/cluster", "a/medium", "a/micro", "a/mini"]
        assert runs["a/mini"]["files"] == ["configs/common.yml", "configs/sizes/mini.yml"]


#: Lines of a table -> the places at which it is wrong.
WRONG = {
    'gpu = 8\n[runs]\na = "alone.yml"': ["runs-table-key 1:1", "runs-table-value 3:1"],
    '[runs]\na = { file = "alone.yml", gpus = 8 }': ["runs-table-key 2:7", "runs-table-value 2:1"],
    'gpus = 8\n[run]\na = "alone.yml"': ["runs-table-key 2:2", "runs-table-value 1:1"],
    '[small]\nfiles = "alone.yml"': ["runs-table-key 1:2", "runs-table-value 1:1"],
    'gpus = 8\n[runs]\na = "alone.yml"\na = "x.yml"\n[runs.a]\n': ["runs-table-key 4:1", "runs-table-key 5:2"],
    'gpus = 8\ngpus = 9\n[runs]\na = "alon.yml"': ["runs-table-key 2:1", "runs-table-file 4:6"],
    '[runs]\na = { files = ["alone.yml", "sub/*.yml"], gpus = 8 }': ["runs-table-file 2:30"],
    'gpus = 8\n[runs]\na.files = [\n  "*.yml", # why\n  "configs/*.yml",\n]': ["runs-table-value 5:4"],
    'gpus = "8"\nignore = ["no-such-id"]\n[runs]\na = "alone.yml"': ["runs-table-value 1:8", "runs-table-value 2:12"],
    'gpus = true\nhostfile = 3\nbase = [1]\n[runs]\na = 5': [
        "runs-table-value 1:8", "runs-table-value 2:1", "runs-table-value 2:12", "runs-table-value 3:8",
        "runs-table-value 5:5",
    ],
    'hostfile = "host"\n[runs]\na = []': ["runs-table-file 1:13", "runs-table-value 3:5"],
    'gpus = 8\n[runs]\na = "alone.yml\n': ["runs-table-not-toml 3:15"],
    'base = ["alone.yml"  # all\n\n# eight\ngpus = 8\n[runs]\n': ["runs-table-not-toml 1:20"],
    'base = ["alone.yml",\ngpus = 8\n[runs]\n': ["runs-table-not-toml 1:21"],
    'gpus = 8\n[runs]\na = [\n  "alone.yml"\n\n': ["runs-table-not-toml 4:14"],
    "gpus = 8\n[runs]\na = 'alone.yml\n\nb = 1\n": ["runs-table-not-toml 3:5"],
    'gpus = 8\n[runs]\na = """alone.yml\n\n': ["runs-table-not-toml 3:5"],
    'gpus = 8\n[runs]\na = "alone.yml': ["runs-table-not-toml 3:5"],
    "gpus =\n[runs]\n": ["runs-table-not-toml 1:7"],
    "base = [\n  alone.yml,\n]\n": ["runs-table-not-toml 2:3"],
    'gpus = 8\n[runs\n': ["runs-table-not-toml 2:6"],
    'gpus = 8': ["runs-table-value 1:1"],
    'gpus = 8\nruns = 3': ["runs-table-value 2:8"],
    "": ["runs-table-value 1:1"],
}  # fmt: skip


def test_mistakes_of_the_table(repository: Written, capsys: Printed) -> None:
    sentences = []
    for text, places in WRONG.items():
        Path("deepy.toml").write_text(text)
        code, found = answer(capsys)
        at = sorted(f"{id} {place.partition(':')[2]}" for id, place, runs in told(found) if id.startswith("runs-table"))
        assert (code, at) == (1, sorted(places)), text
        main(["check", "--output-format", "concise"])
        sentences += [line for line in capsys.readouterr().out.splitlines() if "[runs-table" in line]
    pinned("\n".join(sentences))


def test_runs_that_are_not_wrong_are_checked_beside_mistakes(repository: Written, capsys: Printed) -> None:
    repository({"deepy.toml": TABLE + 'lost = "x"\n', "alone.yml": GOOD + "weight_decy: 0.1\n"})
    code, found = answer(capsys)
    assert code == 1 and len(found["runs"]) == 12
    assert [each[0] for each in told(found)] == ["runs-table-key", "unknown-key"]


def test_without_a_table_the_exit_code_is_2(tmp_path: Path, repository: Written, capsys: Printed):
    Path("deepy.toml").unlink()
    for words in ([], ["configs"], ["--changed", "alone.yml"], ["--watch"]):
        assert main(["check", *words]) == 2
        pinned(capsys.readouterr().err)
    repository({"deepy.toml": TABLE, "empty/.keep": ""})
    assert main(["check", "empty"]) == 2
    pinned(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["configs/sizes"], [*(f"sizes/{size}" for size in SIZES), "pretrain", "cluster", "smoke"]),
        (["--changed", "alone.yml", "hosts"], ["cluster", "alone"]),
        (["--changed", "configs/cluster.yml"], ["pretrain", "cluster"]),
        (["--changed", "configs/sizes/tiny.yml", "README.md"], ["sizes/tiny", "smoke"]),
        (["--changed", "README.md"], []),
    ],
)
def test_some_runs_are_chosen(repository: Written, capsys: Printed, words: list[str], runs: list[str]) -> None:
    code, found = answer(capsys, *words)
    assert code == 0 and sorted(found["runs"]) == sorted(runs)
    code, found = answer(capsys, *words, "deepy.toml") if "--changed" in words else (0, {"runs": range(12)})
    assert code == 0 and len(found["runs"]) == 12


def test_a_changed_file_must_exist(repository: Written, capsys: Printed) -> None:
    code, found = answer(capsys, "--changed", "configs/smok.yml", "alone.yml", "gone.md")
    assert (code, [*found["runs"]]) == (1, ["alone"])
    assert told(found) == [("file-missing", f"{name}:0:0", []) for name in ("configs/smok.yml", "gone.md")]
    assert main(["check", "--changed", "configs/smok.yml", "gone.md"]) == 1
    pinned(capsys.readouterr().err)
    os.chdir("configs")
    assert told(answer(capsys, "--changed", "smok.yml")[1])[0][:2] == ("file-missing", "smok.yml:0:0")


def test_warnings_fail_only_if_strict(repository: Written, capsys: Printed) -> None:
    repository({"configs/smoke.yml": "log_interval: 5000\n", "my.yml": GOOD + "log_interval: 5000\n"})
    assert answer(capsys)[0] == 0
    code, found = answer(capsys, "--strict")
    assert (code, found["ok"], told(found)[0][2]) == (1, False, ["smoke"])
    repository({"deepy.toml": TABLE + 'ignore = "intervals-fall-into-the-run"\n'})
    assert answer(capsys, "--strict")[0] == 0
    assert [main(["check", "my.yml", "--gpus", "8", *words]) for words in ([], ["--strict"])] == [0, 1]
    assert capsys.readouterr().out.count("ok\n") == 1


def test_a_correction_of_a_shared_file_is_made_for_all_its_runs(repository: Written, capsys: Printed) -> None:
    wrong = FILES["configs/common.yml"] + "weight_decy: 0.1\n"
    repository({"configs/common.yml": wrong, "configs/smoke.yml": "log_intervall: 5\n"})
    assert main(["check", "configs", "--diff"]) == 1
    pinned(capsys.readouterr().out)
    assert Path("configs/common.yml").read_text() == wrong
    os.chdir("configs")
    code, found = answer(capsys, "--fix")
    assert code == 0 and [each["file"] for each in found["fixed"]] == ["common.yml", "smoke.yml"]
    assert (Path("common.yml").read_text(), Path("smoke.yml").read_text()) == (
        wrong.replace("decy", "decay"), FILES["configs/smoke.yml"],
    )  # fmt: skip


@pytest.mark.parametrize("words", [[], ["--changed", "configs/smoke.yml"]], ids=["all", "changed"])
def test_a_correction_that_another_run_cannot_have_is_not_made(
    repository: Written, capsys: Printed, words: list[str]
) -> None:
    """With num_kv_heads: 4, one run has 3 heads; without, none is wrong but for the unknown key."""
    tiny = FILES["configs/sizes/tiny.yml"]
    repository({
        "configs/common.yml": FILES["configs/common.yml"] + "num_kv_head: 4\n",
        "configs/sizes/xl.yml": tiny.replace("heads: 4", "heads: 3").replace("64", "66"),
    })  # fmt: skip
    assert main(["check", "--fix", *words]) == 1
    assert "num_kv_head: 4\n" in Path("configs/common.yml").read_text()
    pinned(capsys.readouterr().err, "not corrected")
    repository({"configs/sizes/xl.yml": tiny})
    assert main(["check", "--fix", *words]) == 0
    assert "num_kv_heads: 4\n" in Path("configs/common.yml").read_text()


@pytest.mark.parametrize("words", [[], ["--changed", "configs/smoke.yml"]], ids=["all", "changed"])
def test_a_comment_is_unused_only_if_no_run_needs_it(repository: Written, capsys: Printed, words: list[str]) -> None:
    comment = "log_interval: 50 # deepy: ignore[intervals-fall-into-the-run]\n"
    models = {name: text + "train_iters: 100\n" for name, text in FILES.items() if name.startswith("configs/sizes")}
    common = FILES["configs/common.yml"].replace("train_iters: 100\n", comment)
    repository(models | {"configs/common.yml": common, "configs/smoke.yml": "seed: 1\n"})
    repository({"configs/sizes/xl.yml": FILES["configs/sizes/xl.yml"] + "train_iters: 10\n"})
    assert answer(capsys, *words)[1]["problems"] == []
    assert main(["check", "--fix", *words]) == 0 and comment in Path("configs/common.yml").read_text()
    repository({"configs/sizes/xl.yml": models["configs/sizes/xl.yml"]})
    capsys.readouterr()
    found = [each[0] for each in told(answer(capsys, *words)[1])]
    assert found == ([] if words else ["unused-suppression"])


def test_a_file_that_cannot_be_written_is_named_from_here(repository: Written, capsys: Printed) -> None:
    repository({"configs/common.yml": FILES["configs/common.yml"] + "weight_decy: 0.1\n"})
    Path("configs/common.yml").chmod(0o444)
    os.chdir("configs")
    assert main(["check", "--fix"]) == 1
    pinned(capsys.readouterr().err)
    assert "decy" in Path("common.yml").read_text()


@pytest.mark.parametrize("words", [["--gpus", "8"], ["-d", "configs"], ["--changed"], ["--watch", "--fix"]])
def test_options_that_have_no_meaning_are_refused(repository: Written, capsys: Printed, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["check", *words])
    assert stop.value.code == 2
    pinned(capsys.readouterr().err.splitlines()[-1])


# -- pre-commit and the Action -----------------------------------------------------------------------------------------


def broken(repository: Written) -> None:
    repository({
        "configs/common.yml": FILES["configs/common.yml"] + "weight_decy: 0.1\n",
        "configs/cluster.yml": "model_parallel_size: two\n",
        "alone.yml": GOOD + "log_interval: 5000\n",
    })  # fmt: skip


@pytest.mark.parametrize("output", REQUIRED)
def test_a_report_of_all_runs_has_what_its_readers_require(repository: Written, capsys: Printed, output: str) -> None:
    for code in (0, 1):
        assert main(["check", "--output-format", output]) == code
        text = capsys.readouterr().out
        REQUIRED[output](text)
        assert text.count("configs/cluster.yml") >= code and text.count("weight_decay?") == code
        broken(repository)


def programs(folder: Path) -> dict[str, str]:
    """Return an environment with a command `deepy` in its path."""
    folder.mkdir(parents=True)
    program = folder / "deepy"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(ROOT / "deepy.py")])} "$@"\n')
    program.chmod(0o755)
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def hook_of(id: str) -> Any:
    [hook] = [each for each in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text()) if each["id"] == id]
    return hook


def pre_commit(id: str, changed: Sequence[str], environ: Mapping[str, str], *args: str) -> tuple[int, str]:
    """Run a hook as pre-commit does: its entry, the arguments, and the changed files that its pattern matches."""
    import re

    hook = hook_of(id)
    files = [name for name in changed if re.search(hook["files"], name)]
    assert files and (hook.get("require_serial") or hook.get("pass_filenames") is False)
    words = [*shlex.split(hook["entry"]), *args, *(files if hook.get("pass_filenames", True) else ())]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_hook_checks_the_runs_with_a_changed_file(repository: Written, tmp_path: Path) -> None:
    environ = programs(tmp_path / ".git" / "bin")
    broken(repository)
    assert pre_commit("deepy-check-changed", ["alone.yml", "hosts"], environ)[0] == 0
    code, text = pre_commit("deepy-check-changed", ["configs/cluster.yml", "README.md"], environ)
    assert code == 1
    pinned(text, "GPUs: ")
    assert pre_commit("deepy-check-changed", ["deepy.toml"], environ)[0] == 1
    assert pre_commit("deepy-check", ["alone.yml"], environ)[0] == 1
    assert pre_commit("deepy-check", ["alone.yml"], environ, "alone.yml", "--gpus", "8")[0] == 0


def test_the_action_annotates_the_lines(repository: Written, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert {"name", "description", "runs"} <= action.keys() and action["runs"]["using"] == "composite"
    install, step = action["runs"]["steps"]
    assert install["shell"] == step["shell"] == "bash" and step["env"] == {"ARGS": "${{ inputs.args }}"}
    environ = programs(tmp_path / ".git" / "deepy" / "bin") | {"RUNNER_TEMP": str(tmp_path / ".git")}
    broken(repository)
    outputs = []
    for args, code in (("", 1), ("alone.yml --gpus 8", 0)):
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(words, env=environ | {"ARGS": args}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (code, "")
        REQUIRED["github"](done.stdout)
        outputs.append(done.stdout)
    places = (
        "file=configs/common.yml,line=5,col=1,",
        "file=configs/cluster.yml,line=1,col=22,",
        "file=alone.yml,line=8,",
    )
    assert [outputs[0].count(place) > 0 for place in places] == [True] * 3 and outputs[1]
