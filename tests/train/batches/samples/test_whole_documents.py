"""Samples with labels, and samples of whole documents: their contents, order, caches and what is left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.base.request import Request
from neoxargs.files.token_files import packing
from neoxargs.files.token_files.sources import Source
from neoxargs.registry.data import Data
from neoxargs.runs.run_spec import resolve_run
from neoxargs.train.batches import datasets
from neoxargs.train.batches.datasets import Sampling, build_datasets
from neoxargs.train.batches.loader import Loader, batches
from neoxargs.train.batches.samples.passes import in_passes
from neoxargs.train.process.mesh import Axis, Mesh
from tests.support.finetuning import IGNORED, TOKENIZER, data_config, drawn, labelled, pair, token_file
from tests.support.refused import refused
from tests.support.smallest import YAML
from tests.support.snapshots import pinned

SEQ = 16
pytestmark = pytest.mark.filterwarnings("ignore")  # of megatron-core, when it is imported
#: Values of pack_impl for samples of whole documents.
WHOLE = ("unpacked", "pack_until_overflow", "best_fit")


def numbered(count: int, longest: int = 12) -> list[list[int]]:
    """Return documents of tokens that occur only once, so that each sample tells what it is made of."""
    sizes, found, first = [len(document) for document in drawn(count, longest)], [], 1
    for size in sizes:
        found.append(list(range(first, first + size)))
        first += size
    return found


def made(folder: Path, samples: int, how: str, source: Source, **more: Any) -> Any:
    sampling = Sampling(Data(pack_impl=how, **more), SEQ, 1, eod=0, vocab_size=9999, rows=9999, cache=folder / "index")
    return datasets.first_rank_first(None, lambda: datasets.dataset([source], "train", samples, sampling))


def row(sample: Any) -> tuple[list[int], list[int]]:
    """Return the tokens and labels of a sample as they are trained."""
    labels = sample["labels"].masked_fill(sample["loss_mask"] == 0, IGNORED)
    return sample["tokens"].tolist(), labels.tolist()


def expected(documents: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], first: Sequence[int]) -> Any:
    """Return a row made by hand: these whole documents one after the other, cut, padded, and shifted by one."""
    text = [token for document in first for token in documents[document]][: SEQ + 1]
    own = [label for document in first for label in labels[document]][: SEQ + 1]
    return (text + [0] * (SEQ + 1 - len(text)))[:-1], (own + [IGNORED] * (SEQ + 1 - len(own)))[1:]


def test_packed_labels_are_cut_like_the_text(tmp_path: Path) -> None:
    documents = numbered(60)
    labels = labelled(documents)
    trained = {label for own in labels for label in own} - {IGNORED}
    text, label = pair(tmp_path, documents, labels)
    found = made(tmp_path, 20, "packed", Source(text, labels=label))
    plain = made(tmp_path, 20, "packed", Source(text))
    for number in range(20):
        tokens, own = row(found[number])
        same, following = row(plain[number])
        assert tokens == same
        assert own == [token if token in trained else IGNORED for token in following]


@pytest.mark.parametrize("how", WHOLE)
def test_samples_are_whole_documents(tmp_path: Path, how: str) -> None:
    """No token of the next document is appended, as GPT-NeoX does, and padding is not trained."""
    documents = numbered(60)
    labels = labelled(documents)
    text, label = pair(tmp_path, documents, labels)
    found = made(tmp_path, 30, how, Source(text, labels=label))
    starts = {document[0]: number for number, document in enumerate(documents)}
    for number in range(30):
        tokens, own = row(found[number])
        inside = [starts[token] for token in tokens if token in starts]
        assert how != "unpacked" or len(inside) == 1
        text_row, label_row = expected(documents, labels, inside)
        assert tokens == text_row
        if how == "best_fit":
            first = {documents[document][0] for document in inside}
            label_row = [IGNORED if label in first else label for label in label_row]
            at = [place for place, token in enumerate(tokens) if token in starts]
            at += [sum(len(documents[document]) for document in inside)]
            assert found[number]["starts"].tolist() == [max(s for s in at if s <= place) for place in range(SEQ)]
        assert own == label_row


@pytest.mark.parametrize("how", WHOLE)
def test_without_labels_every_token_of_a_document_counts(tmp_path: Path, how: str) -> None:
    documents = numbered(60)
    found = made(tmp_path, 10, how, Source(token_file(tmp_path / "text", documents)))
    for number in range(10):
        tokens, own = row(found[number])
        count = sum(token > 0 for token in tokens)
        assert own[count:] == [IGNORED] * (SEQ - count)
        if how != "best_fit":
            assert own[: count - 1] == tokens[1:count]


@pytest.mark.parametrize("how", WHOLE)
def test_every_pass_reads_every_document_once_in_another_order(tmp_path: Path, how: str) -> None:
    documents = numbered(40)
    source = Source(token_file(tmp_path / "text", documents))
    many = made(tmp_path, 200, how, source)
    size = len(many.sources[0])
    passes = [[row(many[number])[0] for number in range(start, start + size)] for start in (0, size, 2 * size)]
    for samples in passes:
        assert Counter(token for tokens in samples for token in tokens if token) <= Counter(
            token for document in documents for token in document
        )
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(passes[2])
    assert passes[0] != passes[1] != passes[2] != passes[0]
    fewer = made(tmp_path, 2 * size, how, source)
    assert [row(fewer[number])[0] for number in range(2 * size)] == passes[0] + passes[1]


def test_a_long_document_is_cut_or_left_out(tmp_path: Path) -> None:
    documents = [list(range(1, 40)), list(range(40, 50)), list(range(50, 50 + SEQ + 1))]
    source = Source(token_file(tmp_path / "text", documents))
    for how in WHOLE:
        cut = made(tmp_path, 6, how, source)
        assert {row(cut[number])[0][0] for number in range(6)} >= {1, 50}
        assert any(row(cut[number]) == (list(range(1, SEQ + 1)), list(range(2, SEQ + 2))) for number in range(6))
        whole = made(tmp_path, 6, how, source, allow_chopped=False)
        assert {row(whole[number])[0][0] for number in range(6)} == {40, 50}


def test_a_global_batch_is_the_same_on_every_layout_and_after_resuming(tmp_path: Path) -> None:
    documents = numbered(50)
    text, label = pair(tmp_path, documents, labelled(documents))
    found = made(tmp_path, 90, "best_fit", Source(text, labels=label))

    def global_batches(ranks: int, micro: int, consumed: int, count: int) -> list[list[list[int]]]:
        loaders = [batches(found, consumed, Axis(ranks, rank), micro) for rank in range(ranks)]
        rounds = [[next(loader) for loader in loaders] for _ in range(count * 12 // (ranks * micro))]
        read = [batch for step in rounds for batch in step]
        rows = torch.cat([torch.cat((each.tokens, each.labels, each.starts), 1) for each in read]).tolist()
        return [sorted(rows[start : start + 12]) for start in range(0, 12 * count, 12)]

    whole = global_batches(1, 12, 0, 6)
    assert global_batches(2, 3, 0, 6) == global_batches(4, 3, 0, 6) == whole
    assert global_batches(2, 6, 24, 4) == whole[2:]


def test_an_index_is_not_used_for_other_labels(tmp_path: Path) -> None:
    documents = [[n] * 4 for n in range(1, 21)]
    for trained in ({1, 2, 3}, {7, 8}):
        labels = [document if document[0] in trained else [IGNORED] * 4 for document in documents]
        text, label = pair(tmp_path, documents, labels)
        found = made(tmp_path, 8, "unpacked", Source(text, labels=label))
        assert {row(found[number])[0][0] for number in range(8)} == trained


def test_an_index_of_another_order_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of an earlier version, in which best_fit made the samples of the longest documents first."""
    source = Source(token_file(tmp_path / "text", numbered(60)))

    def order(cache: str) -> list[list[int]]:
        (tmp_path / cache).mkdir(exist_ok=True)
        found = made(tmp_path / cache, 20, "best_fit", source)
        return [row(found[number])[0] for number in range(20)]

    current = order("current")
    with monkeypatch.context() as patched:
        patched.setattr(packing, "_in_random_order", lambda documents, bounds, random: (documents, bounds))
        assert order("earlier") != current
    assert order("earlier") == current


