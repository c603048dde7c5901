"""How far finetuning on labels is from transformers' Llama with labels of -100, on this rank of a layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neoxargs.data.tokenizer import build_tokenizer
from neoxargs.files.token_files import index
from neoxargs.train.batches.datasets import build_datasets
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.process import mesh, setup
from tests.support.finetuning import IGNORED, drawn, labelled, pair
from tests.support.huggingface import SEQ, descent, imported, in_our_form, made, own_shard
from tests.support.loaded_engine import loaded_run

#: Plain Llama, without scaled positions: a document's positions count from its start.
MODEL = "Llama"
STEPS, MICRO_BATCH, BATCH, RATE = 3, 2, 8, 0.1
LAYOUTS: dict[str, dict[str, int]] = {
    "one process": {},
    "dp2": {},
    "tp2": {"model_parallel_size": 2},
    "pp2": {"pipe_parallel_size": 2},
    "tp2 x pp2": {"model_parallel_size": 2, "pipe_parallel_size": 2},
}
#: Processes of a layout, where not two.
WORLDS = {"one process": 1, "tp2 x pp2": 4}
#: Name -> the settings, and whether documents of a sample are separate.
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "`unpacked`": ({"pack_impl": "unpacked"}, False),
    "`pack_until_overflow`": ({"pack_impl": "pack_until_overflow"}, False),
    "`packed`": ({"pack_impl": "packed"}, False),
    "`best_fit`": ({"pack_impl": "best_fit"}, True),
    "`unpacked`, `loss_average: tokens`": ({"pack_impl": "unpacked", "loss_average": "tokens"}, False),
    "`best_fit`, `loss_average: tokens`": ({"pack_impl": "best_fit", "loss_average": "tokens"}, True),
}
OPTIONS = descent(
    RATE, train_micro_batch_size_per_gpu=MICRO_BATCH, train_batch_size=BATCH, train_iters=STEPS, eval_iters=0,
    num_workers=0, seed=3,
)  # fmt: skip


class Answer(NamedTuple):
    """transformers' losses of the steps, and its weights after them, under our names."""

    losses: list[float]
    after: dict[str, Tensor]


class Difference(NamedTuple):
    """The largest differences of the losses of three steps, and of the weights after them."""

    losses: float
    weights: float


def prepared(folder: Path) -> Any:
    """Write the token files, and import a new model of transformers; return the model."""
    documents = drawn(200, SEQ + 1, seed=1, shortest=3)
    pair(folder, documents, labelled(documents, seed=2))
    model = made(MODEL)
    imported(folder, model)
    return model


def settings_of(folder: Path, more: dict[str, Any]) -> dict[str, Any]:
    paths = {f"{split}_data_paths": folder / "text" for split in ("train", "valid", "test")}
    paths |= {f"{split}_label_data_paths": folder / "labels" for split in ("train", "valid", "test")}
    return {"data_path": "null", "text_path": "null", **OPTIONS, **paths, **more, "run_dir": folder / "run"}


class Sample(NamedTuple):
    """One row: tokens and labels, unshifted, of the documents that share it."""

    tokens: list[list[int]]
    labels: list[list[int]]


def answer(model: Any, rows: Sequence[Sample], separate: bool, by_token: bool, source: Path) -> Answer:
    """Train transformers' model on rows in order. separate: each document of a row alone."""
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for start in range(0, STEPS * BATCH, BATCH):
        batch = rows[start : start + BATCH]
        total = sum(map(trained, batch)) if by_token else None
        parts = [batch[i : i + MICRO_BATCH] for i in range(0, BATCH, MICRO_BATCH)]
        of_parts = [loss(model, part, separate, total or sum(map(trained, part))) for part in parts]
        mean = torch.stack(of_parts).sum() / (1 if by_token else len(parts))
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        losses.append(float(mean.detach()))
    return Answer(losses, in_our_form(source, model.state_dict()))


