"""`deepy data --sample` and `--ledger`: they name the tokens that the data sets give, and a run has read."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoxargs.cli import main
from neoxargs.commands.samples import documents_of
from neoxargs.files.token_files import writer
from neoxargs.train.batches.datasets import training_samples
from neoxargs.train.batches.ledger import _times
from tests.support.configure import configure
from tests.support.processes import rank_arguments, train_on_rank
from tests.support.ranks import run_ranks
from tests.support.snapshots import pinned

RUN = "{seq_length: 16, train_micro_batch_size_per_gpu: 4, train_iters: 30, tokenizer_type: ByteLevelTokenizer, "
LISTED = "train_data_paths: [a, b], valid_data_paths: [a], test_data_paths: [a]"
PAIRS = "dataset_impl: pairwise, train_impl: dpo, pack_impl: unpacked, " + ", ".join(
    f"{answer}_{split}_data_paths: [{name}]"
    for answer, name in (("pos", "a"), ("neg", "b"))
    for split in ("train", "valid", "test")
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two token files of 50 documents; every token is another one, and every fifth document has two sequences."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("ab"):
        lengths = np.random.default_rng(number).integers(5, 15, 50)
        tokens = (np.arange(lengths.sum()) + 1000 * number).astype(np.uint16)
        with writer.new_file(Path(name), np.uint16) as file:
            file.add(tokens, lengths.tolist(), [document % 5 != 0 for document in range(50)])


@pytest.mark.parametrize(
    "data",
    [
        "data_path: a",
        f"{LISTED}, train_data_weights: [3, 1]",
        f"{LISTED}, train_data_mixture: [{{until: 10, weights: [3, 1]}}, {{style: cosine, weights: [1, 3]}}]",
        f"{LISTED}, sample_order: megatron-core, train_data_weights: [3, 1]",
        "data_path: a, sample_order: megatron-core",
        f"{LISTED}, pack_impl: best_fit",
        f"{LISTED}, pack_impl: unpacked, train_data_max_epochs: 3",
        PAIRS,
    ],
)
def test_the_parts_of_a_sample_are_its_tokens(data: str) -> None:
    config = configure(f"{RUN}{data}}}", gpus=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = training_samples(config, Path("index"), rows=10_000)
        count = min(100, len(samples))
        found = documents_of(config, range(count))
    stored = {name: np.fromfile(f"{name}.bin", np.uint16) for name in "ab"}
    for number in range(count):
        parts = [part for part in found if part.sample == number]
        text = [stored[part.dataset][part.bytes[0] // 2 : part.bytes[1] // 2] for part in parts]
        tokens = samples[number]["tokens"].flatten()
        expected = np.concatenate(text)
        if "pack_impl" in data or "pairwise" in data:  # with padding, and without what is only predicted
            assert {*tokens.tolist()} <= {*expected.tolist(), 0}
            assert {*expected.tolist()} - {*tokens.tolist()} <= {*samples[number]["labels"].flatten().tolist()}
        else:
            assert tokens.tolist() == expected.tolist()
        for part in parts:  # the documents of these tokens
            assert part.tokens[1] - part.tokens[0] == (part.bytes[1] - part.bytes[0]) // 2 > 0


def test_a_document_of_two_sequences_is_one() -> None:
    config = configure(f"{RUN}data_path: a}}", gpus=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = documents_of(config, range(60))
    assert max(part.document for part in found) < 40
    # Token 0 of a document is where the file has its first byte.
    begins: dict[int, set[int]] = {}
    for part in found:
        begins.setdefault(part.document, set()).add(part.bytes[0] // 2 - part.tokens[0])
    assert all(len(each) == 1 for each in begins.values()) and len({*map(min, begins.values())}) == len(begins)


def test_tokens_are_counted_as_one_by_one() -> None:
    random = np.random.default_rng(3)
    begins = random.integers(0, 100, 40)
    ranges = np.stack([begins, begins + random.integers(1, 30, 40)], 1)
    each = Counter(token for begin, end in ranges.tolist() for token in range(begin, end))
    assert _times(ranges) == Counter(each.values())


def run(folder: Path, **changes: Any) -> None:
    values = {
        "train_data_paths": ["a", "b"], "valid_data_paths": ["a"], "test_data_paths": ["a"], "data_path": None,
        "eval_iters": 0, "num_workers": 0, "train_iters": 8, "checkpoint_factor": 4, "vocab_size": None,
        "save": str(folder / "ckpt"), "load": str(folder / "ckpt"),
        "train_data_mixture": [{"until": 6, "weights": [3, 1]}, {"weights": [1, 3]}],
    }  # fmt: skip
    [(code, _, errors)] = run_ranks(train_on_rank, 1, rank_arguments(folder, 1, **values | changes))
    assert code == 0, errors


@pytest.mark.timeout(300)
def test_the_ledger_of_a_resumed_run_finds_what_was_read_again(tmp_path: Path, capsys: Any) -> None:
    for number, name in enumerate("ab"):
        with writer.new_file(Path(name), np.uint16) as file:
            file.add(np.random.default_rng(number).integers(97, 123, 4000).astype(np.uint16), [100] * 40, [True] * 40)

    def ledger(*options: str) -> dict[str, Any]:
        assert main(["data", "--ledger", str(tmp_path / "out"), "--json", *options]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    run(tmp_path, exit_interval=4)
    run(tmp_path)
    found = ledger()
    assert (found["step"], found["launches"]) == (8, 2)
    datasets = found["datasets"]
    length = sum(each["tokens"] for each in datasets.values()) // found["samples"]
    assert all({*each["times"]} == {"1"} for each in datasets.values())
    share = datasets["a"]["tokens"] / length / found["samples"]
    assert share == pytest.approx((6 * 0.75 + 2 * 0.25) / 8, abs=2 / found["samples"])
    earlier = ledger("--step", "4")
    assert earlier["samples"] == found["samples"] / 2 and earlier["launches"] == 1
    assert ledger("--step", "8") == found
    assert main(["data", "--ledger", str(tmp_path / "out"), "--step", "9"]) == 1
    assert "data-option-invalid" in capsys.readouterr().err
    assert main(["data", "--ledger", str(tmp_path / "out")]) == 0
    pinned(capsys.readouterr().out)
    # Planted: the order changes with the seed, so that what was read is read again.
    run(tmp_path, train_iters=40, seed=7)
    again = ledger()["datasets"]["b"]
    assert int(max(again["times"])) > 1 and not again["in_passes"]
    # Planted: another file with the same name.
    with writer.new_file(Path("a"), np.uint16) as file:
        file.add(np.full(4000, 97, np.uint16), [100] * 40, [True] * 40)
    assert main(["data", "--ledger", str(tmp_path / "out")]) == 1
    assert "ledger-other-files" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--sample", "x"], ["--sample", "9-3"], ["--sample", "99999"], ["--sample", "1", "."], ["--ledger", "nowhere"],
        ["--ledger", "."], ["--ledger", ".", "--step", "0"],
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_said(words: list[str], capsys: Any) -> None:
    Path("my.yml").write_text(
        f"{RUN}data_path: a, num_layers: 1, hidden_size: 32, num_attention_heads: 2, max_position_embeddings: 16}}"
    )
    # As an earlier version wrote it.
    Path("metrics.jsonl").write_text('{"event": "start", "step": 0}\n{"event": "step", "step": 1, "samples": 4}\n')
    assert main(["data", *words, *(["my.yml"] if len(words) == 2 and "--ledger" not in words else [])]) == 1
    pinned(capsys.readouterr().err)
