"""The command line of `deepy migrate`: its output, the files it writes, and that it writes all of them or none."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems
from neoxargs.base.write_files import diff, write_all
from neoxargs.cli import main
from tests.support.snapshots import pinned

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
DIFF = """\
--- my.yml
+++ my.yml
@@ -9,3 +9,7 @@
 hidden-dropout: 0
 attention-dropout: 0
-geglu: true  # gated
+activation: geglu  # gated
+# defaults of neox-2021 that differ in neox-2026
+weight-decay: 0.01
+warmup-from-zero: true
+dialect: neox-2026
"""
CHANGES = """\
my.yml:11:1: geglu: true → activation: "geglu" (retired, 2021-05-07)
my.yml: added weight_decay: 0.01 (the default changed to 0.1, 2023-12-26)
my.yml: added warmup_from_zero: true (the default changed to false, 2026-05-19)
my.yml: added dialect: neox-2026 (the file was read as neox-2021, because all keys existed in GPT-NeoX on 2021-02-28, \
and geglu (my.yml:11:1) was removed on 2021-05-07)
nothing written yet: add --write to apply the changes
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yml").write_text(OLD)
    return tmp_path


def test_output_without_write(capsys) -> None:
    assert main(["migrate", "my"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (DIFF, CHANGES)
    assert Path("my.yml").read_text() == OLD


def test_writing_twice_changes_nothing(capsys) -> None:
    os.chmod("my.yml", 0o640)
    assert main(["migrate", "my.yml", "--write"]) == 0
    assert capsys.readouterr().err.endswith("\nmy.yml written\n")
    text = Path("my.yml").read_text()
    assert text.endswith("dialect: neox-2026\n")
    assert os.stat("my.yml").st_mode & 0o777 == 0o640
    assert main(["migrate", "my.yml", "--write"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    pinned(err)
    assert Path("my.yml").read_text() == text
    assert os.listdir() == ["my.yml"]


def test_json(capsys) -> None:
    assert main(["migrate", "my.yml", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert answer["written"] is False
    (file,) = answer["files"]
    assert (file["file"], file["diff"]) == ("my.yml", DIFF)
    assert answer["problems"] == []  # a key that was removed in 2021 leaves no doubt about the dialect
    assert answer["changes"][0] == {
        "file": "my.yml", "line": 11, "column": 1, "before": "geglu: true", "after": 'activation: "geglu"',
        "why": "retired", "since": "2021-05-07",
    }  # fmt: skip


def test_the_way_that_the_warning_names_keeps_the_old_defaults(capsys) -> None:
    Path("my.yml").write_text(OLD.replace("geglu: true", "activation: geglu\ndialect: 2022-06-01"))
    assert main(["migrate", "my.yml", "--write"]) == 0
    assert "guess" not in capsys.readouterr().err
    text = Path("my.yml").read_text()
    assert "weight-decay: 0.01\n" in text and "dialect: neox-2026 " in text and "guess" not in text


def test_a_parameter_without_effect_is_not_added(capsys) -> None:
    """weighted_sampler_alpha is used only with weight_by_num_documents; nothing reads output_layer_parallelism."""
    alpha = "weighted-sampler-alpha: 0.3\n"
    for text, added in ((OLD, False), (OLD + "weight-by-num-documents: true\n", True)):
        Path("my.yml").write_text(text.replace("geglu: true", "dialect: 2022-06-01"))
        assert main(["migrate", "my.yml", "--write"]) == 0
        assert (alpha in Path("my.yml").read_text()) is added
        assert "output-layer-parallelism" not in Path("my.yml").read_text()


def test_a_problem_as_json(capsys) -> None:
    Path("my.yml").write_text(OLD + "hidden-sise: 3\n")
    assert main(["migrate", "my.yml", "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["line"] == 12
    pinned(problem["what"])
    pinned(problem["hint"])


@pytest.mark.parametrize("words", [["nowhere.yml"], ["my.yml", "my.yml"]])
def test_a_problem(words: list[str], capsys) -> None:
    assert main(["migrate", *words]) == 1
    assert "error: " in capsys.readouterr().err


def test_a_byte_order_mark_is_kept(folder: Path) -> None:
    (folder / "my.yml").write_bytes(b"\xef\xbb\xbf" + OLD.encode())
    assert main(["migrate", "my.yml", "--write"]) == 0
    assert (folder / "my.yml").read_bytes().startswith(b"\xef\xbb\xbf# ours\n")


def test_all_files_or_none(folder: Path) -> None:
    (folder / "other.yml").write_text("other")
    texts = [Text("my.yml", "new"), Text("no-such-folder/other.yml", "new")]
    with pytest.raises(Problems, match=r"no-such-folder/other.yml: error: this file cannot be written: no such file"):
        write_all(texts)
    assert (folder / "my.yml").read_text() == OLD
    assert sorted(os.listdir()) == ["my.yml", "other.yml"]


def test_files_already_replaced_are_restored_on_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other.yml").write_text("other")
    replace = os.replace

    def refused_once(source: Path, target: Path) -> None:
        if target.name == "other.yml":
            raise PermissionError(1, "Operation not permitted", str(source), None, str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refused_once)
    with pytest.raises(Problems, match=r"^other.yml: error: this file cannot be written: operation not permitted"):
        write_all([Text("my.yml", "new"), Text("fresh.yml", "new"), Text("other.yml", "new"), Text("last.yml", "new")])
    assert (folder / "my.yml").read_text() == OLD
    assert sorted(os.listdir()) == ["my.yml", "other.yml"]


def test_ctrl_c_while_a_file_is_written_leaves_nothing_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    before = sorted(folder.iterdir())
    monkeypatch.setattr("neoxargs.base.write_files.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_all([Text("my.yml", "new")])
    assert sorted(folder.iterdir()) == before


def test_a_read_only_file_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # no file mode stops root
    with pytest.raises(Problems, match=r"my.yml: error: this file cannot be written: permission denied"):
        write_all([Text("my.yml", "new")])
    assert (Path("my.yml").read_text(), os.listdir()) == (OLD, ["my.yml"])


def test_a_symbolic_link_is_kept(folder: Path) -> None:
    os.symlink("my.yml", "link.yml")
    write_all([Text("link.yml", "new")])
    assert (Path("link.yml").is_symlink(), Path("my.yml").read_text()) == (True, "new")


@pytest.mark.parametrize(("most", "one"), [("\r\n", "\n"), ("\n", "\r\n")])
def test_mixed_line_ends(most: str, one: str, folder: Path) -> None:
    """New lines end like most lines, and removing a line leaves the next one complete."""
    text = OLD.replace("geglu: true  # gated\n", f"DDP-impl: torch{one}seed: 1\n").replace("\r\n", "\n")
    (folder / "my.yml").write_bytes(text.replace("\n", most).replace(f"torch{most}", f"torch{one}").encode())
    assert main(["migrate", "my.yml", "--write"]) == 0
    lines = (folder / "my.yml").read_bytes().decode().split(most)
    pinned(lines[10:13])


def test_an_existing_file_is_not_overwritten_without_replace() -> None:
    with pytest.raises(Problems, match=r"my\.yml: error: this file already exists"):
        write_all([Text("my.yml", "new")], replace=False)
    assert Path("my.yml").read_text() == OLD


def test_a_diff_splits_lines_as_patch_does() -> None:
    text = diff(Text("a", "x\u2028y # b\nz"), Text("a", "x\u2028y # c\nz"))
    assert "@@ -1,2 +1,2 @@\n-x\u2028y # b\n+x\u2028y # c\n z\n" in text


def test_a_diff_marks_a_missing_newline_at_the_end() -> None:
    text = diff(Text("a", "x\ny"), Text("a", "x\nz"))
    assert text.endswith("-y\n\\ No newline at end of file\n+z\n\\ No newline at end of file\n")


def test_every_option_that_does_not_apply_is_reported(capsys) -> None:
    Path("ds.json").write_text('{"train_batch_size": 4}')
    assert main(["migrate", "ds.json", "--to", "neox-2021", "--write", "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["what"].split()[0] for problem in problems] == ["--write", "--to"]


@pytest.mark.parametrize("words", [
    ["my.yml", "ds.json", "-o", "new.yml"], ["my.yml", "--choose", "2"], ["my.yml", "--choose", "0"],
    ["ds.json", "--write"], ["ds.json", "--to", "neox-2021"],
])  # fmt: skip
def test_options_that_do_not_apply_are_refused(words: list[str], capsys) -> None:
    Path("ds.json").write_text('{"train_batch_size": 4}')
    assert main(["migrate", *words]) == 1
    pinned(capsys.readouterr().err)


def test_a_neox_file_can_be_written_to_another_file(capsys) -> None:
    before = Path("my.yml").read_text()
    assert main(["migrate", "my.yml"]) == 0
    changed = [line[1:] for line in capsys.readouterr().out.splitlines() if re.match(r"\+[^+]", line)]
    assert main(["migrate", "my.yml", "-o", "new.yml"]) == 0
    assert capsys.readouterr().err.endswith("new.yml written\n")
    assert changed and set(changed) <= set(Path("new.yml").read_text().splitlines())
    assert main(["migrate", "my.yml", "-o", "new.yml"]) == 1
    pinned(capsys.readouterr().err, "[output-file-exists]")
    Path("new.yml").write_text("")
    assert main(["migrate", "my.yml", "-o", "new.yml", "--write"]) == 0
    assert Path("new.yml").read_text() and Path("my.yml").read_text() == before


SIZES = (
    "--lr 1e-3 --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--micro-batch-size 2 --train-iters 9"
)
REDUCED = '{"train_batch_size": 4, "compression_training": {"layer_reduction": {"enabled": true}}}'


def test_settings_that_train_py_cannot_run_are_warnings(capsys) -> None:
    """The warning has the line of the new file, which is written anyway and says the same at its top; `check` reports
    it as an error."""
    source, name = "ds.json", "compression_training.layer_reduction.enabled (true)"
    Path(source).write_text(REDUCED)
    assert main(["migrate", source, "-o", "new.yml"]) == 1
    pinned([line for line in Path("new.yml").read_text().splitlines() if line.startswith("#")])
    err = capsys.readouterr().err
    assert f"warning: {name} is not supported by train.py: DeepSpeed compresses only" in err
    assert main(["check", "new.yml", "--gpus", "1"]) == 1
    pinned(capsys.readouterr().err, "[not-built]")
    assert main(["migrate", source, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    about = [problem for problem in answer["problems"] if problem["what"].startswith(name)]
    assert [(problem["severity"], problem["file"]) for problem in about] == [("warning", "new YAML")]


def test_settings_that_exclude_each_other_are_warnings(capsys) -> None:
    """In a part of a run, they are what check would refuse of its own settings alone."""
    optimizer = {"type": "OneBitAdam", "params": {"lr": 1e-3, "freeze_step": 9}}
    Path("ds.json").write_text(json.dumps({"sequence_parallel_size": 2, "optimizer": optimizer}))
    assert main(["migrate", "ds.json", "--json"]) == 1
    found = {problem["id"]: problem["severity"] for problem in json.loads(capsys.readouterr().out)["problems"]}
    assert found == {"migrate-model-missing": "warning", "context-parallel-excludes": "warning"}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("run.sh", f"python pretrain_gpt.py {SIZES} --swiglu --bf16"),
        ("ds.json", '{"train_batch_size": 4, "zero_optimization": {"stage": 1}}'),
    ],
)
def test_settings_that_train_py_can_run_give_no_warning(source: str, text: str, capsys) -> None:
    Path(source).write_text(text)
    assert main(["migrate", source]) == 0
    assert "train.py" not in capsys.readouterr().err


def test_what_check_refuses_of_a_new_file_is_said_at_its_top(tmp_path: Path) -> None:
    script, new = tmp_path / "run.sh", tmp_path / "new.yml"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 --lr 1e-4 "
        "--train-iters 1000 --weight-decay-incr-style linear --start-weight-decay 0.1 --data-path a "
        "--tokenizer-type GPT2BPETokenizer --vocab-file v.json --merge-file m.txt\n"
    )
    assert main(["migrate", str(script), "-o", str(new)]) == 1
    said = new.read_text().splitlines()[1]
    assert said.startswith("# TODO: ") and "end_weight_decay" in said