def trained(row: Sample) -> int:
    return sum(label != IGNORED for labels in row.labels for label in labels[1:])


def loss(model: Any, rows: Sequence[Sample], separate: bool, count: int) -> Tensor:
    """Return the sum of the losses of the trained tokens, divided by `count`, as transformers computes it."""
    texts = [(ids, labels) for row in rows for ids, labels in zip(*row, strict=True)]
    longest = max(len(ids) for ids, _ in texts)
    padded = [
        ([*ids, *[0] * (longest - len(ids))], [1] * len(ids) + [0] * (longest - len(ids)),
         [*labels, *[IGNORED] * (longest - len(labels))])
        for ids, labels in texts
    ]  # fmt: skip
    ids, mask, labels = (torch.tensor(column) for column in zip(*padded, strict=True))
    found: Tensor = model(input_ids=ids, attention_mask=mask, labels=labels, num_items_in_batch=count).loss
    return found


class Documents(NamedTuple):
    """The documents of the token file and of the label file, and those that begin with two tokens."""

    tokens: list[list[int]]
    labels: list[list[int]]
    by_start: dict[tuple[int, ...], list[int]]

    @classmethod
    def read(cls, folder: Path) -> Documents:
        found: list[list[list[int]]] = []
        for name in ("text", "labels"):
            file = index.read(str(folder / name))
            assert file is not None
            found.append([file.ids[a:b].tolist() for a, b in pairwise(file.begins)])
        by_start: dict[tuple[int, ...], list[int]] = {}
        for document, ids in enumerate(found[0]):
            by_start.setdefault(tuple(ids[:2]), []).append(document)
        return cls(found[0], found[1], by_start)

    def of_row(self, row: list[int]) -> Iterator[int]:
        """Yield the documents of a row. The row lacks the last token of the last one; its rest is padding."""
        while row:
            starting = self.by_start.get(tuple(row[:2]), ())
            fitting = [d for d in starting if self.tokens[d][: len(row)] == row[: len(self.tokens[d])]]
            if not fitting:
                return
            yield fitting[0]
            row = row[len(self.tokens[fitting[0]]) :]


def rows_of(batches: Iterator[Any], folder: Path, name: str) -> list[Sample]:
    """Return the rows that our loader reads, with unshifted tokens and labels from the files."""
    rows: list[Sample] = []
    documents = Documents.read(folder)
    settings, separate = CASES[name]
    while len(rows) < STEPS * BATCH:
        batch = next(batches)
        for tokens, labels in zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True):
            if settings["pack_impl"] == "packed":  # a row begins and ends within documents
                rows.append(Sample([[*tokens, max(labels[-1], 0)]], [[IGNORED, *labels]]))
                continue
            whole = list(documents.of_row(tokens))
            ids, own = [documents.tokens[d] for d in whole], [documents.labels[d] for d in whole]
            rows.append(Sample(ids, own) if separate else Sample([list(chain(*ids))], [list(chain(*own))]))
    return rows


def on_layout(folder: str, name: str, layout: str, theirs: Answer) -> Difference:
    """Train on this rank of a layout and compare."""
    process = setup.start("gloo", seed=1)
    root, (settings, _) = Path(folder), CASES[name]
    sets = settings_of(root, {**settings, **LAYOUTS[layout], "load": root / "ours"})
    run = loaded_run(root / "ours" / "model.yml", sets, process)
    batches = build_datasets(run.config, build_tokenizer(run.config.tokenizer), run.mesh).train(0)
    losses = [run.built.train_step(batches).loss for _ in range(STEPS)]
    off = max(abs(ours - other) for ours, other in zip(losses, theirs.losses, strict=True))
    weights = max(
        float((weight.detach() - own_shard(key, weight, theirs.after[key])).abs().max())
        for key, weight in named_weights(run.built.deepspeed.module).items()
    )
    mesh.destroy_groups()
    return Difference(off, weights)
