"""A checkpoint whose embedding belongs to another tokenizer is told before the ranks start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem
from neoxargs.base.request import Request
from neoxargs.checks.all import fit_of_checkpoint
from neoxargs.checks.checkpoint.model import loaded_checkpoint
from neoxargs.checks.checkpoint.vocabulary import other_vocabulary
from neoxargs.commands.check.command import find_problems
from neoxargs.config.config import Config
from tests.support import smallest
from tests.support.configure import recorded, smallest_run
from tests.support.snapshots import pinned

BYTES = "tokenizer_type: ByteLevelTokenizer\n"
SAVED = {"tokenizer_type": "ByteLevelTokenizer"}


def checkpoint(folder: Path, rows: int | None = 384, ranks: int = 1, **saved: Any) -> Path:
    """Write a checkpoint of iteration 10. rows: of each rank's embedding; None for one that lists no weights."""
    made = recorded(folder, {"num_layers": 2, "hidden_size": 64, **saved})
    if rows is not None:
        shard = [0, 1, 0, ranks] if ranks > 1 else None
        weights = {"embedding.word_embeddings.weight": ["mp_rank_00_model_states.pt", "x", [rows, 64], shard]}
        (made / "layout-mp_rank_00.json").write_text(json.dumps({"weights": weights}))
    sizes = {file.name: file.stat().st_size for file in made.iterdir() if file.name != "files.json"}
    (made / "files.json").write_text(json.dumps(sizes))
    return made


def resolved(folder: Path, text: str) -> Config:
    return smallest_run(f"load: {folder}\n{text}")


def told(folder: Path, text: str = BYTES) -> list[Problem]:
    config = resolved(folder, text)
    return list(other_vocabulary(config, loaded_checkpoint(config)))


def test_the_tokenizer_of_the_checkpoint_is_accepted_with_any_padding(tmp_path: Path) -> None:
    checkpoint(tmp_path, **SAVED)
    assert told(tmp_path) == []
    assert told(tmp_path, f"{BYTES}make_vocab_size_divisible_by: 1\n") == []
    checkpoint(tmp_path, 257, **SAVED)  # imported from another program, which did not pad it
    assert told(tmp_path) == []
    checkpoint(tmp_path, 192, 2, **SAVED)
    assert told(tmp_path) == []


def test_a_record_may_have_other_spellings_and_names_of_other_versions(tmp_path: Path) -> None:
    checkpoint(tmp_path, 384, **{"tokenizer-type": "ByteLevelTokenizer", "unknown_name": 1})
    assert told(tmp_path) == []


def test_another_tokenizer_is_a_warning_at_its_line(tmp_path: Path) -> None:
    checkpoint(tmp_path, 512, tokenizer_type="CharLevelTokenizer")
    other, dropped = told(tmp_path)
    assert (other.severity, other.id) == ("warning", "checkpoint-other-vocabulary")
    pinned(other)
    assert other.where and other.where.text.startswith("tokenizer_type")
    pinned(dropped)


def test_files_are_compared_by_their_content(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text('{"a": 0, "b": 1}')
    other.write_text('{"a": 0, "b": 1}')
    checkpoint(tmp_path, 128, tokenizer_type="HFTokenizer", vocab_file=str(one))
    text = f"tokenizer_type: HFTokenizer\nvocab_file: {other}\n"
    assert told(tmp_path, text) == []
    other.write_text('{"b": 0, "a": 1}')
    [problem] = told(tmp_path, text)
    assert problem.about == ("vocab_file", "load")
    pinned(problem)
    one.unlink()
    assert told(tmp_path, text) == []


def test_tokens_without_a_row_are_counted(tmp_path: Path) -> None:
    checkpoint(tmp_path, 128, 2, **SAVED)
    [problem] = told(tmp_path)
    assert problem.severity == "warning"
    assert "has 257 tokens" in problem.what
    pinned(problem)


def test_rows_beyond_the_padding_are_counted_without_the_saved_tokenizer(tmp_path: Path) -> None:
    checkpoint(tmp_path, 640, tokenizer_type="SPMTokenizer", vocab_file="gone.model")
    _, problem = told(tmp_path)
    pinned(problem)  # 640 rows have at least 513 tokens
    checkpoint(tmp_path, 640, padded_vocab_size=640, tokenizer_type="SPMTokenizer", vocab_file="gone.model")
    assert [problem.about[0] for problem in told(tmp_path)] == ["tokenizer_type"]


def test_rows_that_only_deepspeed_could_load_are_an_error(tmp_path: Path) -> None:
    checkpoint(tmp_path, None, **SAVED)
    assert told(tmp_path) == []
    [problem] = told(tmp_path, f"{BYTES}padded_vocab_size: 512\n")
    assert (problem.severity, problem.id) == ("error", "checkpoint-other-model")
    pinned(problem)


def test_check_and_generate_tell_it(tmp_path: Path) -> None:
    checkpoint(tmp_path, 512, tokenizer_type="CharLevelTokenizer")
    file = tmp_path / "my.yml"
    file.write_text(f"{smallest.YAML}{BYTES}finetune: true\nload: {tmp_path}\ntext_path: {file}\n")
    expected = "checkpoint-other-vocabulary"
    assert expected in {problem.id for problem in find_problems(Request([str(file)]))[1]}
    assert expected in {problem.id for problem in fit_of_checkpoint(resolved(tmp_path, BYTES))}


def test_the_frozen_model_is_compared_too(tmp_path: Path) -> None:
    checkpoint(tmp_path, 512, tokenizer_type="CharLevelTokenizer")
    text = f"{BYTES}finetune: true\nlora: {{rank: 2, targets: [dense]}}\nbase_checkpoint: {tmp_path}\n"
    assert {problem.id for problem in fit_of_checkpoint(smallest_run(text))} == {"checkpoint-other-vocabulary"}
