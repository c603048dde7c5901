"""Labels that leave out the beginning of each document, up to a delimiter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from neoxargs.data import command, mask_before
from neoxargs.files.token_files.index import IGNORED
from tests.support.chat import read_tokens
from tests.support.refused import refused
from tests.support.snapshots import pinned

#: "A:" in bytes.
DELIMITER = "65,58"
DOCUMENTS = ["Q: 1 + 1?\nA: 2", "no delimiter", "A: A: twice", "ends with A:", "AA:A"]


def neox_labels(tokens: list[int], delimiter: list[int]) -> list[int]:
    """Return labels by GPT-NeoX's rule, read literally."""
    for start in range(len(tokens) - len(delimiter) + 1):
        stop = start + len(delimiter)
        if tokens[start:stop] == delimiter:
            return [IGNORED] * stop + tokens[stop:]
    return tokens


def run(folder: Path, *words: str) -> None:
    options = ["--tokenizer-type", "ByteLevelTokenizer", "--output-prefix", str(folder / "x")]
    assert command.main([*options, "--mask-before-token", DELIMITER, *words]) == 0


def test_json_lines_with_the_flags_of_gpt_neox(tmp_path, capsys) -> None:
    source = tmp_path / "c.jsonl"
    source.write_text("".join(json.dumps({"body": text}) + "\n" for text in DOCUMENTS))
    run(tmp_path, "--input", str(source), "--jsonl-keys", "body", "--num-docs", "5", "--dataset-impl", "mmap")
    expected = [neox_labels([*text.encode(), 256], [65, 58]) for text in DOCUMENTS]
    assert read_tokens(tmp_path / "x_label") == expected
    prefix = tmp_path / "x"
    assert capsys.readouterr().out.endswith(
        f'to use it  train_data_paths: ["{prefix}"]\n           train_label_data_paths: ["{prefix}_label"]\n'
    )


def test_a_document_in_pieces(tmp_path) -> None:
    """The delimiter is searched in the whole document, although a long file is several sequences."""
    texts = ["line\n" * 3000 + "A:\n" + "line\n" * 3000, "line\n" * 3000]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    run(tmp_path, str(tmp_path / "*.txt"))
    index = np.fromfile(tmp_path / "x_label.idx", np.int64, offset=18, count=2)
    assert index[0] > 2 and index[1] == 3, "more sequences than documents"
    labels = np.fromfile(tmp_path / "x_label.bin", np.int32).tolist()
    assert labels == [label for text in texts for label in neox_labels([*text.encode(), 256], [65, 58])]
    assert (
        Path(tmp_path / "x.idx").read_bytes()[34:][: 4 * index[0]]
        == (tmp_path / "x_label.idx").read_bytes()[34:][: 4 * index[0]]
    )


def test_labels_are_written_again_if_anything_changed(tmp_path, monkeypatch) -> None:
    (tmp_path / "c.txt").write_text("Q A: x")
    written = []
    write = mask_before.write
    monkeypatch.setattr(mask_before, "write", lambda *args: (written.append(args[1]), write(*args)))
    words = (str(tmp_path / "c.txt"), "--if-missing")
    run(tmp_path, *words)
    run(tmp_path, *words)
    assert len(written) == 1
    run(tmp_path, *words, "--mask-before-token", "65")
    run(tmp_path, *words)
    (tmp_path / "x_label.bin").unlink()
    run(tmp_path, *words)
    (tmp_path / "c.txt").write_text("Q A: changed")
    run(tmp_path, *words)
    assert written == [(65, 58), (65,), (65, 58), (65, 58), (65, 58)]


def test_what_is_refused(tmp_path, capsys) -> None:
    pinned(refused(mask_before.parse, "A:"))
    assert command.main(["x.txt", "--output-prefix", str(tmp_path / "x"), "--ftfy"]) == 1
    assert capsys.readouterr().err.startswith("error: --ftfy is not supported")
    assert not list(tmp_path.iterdir())
