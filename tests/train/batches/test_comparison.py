"""Damaged token files, and ids that the model does not have, end a run with the file's name, however it reads them."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neoxargs.base.problems import Problems
from neoxargs.facts.data import SPLITS
from neoxargs.files.token_files import checksums, index
from neoxargs.train.batches import comparison
from neoxargs.train.batches.comparison import Comparison
from neoxargs.train.batches.datasets import build_datasets
from neoxargs.train.process.mesh import Mesh
from tests.support.finetuning import IGNORED, TOKENIZER, data_config, token_file
from tests.support.ranks import run_ranks
from tests.support.refused import refused
from tests.support.snapshots import pinned

DOCUMENTS = [[number] * 20 for number in range(40)]
LABELS = [[IGNORED] * 5 + document[5:] for document in DOCUMENTS]
REWARDS = [[1.0], [-1.0]] * 20


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def files(folder: Path, documents: list[list[int]] = DOCUMENTS) -> dict[str, str]:
    labels = [[IGNORED] * 5 + document[5:] for document in documents]
    return {
        "text": token_file(folder / "text", documents), "label": token_file(folder / "label", labels),
        "reward": token_file(folder / "reward", REWARDS, np.float32), "other": token_file(folder / "other", DOCUMENTS),
    }  # fmt: skip


def kinds(of: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return settings that read the files, and which file is damaged."""
    of_pairs = [("pos", "data_paths", "other"), ("neg", "data_paths", "text"),
                ("pos", "label_data_paths", "other"), ("neg", "label_data_paths", "label")]  # fmt: skip
    pairs = {f"{answer}_{split}_{kind}": [of[name]] for split in SPLITS for answer, kind, name in of_pairs}
    rated = {f"{split}_{kind}": [of[name]] for split in SPLITS
             for kind, name in (("data_paths", "text"), ("label_data_paths", "label"),
                                ("reward_data_paths", "reward"))}  # fmt: skip
    labelled = {name: value for name, value in rated.items() if "reward" not in name}
    return {
        "one": {"data_path": of["text"]},
        "megatron": {"data_path": of["text"], "sample_order": "megatron-core"},
        "blend": {"data_path": [0.5, of["other"], 0.5, of["text"]]},
        "whole documents": {**labelled, "pack_impl": "unpacked"},
        "labels": labelled,
        "dpo": {**pairs, "dataset_impl": "pairwise", "train_impl": "dpo", "pack_impl": "unpacked"},
        "kto": {**rated, "train_impl": "kto", "pack_impl": "unpacked"},
    }  # fmt: skip


KINDS = list(kinds(dict.fromkeys(("text", "label", "reward", "other"), "")))


def damaged(file: str, at: int) -> str:
    content = bytearray(Path(file).read_bytes())
    content[at] ^= 1
    Path(file).write_bytes(content)
    return file


def told(folder: Path, **settings: Any) -> str:
    """Return the problems of the first batches, of the training data and of the evaluation."""
    with pytest.raises(Problems) as error:
        data = build_datasets(data_config(folder, **settings), TOKENIZER, Mesh())
        for batches in (data.train(0), data.held_out("validation")):
            for _ in range(12):
                next(batches)  # type: ignore[arg-type]
    return str(error.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "at"), [("text.bin", 1700), ("text.idx", -3), ("label.bin", 1501), ("reward.bin", 6)])
def test_damage_ends_every_kind_of_run(tmp_path: Path, kind: str, name: str, at: int) -> None:
    settings = kinds(files(tmp_path))[kind]
    if name.partition(".")[0] not in str(settings):
        return
    file = damaged(f"{tmp_path}/{name}", at)
    found = told(tmp_path, **settings)
    assert f"{file} has changed since its checksum was recorded" in found
    assert found.count("error:") <= 2, found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 1])
