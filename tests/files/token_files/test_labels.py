"""Labels are compared with their tokens, and trained tokens are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neoxargs.files.token_files import index, labels
from neoxargs.files.token_files.index import TokenFile
from tests.support.finetuning import IGNORED, drawn, labelled, pair, token_file


def opened(folder: Path, documents: list[list[int]], own: list[list[int]]) -> tuple[TokenFile, TokenFile]:
    text, label = (index.read(prefix) for prefix in pair(folder, documents, own))
    assert text is not None and label is not None
    return text, label


def test_a_file_is_read(tmp_path: Path) -> None:
    documents = drawn(20, 9)
    file = index.read(token_file(tmp_path / "a", documents))
    assert file is not None
    assert file.lengths.tolist() == [len(document) for document in documents]
    assert [file.ids[a:b].tolist() for a, b in zip(file.begins, file.begins[1:], strict=False)] == documents


def test_other_formats_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    assert index.read(str(tmp_path / "a")) is None
    (tmp_path / "a.idx").write_bytes(b"TNTIDX\x00\x00" + bytes(40))
    assert index.read(str(tmp_path / "a")) is None


@pytest.mark.parametrize("at_once", [7, 1 << 24])
def test_the_first_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(labels, "AT_ONCE", at_once)
    documents = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    good = [[IGNORED, 2, 3], [IGNORED, IGNORED], [6, IGNORED, 8, 9]]
    assert labels.mismatch(*opened(tmp_path, documents, good)) is None
    cases = {
        "has 2 documents, but {} has 3": good[:2],
        "has 3 tokens in document 1, but {} has 2": [good[0], [IGNORED] * 3, good[2]],
        "has label 9 at position 2 of document 2, where {} has token 8": [*good[:2], [6, 7, 9, IGNORED]],
        "has label 5 at position 0 of document 1, where {} has token 4": [good[0], [5, IGNORED], [7, 8, 9, 0]],
        "has label -1 at position 1 of document 0, where {} has token 2": [[1, -1, 3], *good[1:]],
    }
    for expected, own in cases.items():
        found = labels.mismatch(*opened(tmp_path, documents, own))
        assert found is not None and found.text == expected.format(tmp_path / "text")


def test_labels_of_a_type_without_negative_numbers(tmp_path: Path) -> None:
    text = index.read(token_file(tmp_path / "a", [[1, 2]], np.uint16))
    label = index.read(token_file(tmp_path / "b", [[65536 - 100, 2]], np.uint16))
    assert text is not None and label is not None
    found = labels.mismatch(text, label)
    assert found is not None and found.text.startswith("has label 65436 at position 0 of document 0")


@pytest.mark.parametrize("at_once", [1, 30, 1 << 24])
@pytest.mark.parametrize("window", [1, 2, 7, 100])
def test_trained_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, at_once: int) -> None:
    monkeypatch.setattr(labels, "AT_ONCE", at_once)
    documents = drawn(50, 20, seed=2)
    own = labelled(documents, seed=3)
    _, file = opened(tmp_path, documents, own)
    expected = [sum(label != IGNORED for label in row[1:window]) for row in own]
    assert labels.trained_tokens(file, slice(0, 50), window).tolist() == expected
    assert labels.trained_tokens(file, slice(11, 29), window).tolist() == expected[11:29]
    assert labels.trained_tokens(file, slice(3, 3), window).tolist() == []
