"""`--json`: every command prints one JSON document, and problems have one form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.cli import main
from tests.support import paths

QUICKSTART = str(paths.QUICKSTART)
FORM = {
    "id": str,
    "about": list,
    "severity": str,
    "what": str,
    "hint": str,
    "also": list,
    "file": str,
    "line": int,
    "column": int,
}
FLAGS = (
    "python pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
    "--max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 "
    "--data-path text --tokenizer-type GPT2BPETokenizer --vocab-file v.json --merge-file m.txt --split 98,1,1"
)
GOOD = [
    ["check", QUICKSTART, "--gpus", "4"],
    ["plan", QUICKSTART, "--gpus", "4"],
    ["explain", "hidden_size"],
    ["explain", "zero_stage", QUICKSTART, "--gpus", "4"],
    ["explain", "optimizer", QUICKSTART, "--gpus", "4"],
    ["explain", "betas"],
    ["explain", "--all", QUICKSTART, "--gpus", "4"],
    ["migrate", QUICKSTART],
    ["migrate", "run.sh"],
    ["train.py", QUICKSTART, "--dry-run", "--gpus", "4"],
]
BAD = [
    ["check", "bad.yml"],
    ["plan", "bad.yml"],
    ["explain", "no_such_key"],
    ["explain", "hidden_size", "bad.yml"],
    ["explain", "--all", "bad.yml"],
    ["migrate", "missing.yml"],
    ["checkpoints", "missing"],
    ["train.py", "bad.yml", "--dry-run"],
]


def printed(words: list[str], folder: Path, monkeypatch, capsys) -> tuple[int, dict, str]:
    monkeypatch.chdir(folder)
    Path("bad.yml").write_text("num_layers: many\nhiden_size: 3\n")
    Path("run.sh").write_text(FLAGS)
    code = main([*words, "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out), told.err


def well_formed(problems: list[dict]) -> bool:
    return all(
        set(problem) == set(FORM)
        and all(value is None or isinstance(value, FORM[key]) for key, value in problem.items())
        for problem in problems
    )


@pytest.mark.parametrize("words", GOOD, ids=lambda words: " ".join(words[:2]).replace(QUICKSTART, "FILE"))
def test_success_is_one_document(words, tmp_path, monkeypatch, capsys):
    code, facts, errors = printed(words, tmp_path, monkeypatch, capsys)
    assert (code, errors) == (0, "")
    assert words[0] == "train.py" or facts["ok"] is True
    assert well_formed(facts.get("problems", []) if words[0] == "train.py" else facts["problems"])


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_problems_have_one_form(words, tmp_path, monkeypatch, capsys):
    code, facts, errors = printed(words, tmp_path, monkeypatch, capsys)
    assert (code, errors) == (1, "")
    assert facts["ok"] is False
    assert facts["problems"]
    assert well_formed(facts["problems"])


def test_docs(tmp_path, monkeypatch, capsys):
    _, facts, _ = printed(["docs", "-o", str(tmp_path / "out")], tmp_path, monkeypatch, capsys)
    assert facts["ok"]
    assert str(tmp_path / "out" / "parameters.md") in facts["stale"]