def loaded(folder: Path, documents: list[list[int]], labels: list[list[int]], **changes: Any) -> Loader:
    """Return the data of a run that is finetuned on documents with labels."""
    text, label = pair(folder, documents, labels)
    paths = {f"{split}_data_paths": [text] for split in ("train", "valid", "test")}
    paths |= {f"{split}_label_data_paths": [label] for split in ("train", "valid", "test")}
    values = {"seq_length": SEQ, "eval_iters": 1, "train_data_weights": None, **paths, **changes}
    return build_datasets(data_config(folder, **values), TOKENIZER, Mesh())


def test_every_split_reads_its_labels(tmp_path: Path) -> None:
    documents = drawn(50, 12)
    loader = loaded(tmp_path, documents, labelled(documents), pack_impl="unpacked")
    for batches_ in (loader.train(0), loader.held_out("validation"), loader.held_out("test")):
        assert batches_ is not None
        labels = next(batches_).labels
        assert (labels == IGNORED).any() and (labels != IGNORED).any()


def test_what_is_left_out_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [[1] * 5, [2] * 30, [3] * 40, [4] * 6]
    labels = [documents[0], documents[1], documents[2], [IGNORED] * 6]
    options = {"pack_impl": "best_fit", "allow_chopped": False}
    loaded(tmp_path, documents, labels, **options)
    pinned(capsys.readouterr().out)


