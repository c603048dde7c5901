"""Label files are compared with their token files before anything starts, all at once."""

from __future__ import annotations

from pathlib import Path

from neoxargs.launch.preflight.data_files import missing_files
from neoxargs.launch.preflight.labels import wrong_labels
from neoxargs.problems import Place
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Source, Value
from tests.support.finetuning import IGNORED, token_file

HERE = Place("my.yml", 3, 1)


def config(**values: object) -> Config:
    values = {"tokenizer_type": "ByteLevelTokenizer", **values}
    return Config({name: Value(value, Source("file", HERE)) for name, value in values.items()})


def test_every_pair_is_compared(tmp_path: Path) -> None:
    text = token_file(tmp_path / "text", [[1, 2, 3], [4, 5]])
    good = token_file(tmp_path / "good", [[IGNORED, 2, 3], [IGNORED] * 2])
    fewer = token_file(tmp_path / "fewer", [[1, 2, 3]])
    other = token_file(tmp_path / "other", [[1, 2, 3], [IGNORED, 6]])
    longer = token_file(tmp_path / "longer", [[1, 2, 3], [4, 5, 6]])
    found = config(
        train_data_paths=[text, text], train_label_data_paths=[good, fewer],
        valid_data_paths=f"{text},{text}", valid_label_data_paths=f"{other},{longer}",
        test_data_paths=[text], test_label_data_paths=[f"{tmp_path}/absent"],
    )  # fmt: skip
    problems = [*missing_files(found), *wrong_labels(found)]
    assert [(problem.what, problem.hint) for problem in problems] == [
        (
            f"test_label_data_paths: there is no {tmp_path}/absent.bin and no {tmp_path}/absent.idx",
            "deepy data --chat writes a token file together with its labels",
        ),
        (
            f"train_label_data_paths: {fewer} has 1 documents, but {text} has 2",
            "write both files from the same documents, in the same order",
        ),
        (
            f"valid_label_data_paths: {other} has label 6 at position 1 of document 1, where {text} has token 5",
            "write the token itself as its label, or -100 to exclude the token from the loss; do not shift the labels",
        ),
        (
            f"valid_label_data_paths: {longer} has 3 tokens in document 1, but {text} has 2",
            "write one label for each token of every document",
        ),
    ]
    assert all(problem.where == HERE and problem.severity == "error" for problem in problems)


def test_a_pair_of_two_splits_is_compared_once(tmp_path: Path) -> None:
    text, label = token_file(tmp_path / "a", [[1, 2]]), token_file(tmp_path / "b", [[1, 3]])
    paths = {f"{split}_data_paths": [text] for split in ("train", "valid", "test")}
    paths |= {f"{split}_label_data_paths": [label] for split in ("train", "valid", "test")}
    assert len(list(wrong_labels(config(**paths)))) == 1
