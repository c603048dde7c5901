"""A model that is far from as large as its file's name says is told, and no published one is."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from neoxargs.checks.claimed_size import claimed
from neoxargs.cli import main
from tests.support.paths import CONFIGS, corpus_files, needs_corpus
from tests.support.snapshots import pinned

ID = "size-unlike-the-name"
LLAMA = (CONFIGS / "models" / "llama-2-7b.yml").read_text(encoding="utf-8")
GEMMA = (CONFIGS / "models" / "gemma-2-27b.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("llama-2-7b", [7e9]),
        ("2-7B", [7e9, 2.7e9]),
        ("tune_1-3B", [3e9, 1.3e9]),
        ("pythia-1.4b-deduped", [1.4e9]),
        ("125M", [125e6]),
        ("mixtral-8x7b", []),
        ("step-100b2", []),
        ("my", []),
    ],
)
def test_the_number_in_a_name(name: str, numbers: list[float]) -> None:
    assert claimed(name) == pytest.approx(numbers)


def told(path: Path) -> list[str]:
    """Of files with other errors, too: many published ones leave the batch to another file."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        main(["check", str(path), "--gpus", "8", "--json"])
    return [problem["what"] for problem in json.loads(text.getvalue())["problems"] if problem["id"] == ID]


def test_widths_in_the_other_convention_are_found_by_the_name(tmp_path: Path) -> None:
    """Three times the width of each matrix, where each is meant; and a multiple of 3 where each is not."""
    wide, narrow = tmp_path / "llama-7b.yml", tmp_path / "gemma-27b.yml"
    wide.write_text(f"{LLAMA}exact_mlp_width: true\n")
    narrow.write_text(GEMMA.replace("intermediate_size: 110592", "intermediate_size: 36864"))
    pinned("\n".join([*told(wide), *told(narrow)]))
    unnamed = tmp_path / "model.yml"
    unnamed.write_text(wide.read_text())
    assert told(unnamed) == []


@pytest.mark.parametrize(
    "comment", ["# Llama 2\n#\n# A 7B model.\n", "# 7 billion parameters\n\n", "# ours, 6.7b-parameter, 300B tokens\n"]
)
def test_the_first_comment_claims_a_size_too(comment: str, tmp_path: Path) -> None:
    model = tmp_path / "model.yml"
    model.write_text(comment + LLAMA)
    assert told(model) == []
    model.write_text(f"{comment}{LLAMA}exact_mlp_width: true\n")
    [what] = told(model)
    assert "the first comment of" in what


@pytest.mark.parametrize(
    "comment", ["# 300B tokens\n", "# as the 70B models\n# see 8x7b model\n", "x: 1 # a 2B model\n"]
)
def test_other_numbers_claim_nothing(comment: str, tmp_path: Path) -> None:
    model = tmp_path / "model.yml"
    model.write_text(f"{comment}{LLAMA}exact_mlp_width: true\n")
    assert told(model) == []


@pytest.mark.parametrize("path", sorted((CONFIGS / "models").glob("*.yml")), ids=lambda path: path.stem)
def test_no_shipped_model_is_told(path: Path) -> None:
    assert told(path) == []


@needs_corpus
def test_of_published_models_one_has_not_the_size_of_its_name() -> None:
    """CodeLlama's feed-forward layers have a width of 22016; without intermediate_size, this file's have 10922."""
    assert [path.stem for path in corpus_files() if told(path)] == ["codellama_34B"]
