"""Documents that fit into no sample, and labels of other tokens, are told before anything starts, all at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoxargs.checks.data import documents
from neoxargs.checks.data.files import missing_files
from tests.support.configure import HERE
from tests.support.configure import written as config
from tests.support.finetuning import IGNORED, token_file
from tests.support.snapshots import pinned


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
    problems = [*missing_files(found), *documents.wrong_labels(found)]
    pinned(problems)
    assert all(problem.where == HERE and problem.severity == "error" for problem in problems)


def test_a_pair_of_two_splits_is_compared_once(tmp_path: Path) -> None:
    text, label = token_file(tmp_path / "a", [[1, 2]]), token_file(tmp_path / "b", [[1, 3]])
    paths = {f"{split}_data_paths": [text] for split in ("train", "valid", "test")}
    paths |= {f"{split}_label_data_paths": [label] for split in ("train", "valid", "test")}
    assert len(list(documents.wrong_labels(config(**paths)))) == 1


def without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("neoxargs.files.token_files.")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(sys.modules["neoxargs.files.token_files"], name.rpartition(".")[2], raising=False)
    monkeypatch.setitem(sys.modules, "numpy", None)


def test_labels_that_cannot_be_compared_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = token_file(tmp_path / "text", [[1, 2]])
    found = config(train_data_paths=[text], train_label_data_paths=[text])
    assert list(documents.wrong_labels(found)) == []
    without_numpy(monkeypatch)
    [problem] = documents.wrong_labels(found)
    assert (problem.severity, problem.id) == ("warning", "check-skipped")
    pinned(problem)
    assert list(documents.wrong_labels(config(train_data_paths=[text]))) == []


def test_documents_that_all_are_longer_than_a_sample_are_an_error(tmp_path: Path) -> None:
    text, other = (token_file(tmp_path / name, [[1] * 10, [2] * 9]) for name in ("text", "other"))
    settings: dict[str, Any] = {"pack_impl": "best_fit", "allow_chopped": False, "data_path": [text, other]}
    [problem] = documents.no_document_fits(config(**settings, seq_length=7))
    assert (problem.severity, problem.id, problem.where) == ("error", "data-part-empty", HERE)
    pinned(problem)
    assert list(documents.no_document_fits(config(**settings, seq_length=8))) == []
    assert list(documents.no_document_fits(config(**settings | {"allow_chopped": True}, seq_length=7))) == []
    assert list(documents.no_document_fits(config(**settings | {"pack_impl": "packed"}, seq_length=7))) == []
    of_train = settings | {"data_path": text, "split": "1, 1, 0"}  # the second document is validation data
    pinned(next(documents.no_document_fits(config(**of_train, seq_length=8))))


@pytest.mark.parametrize("pack_impl", ["unpacked", "pack_until_overflow", "best_fit"])
def test_documents_of_which_no_sample_has_a_trained_token_are_an_error(tmp_path: Path, pack_impl: str) -> None:
    tokens = [[1] * 9, [2] * 12]
    text = token_file(tmp_path / "text", tokens)
    late = token_file(tmp_path / "late", [[IGNORED] * 7 + each[7:] for each in tokens])
    none = token_file(tmp_path / "none", [[IGNORED] * len(each) for each in tokens])

    def found(labels: str, seq_length: int, **more: object) -> list[tuple[str, str]]:
        paths: dict[str, object] = {"train_data_paths": [text], "train_label_data_paths": [labels]}
        problems = documents.no_document_fits(config(pack_impl=pack_impl, seq_length=seq_length, **paths, **more))
        return [(problem.what, problem.hint) for problem in problems]

    what = "there is no training data: no document has a trained token within a sample ({} tokens)"
    pinned(found(late, 6))
    assert found(late, 7) == []
    assert found(none, 6, allow_chopped=False)[0][0].startswith("allow_chopped: false leaves no training data")
    again = "write the labels again: a token that is trained is its own label"
    assert found(none, 20) == [(what.format(21), again)]


def test_documents_that_cannot_be_counted_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = token_file(tmp_path / "text", [[1] * 10])
    found = config(pack_impl="unpacked", allow_chopped=False, data_path=text, seq_length=7)
    without_numpy(monkeypatch)
    assert [problem.id for problem in documents.no_document_fits(found)] == ["check-skipped"]


def test_the_two_answers_of_a_pair_have_the_same_prompt(tmp_path: Path) -> None:
    chosen = token_file(tmp_path / "chosen", [[1, 2, 3], [4, 5, 6]])
    labels = token_file(tmp_path / "label", [[IGNORED, IGNORED, 3], [IGNORED, 5, 6]])
    rejected = token_file(tmp_path / "rejected", [[1, 2, 7, 8], [9, 5]])
    others = token_file(tmp_path / "rejected_label", [[IGNORED, IGNORED, 7, 8], [IGNORED, 5]])
    fewer = token_file(tmp_path / "fewer", [[1, 2, 7]])
    hint = "write both files from the same prompts, so that document i of one belongs to document i of the other"

    def found(**values: object) -> list[tuple[str, str]]:
        problems = documents.unpaired_answers(config(dataset_impl="pairwise", **values))
        return [(problem.what, problem.hint) for problem in problems]

    paths: dict[str, object] = {"pos_train_data_paths": [chosen], "neg_train_data_paths": [rejected]}
    assert found(**paths) == []
    own = {"pos_train_label_data_paths": [labels], "neg_train_label_data_paths": [others]}
    what = f"neg_train_data_paths: the prompts of document 1 in {rejected} and of document 1 in {chosen} differ"
    assert found(**paths, **own) == [(what, hint)]
    what = f"neg_valid_data_paths: {fewer} has 1 documents, but {chosen} has 2"
    assert found(pos_valid_data_paths=[chosen], neg_valid_data_paths=[fewer]) == [(what, hint)]


def test_splits_without_documents_and_too_short_datasets(tmp_path: Path) -> None:
    text = token_file(tmp_path / "text", [[1] * 3])
    found = config(data_path=text, split="969, 30, 1", seq_length=4, eval_iters=1)
    pinned(list(documents.empty_splits(found)))
    pinned(documents.shorter_than_a_sample(found))
    assert list(documents.shorter_than_a_sample(config(data_path=text, seq_length=2))) == []
    empty = token_file(tmp_path / "empty", [])
    assert [problem.severity for problem in documents.empty_splits(config(data_path=empty, eval_iters=0))] == ["error"]


@pytest.mark.parametrize("rewards", [[1.0, -1.0], [1.0], [1.0, float("nan")], [0.0, 0.0]])
def test_rewards_belong_to_the_documents(tmp_path: Path, rewards: list[float]) -> None:
    text = token_file(tmp_path / "text", [[1, 2], [3]])
    own = token_file(tmp_path / "reward", [[reward] for reward in rewards], np.float32)
    paths = {"train_data_paths": text, "train_reward_data_paths": own, "valid_data_paths": [], "test_data_paths": []}
    pinned(list(documents.wrong_rewards(config(train_impl="kto", **paths))))
