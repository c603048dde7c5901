"""`deepy migrate` as it is typed: what is shown, what is written, and that nothing is ever half-written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.problems import Problems
from neoxargs.resolve import Text
from neoxargs.tools.write import diff, write_all

OLD = """\
# ours
num-layers: 4
hidden-size: 64
num-attention-heads: 4
seq-length: 16
train-iters: 10
train_batch_size: 4
gradient_clipping: 1.0
hidden-dropout: 0
attention-dropout: 0
geglu: true  # gated
"""
SHOWN = """\
--- my.yml
+++ my.yml
@@ -9,3 +9,7 @@
 hidden-dropout: 0
 attention-dropout: 0
-geglu: true  # gated
+activation: geglu  # gated
+# defaults of neox-2021 that neox-2026 has otherwise
+weight-decay: 0.01
+deepspeed-activation-checkpointing: false
+dialect: neox-2026
"""
SAID = """\
my.yml:11:1: geglu: true → activation: "geglu" (retired, 2021-05-07)
my.yml: added weight_decay: 0.01 (the default changed: 0.1 in neox-2026, 2023-12-26)
my.yml: added deepspeed_activation_checkpointing: false (the default changed: true in neox-2026, 2021-04-30)
my.yml: added dialect: neox-2026 (all keys existed on 2021-02-28)
nothing is written yet: add --write
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yml").write_text(OLD)
    return tmp_path


