"""Runs that are the same, however they are written: before and after a migration, and on other layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.cli import main
from neoxargs.commands.diff.differences import ranked
from neoxargs.commands.diff.side import Side
from neoxargs.migrate.neox.migrate import migrate
from neoxargs.resolve import File, draft, read_files
from neoxargs.runs.lenient import resolved
from tests.support.paths import CORPUS, corpus_files, needs_corpus
from tests.support.selection import mostly_slow
from tests.support.smallest import YAML
from tests.support.snapshots import pinned

RANKS = 8
#: Files with a mistyped number, or with names that GPT-NeoX never had, which `migrate` refuses.
REFUSED = ("gmlp_small.yml", "llemma")
FILES = [str(path.relative_to(CORPUS)) for path in corpus_files() if not any(word in str(path) for word in REFUSED)]
#: Layouts to compare with one process.
LAYOUTS = {
    "tensor": "model_parallel_size: 2\n",
    "pipeline": "pipe_parallel_size: 2\n",
    "both, ZeRO-1": "model_parallel_size: 2\npipe_parallel_size: 2\nzero_optimization: {stage: 1}\n",
    "data, ZeRO-3": "global_num_gpus: 4\nzero_optimization: {stage: 3}\n",
}
COMMON = YAML.replace("train_micro_batch_size_per_gpu: 2", "train_batch_size: 16")
COMMON += "attention_dropout: 0\ndialect: neox-2026\n"


@needs_corpus
@pytest.mark.parametrize("to", ["neox-2021", "neox-2026"])
@pytest.mark.parametrize("name", mostly_slow(FILES, every=12))
def test_a_file_and_its_migration(name: str, to: str) -> None:
    texts = read_files([CORPUS / name])
    migrated = migrate(texts, to).texts
    drafted = draft([File(*text) for text in texts])
    # a file with a part of a configuration gets no dialect
    fixed = [] if "dialect" in draft([File(*text) for text in migrated]).values else [f"dialect={drafted.dialect.name}"]
    a, b = (
        Side("my.yml", "file", resolved(draft([File(*text) for text in each], fixed), RANKS)[0], RANKS)
        for each in (texts, migrated)
    )
    assert a.config.values
    assert {each.impact for each in ranked(a, b)} <= {"unread"}


@pytest.mark.parametrize("other", LAYOUTS)
def test_another_layout(other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(other, tmp_path) == 0
    pinned(capsys.readouterr().out, "the differences")


@pytest.mark.parametrize("other", ["tensor", "pipeline", "both, ZeRO-1"])
def test_another_layout_draws_other_dropout_masks(
    other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(other, tmp_path, "hidden_dropout: 0.1\n") == 1
    pinned(capsys.readouterr().out, "hidden_dropout is")


def compare(layout: str, folder: Path, more: str = "hidden_dropout: 0\n") -> int:
    """Return the exit code of a comparison of one process with another layout."""
    files = [folder / "one.yml", folder / "other.yml"]
    for file, lines in zip(files, ("", LAYOUTS[layout]), strict=True):
        file.write_text(COMMON + more + lines)
    return main(["diff", *map(str, files), "--allow-rounding"])