def test_nothing_to_train_on_is_an_error(tmp_path: Path) -> None:
    documents = drawn(9, 12)
    labels = [[IGNORED] * len(document) for document in documents]
    pinned(refused(loaded, tmp_path, documents, labels, pack_impl="unpacked")[0])


def test_ranks_refuse_labels_of_other_documents(tmp_path: Path) -> None:
    documents = drawn(9, 12)
    assert [p.what for p in refused(lambda: loaded(tmp_path, documents, labelled(documents)[:-1]))] == [
        f"{tmp_path}/labels has 8 documents, but {tmp_path}/text has 9"
    ]


class Few:
    def __init__(self, values: Sequence[int]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index]


def test_passes_over_several_sources(tmp_path: Path) -> None:
    found = in_passes([Few([1, 2, 3]), Few([4, 5])], 12, seed=1, cache=tmp_path)  # type: ignore[list-item]
    values: list[Any] = [found[number] for number in range(12)]
    assert sorted(values[:5]) == sorted(values[5:10]) == [1, 2, 3, 4, 5]
    assert values[:5] != values[5:10]
    again = in_passes([Few([1, 2, 3])], 6, seed=1, cache=tmp_path)  # type: ignore[list-item]
    assert [again[number] for number in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("how", ["packed", *WHOLE])
@pytest.mark.parametrize("prefixes", [1, 2])
def test_a_run_of_epochs_has_the_samples_that_the_launcher_counts(tmp_path: Path, how: str, prefixes: int) -> None:
    documents = numbered(40)
    text, label = pair(tmp_path, documents, labelled(documents))
    other, own = pair(tmp_path / "b", [[9000, 9001, 9002]] * 9, [[IGNORED, 9001, 9002]] * 9)
    file = tmp_path / "run.yml"
    lines = [YAML.replace("train_iters: 10", "train_epochs: 2").replace("32", str(SEQ)), f"pack_impl: {how}"]
    for split in ("train", "valid", "test"):
        lines.append(f"{split}_data_paths: {[text, other][:prefixes]}")
        lines.append(f"{split}_label_data_paths: {[label, own][:prefixes]}")
    lines += ["padded_vocab_size: 9999", "tokenizer_type: ByteLevelTokenizer", f"run_dir: {tmp_path}"]
    file.write_text("\n".join(lines))
    settings = resolve_run(Request([str(file)], gpus=1), os.environ).config
    samples = build_datasets(settings, TOKENIZER, Mesh()).parts["train"]
    assert samples is not None
    assert len(samples) // settings.batch.train_batch_size == settings.training.train_iters
    rows = [tuple(samples[number]["tokens"].tolist()) for number in range(len(samples))]
    assert Counter(rows[: len(rows) // 2]) == Counter(rows[len(rows) // 2 :])
    assert any(9000 in sample for sample in rows) == (prefixes == 2)