def test_what_is_shown(capsys) -> None:
    assert main(["migrate", "my"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (SHOWN, SAID)
    assert Path("my.yml").read_text() == OLD


def test_write_and_write_again(capsys) -> None:
    os.chmod("my.yml", 0o640)
    assert main(["migrate", "my.yml", "--write"]) == 0
    assert capsys.readouterr().err.endswith("\nwritten\n")
    text = Path("my.yml").read_text()
    assert text.endswith("dialect: neox-2026\n")
    assert os.stat("my.yml").st_mode & 0o777 == 0o640
    assert main(["migrate", "my.yml", "--write"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "nothing to change for neox-2026\n")
    assert Path("my.yml").read_text() == text
    assert os.listdir() == ["my.yml"]


def test_json(capsys) -> None:
    assert main(["migrate", "my.yml", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] is True
    assert facts["written"] is False
    (file,) = facts["files"]
    assert (file["file"], file["diff"]) == ("my.yml", SHOWN)
    assert facts["changes"][0] == {
        "file": "my.yml", "line": 11, "column": 1, "before": "geglu: true", "after": 'activation: "geglu"',
        "why": "retired", "since": "2021-05-07",
    }  # fmt: skip


def test_a_problem_as_json(capsys) -> None:
    Path("my.yml").write_text(OLD + "hidden-sise: 3\n")
    assert main(["migrate", "my.yml", "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["what"], problem["line"], problem["hint"]) == (
        "hidden-sise is not a parameter", 12, "did you mean hidden_size? it is already set: remove one of the two"
    )  # fmt: skip


@pytest.mark.parametrize("words", [["nowhere.yml"], ["my.yml", "my.yml"]])
def test_a_problem(words: list[str], capsys) -> None:
    assert main(["migrate", *words]) == 1
    assert "error: " in capsys.readouterr().err


def test_a_byte_order_mark_stays(folder: Path) -> None:
    (folder / "my.yml").write_bytes(b"\xef\xbb\xbf" + OLD.encode())
    assert main(["migrate", "my.yml", "--write"]) == 0
    assert (folder / "my.yml").read_bytes().startswith(b"\xef\xbb\xbf# ours\n")


def test_all_files_or_none(folder: Path) -> None:
    (folder / "other.yml").write_text("other")
    texts = [Text("my.yml", "new"), Text("no-such-folder/other.yml", "new")]
    with pytest.raises(Problems, match=r"no-such-folder/other.yml: error: this cannot be written: no such file"):
        write_all(texts)
    assert (folder / "my.yml").read_text() == OLD
    assert sorted(os.listdir()) == ["my.yml", "other.yml"]


def test_a_file_that_is_in_place_already_is_put_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other.yml").write_text("other")
    replace = os.replace

    def refused_once(source: str, target: str) -> None:
        if target.endswith("other.yml"):
            raise PermissionError(1, "Operation not permitted")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refused_once)
    with pytest.raises(Problems, match=r"^other.yml: error: this cannot be written: operation not permitted"):
        write_all([Text("my.yml", "new"), Text("fresh.yml", "new"), Text("other.yml", "new"), Text("last.yml", "new")])
    assert (folder / "my.yml").read_text() == OLD
    assert sorted(os.listdir()) == ["my.yml", "other.yml"]


def test_a_file_that_may_not_be_written_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everything
    with pytest.raises(Problems, match=r"my.yml: error: this cannot be written: permission denied"):
        write_all([Text("my.yml", "new")])
    assert (Path("my.yml").read_text(), os.listdir()) == (OLD, ["my.yml"])


def test_a_link_stays_one(folder: Path) -> None:
    os.symlink("my.yml", "link.yml")
    write_all([Text("link.yml", "new")])
    assert (Path("link.yml").is_symlink(), Path("my.yml").read_text()) == (True, "new")


@pytest.mark.parametrize(("most", "one"), [("\r\n", "\n"), ("\n", "\r\n")])
def test_line_ends_of_both_kinds(most: str, one: str, folder: Path) -> None:
    """What is new ends as most lines do, and nothing is cut from the line behind one that goes."""
    text = OLD.replace("geglu: true  # gated\n", f"DDP-impl: torch{one}seed: 1\n").replace("\r\n", "\n")
    (folder / "my.yml").write_bytes(text.replace("\n", most).replace(f"torch{most}", f"torch{one}").encode())
    assert main(["migrate", "my.yml", "--write"]) == 0
    lines = (folder / "my.yml").read_bytes().decode().split(most)
    assert lines[10:13] == ["seed: 1", "# defaults of neox-2021 that neox-2026 has otherwise",
                            "weight-decay: 0.01"]  # fmt: skip


def test_nothing_is_overwritten_unasked() -> None:
    with pytest.raises(Problems, match=r"my\.yml: error: this file exists"):
        write_all([Text("my.yml", "new")], replace=False)
    assert Path("my.yml").read_text() == OLD


def test_a_diff_has_the_lines_that_patch_counts() -> None:
    shown = diff(Text("a", "x\u2028y # b\nz"), Text("a", "x\u2028y # c\nz"))
    assert "@@ -1,2 +1,2 @@\n-x\u2028y # b\n+x\u2028y # c\n z\n" in shown


def test_a_diff_says_where_no_newline_ends_the_file() -> None:
    shown = diff(Text("a", "x\ny"), Text("a", "x\nz"))
    assert shown.endswith("-y\n\\ No newline at end of file\n+z\n\\ No newline at end of file\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["my.yml", "-o", "new.yml"], "-o has no meaning for GPT-NeoX's YAML, which is edited in place"),
        (["my.yml", "--choose", "2"], "--choose has no meaning for GPT-NeoX's YAML, which is edited in place"),
        (["my.yml", "--choose", "0"], "--choose has no meaning for GPT-NeoX's YAML, which is edited in place"),
        (["ds.json", "--write"], "--write needs -o FILE: what this becomes is a new file"),
        (["ds.json", "--to", "neox-2021"], "--to neox-2021 is for GPT-NeoX's YAML; other files become neox-2026"),
    ],
)
def test_options_that_would_be_ignored(words: list[str], said: str, capsys) -> None:
    Path("ds.json").write_text('{"train_batch_size": 4}')
    assert main(["migrate", *words]) == 1
    assert f"error: {said}" in capsys.readouterr().err


SIZES = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 2 --train-iters 9"
REDUCED = '{"train_batch_size": 4, "compression_training": {"layer_reduction": {"enabled": true}}}'


@pytest.mark.parametrize(
    ("source", "text", "name"),
    [
        ("run.sh", f"python pretrain_gpt.py {SIZES} --num-experts 4", "moe_num_experts (4)"),
        ("ds.json", REDUCED, "compression_training.layer_reduction.enabled (true)"),
    ],
)
def test_what_train_py_cannot_run_is_told_at_once(source: str, text: str, name: str, capsys) -> None:
    """With the line of the new file, whose writing it does not stop; `check` says the same."""
    Path(source).write_text(text)
    assert main(["migrate", source, "-o", "new.yml"]) == 0
    told = capsys.readouterr().err
    assert f"warning: {name} is not supported by train.py yet" in told
    where = told.partition(f": warning: {name}")[0].splitlines()[-1]
    assert main(["check", "new.yml", "--gpus", "1"]) == 1
    assert f"{where}: error: {name} is not supported by train.py yet" in capsys.readouterr().err
    assert main(["migrate", source, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    found = [problem for problem in facts["problems"] if problem["what"].startswith(name)]
    assert [(problem["severity"], problem["file"]) for problem in found] == [("warning", "new YAML")]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("run.sh", f"python pretrain_gpt.py {SIZES} --swiglu --bf16"),
        ("ds.json", '{"train_batch_size": 4, "zero_optimization": {"stage": 1}}'),
    ],
)
def test_what_train_py_can_run_is_not_warned_of(source: str, text: str, capsys) -> None:
    Path(source).write_text(text)
    assert main(["migrate", source]) == 0
    assert "train.py" not in capsys.readouterr().err