def test_ids_beyond_the_embedding_are_named_before_the_model_has_them(
    tmp_path: Path, kind: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the comparison has not come to the file yet."""
    monkeypatch.setattr(Comparison, "_run", lambda self: None)
    wrong = [[*document[:6], 384 + number, *document[7:]] for number, document in enumerate(DOCUMENTS)]
    settings = kinds(files(tmp_path, wrong))[kind]
    found = told(tmp_path, num_workers=workers, **settings)
    assert f"{tmp_path}/text.bin contains token id " in found and ", but the embedding has only 384 rows" in found
    number = int(found.partition(" in document ")[2].partition(",")[0])
    assert f"token id {384 + number} in document {number}," in found


@pytest.mark.slow
def test_labels_without_a_row_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = kinds(files(tmp_path))["whole documents"]
    labels = [[IGNORED] * 6 + [-7] * 14 for _ in DOCUMENTS]
    token_file(tmp_path / "label", labels)
    assert f"{tmp_path}/label has label -7 at position 6 of document 0, where" in told(tmp_path, **settings)
    monkeypatch.setattr(Comparison, "_run", lambda self: None)
    assert f"{tmp_path}/label.bin contains token id -7 in document " in told(tmp_path, **settings)


def test_rewards_are_no_token_ids(tmp_path: Path) -> None:
    rewards = token_file(tmp_path / "reward", [[999], [-1]] * 20, np.int32)
    Comparison([rewards], reward_files={rewards}, rows=10).start()
    pinned(refused(lambda: Comparison([rewards], rows=10).start()))


def test_labels_of_other_tokens_are_found_where_no_launcher_has_compared_them(tmp_path: Path) -> None:
    settings = kinds(files(tmp_path))["labels"]
    token_file(tmp_path / "label", [[9] * 20 for _ in DOCUMENTS])
    assert "label has label 9 at position 0 of document 0, where" in told(tmp_path, **settings)


def test_a_long_comparison_delays_no_start_and_ends_the_run_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on = torch.multiprocessing.Event()
    examine = checksums.examine

    def slow(*arguments: Any, **named: Any) -> Iterator[checksums.Outcome]:
        go_on.wait()
        yield from examine(*arguments, **named)

    monkeypatch.setattr(comparison.checksums, "examine", slow)
    monkeypatch.setattr(comparison, "A_MOMENT", 0.0)
    settings = kinds(files(tmp_path))["one"]
    damaged(f"{tmp_path}/text.bin", 1700)
    data = build_datasets(data_config(tmp_path, **settings), TOKENIZER, Mesh())
    next(data.train(0))  # type: ignore[arg-type]
    data.comparison.end()
    size = sum(os.path.getsize(f"{tmp_path}/text{suffix}") for suffix in (".bin", ".idx"))
    assert (
        "of the token files were not compared with their checksums; to compare them: deepy" in capsys.readouterr().out
    )
    assert (data.comparison.read, data.comparison.size) == (0, size)
    go_on.set()
    while not data.comparison.ended:
        pass
    pinned(refused(data.comparison.check))


def test_a_file_that_vanishes_is_a_problem(tmp_path: Path) -> None:
    file = files(tmp_path)["text"]
    slow = Comparison([file])
    (tmp_path / "text.idx").unlink()
    # It lowers the priority of its thread, which would last for all tests that follow.
    thread = threading.Thread(target=slow._run)
    thread.start()
    thread.join()
    pinned(refused(slow.check))


def compared_on(folder: str) -> list[str]:
    warnings.simplefilter("ignore")
    data = build_datasets(data_config(Path(folder), data_path=f"{folder}/text"), TOKENIZER, Mesh())
    return [str(data.comparison.started), str(len(data.comparison.problems))]


@pytest.mark.slow
def test_only_one_rank_reads_the_files(tmp_path: Path) -> None:
    files(tmp_path)
    assert run_ranks(compared_on, 2, str(tmp_path)) == [["True", "0"], ["False", "0"]]


def test_a_file_of_merge_datasets_is_read(tmp_path: Path) -> None:
    """It has no ends of documents, for which megatron-core alone ends in an AssertionError."""
    prefix = token_file(tmp_path / "text", DOCUMENTS)
    file = Path(prefix + ".idx")
    head = list(index.HEADER.unpack(file.read_bytes()[: index.HEADER.size]))
    ends, head[-1] = head[-1], 1
    file.write_bytes(index.HEADER.pack(*head) + file.read_bytes()[index.HEADER.size : -8 * (ends - 1)])
    checksums.forget(prefix)
    data = build_datasets(data_config(tmp_path, data_path=prefix, split="1"), TOKENIZER, Mesh())
    assert next(data.train(0)).tokens.shape == (2, 8)  # type: ignore[arg-type]
