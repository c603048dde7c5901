"""Measures how far finetuning is from other programs, and writes the table of docs/finetuning.md.

`python -m tests.support.finetuning_table` takes about two minutes.
"""

from __future__ import annotations

import os
import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neoxargs.data.tokenizer import build_tokenizer
from neoxargs.files.token_files import packing
from neoxargs.resolve import resolve
from neoxargs.train.batches.datasets import build_datasets
from neoxargs.train.process.mesh import Mesh
from tests.support import finetuning_parity as parity
from tests.support import peft_models
from tests.support.paths import DOCS
from tests.support.ranks import run_ranks

PAGE = DOCS / "finetuning.md"
START, END = "<!-- comparison: written by python -m tests.support.finetuning_table -->\n", "<!-- end of comparison -->"
HEAD = "| compared | with | largest difference |\n|---|---|---|\n"


class Row(NamedTuple):
    """What is compared, the reference with its version, and the largest difference."""

    what: str
    reference: str
    difference: str


def expected(folder: Path, model: Any, name: str) -> parity.Answer:
    """Return transformers' answer for the samples that a run on one process reads."""
    settings, separate = parity.CASES[name]
    overrides = [f"{key}={value}" for key, value in parity.settings_of(folder, settings).items()]
    config = resolve([folder / "ours" / "model.yml"], overrides, gpus=1)
    batches = build_datasets(config, build_tokenizer(config.tokenizer), Mesh()).train(0)
    assert batches is not None
    rows = parity.rows_of(batches, folder, name)
    return parity.answer(model, rows, separate, "loss_average" in settings, folder / "theirs")


def differences(folder: Path, name: str) -> dict[str, parity.Difference]:
    """Return for each layout the largest differences of all ranks."""
    answer = expected(folder, parity.prepared(folder), name)
    assert len({round(loss, 3) for loss in answer.losses}) == parity.STEPS
    found = {}
    for layout in parity.LAYOUTS:
        ranks = run_ranks(parity.on_layout, parity.WORLDS.get(layout, 2), str(folder), name, layout, answer)
        found[layout] = parity.Difference(*map(max, zip(*ranks, strict=True)))
    return found


def other_samples(sizes: np.ndarray[Any, np.dtype[Any]], window: int) -> int:
    """Return how many samples of best-fit packing do not have documents of the lengths that trl's have.

    Which of several equally long documents comes first is not a rule: trl's sort leaves it open.
    """
    import datasets  # type: ignore[import-untyped]
    from trl.data_utils import pack_dataset

    ids = [[document] * size for document, size in enumerate(sizes.tolist())]
    # Otherwise, trl packs every 1000 documents by themselves.
    together = {"batch_size": len(ids)}
    theirs: Any = pack_dataset(datasets.Dataset.from_dict({"input_ids": ids}), window, "bfd", together)
    cut = np.minimum(sizes, window)
    order, bounds = packing.best_fit(cut, window)
    ours = [cut[order[a:b]].tolist() for a, b in pairwise(bounds)]
    wanted = [list(row) for row in theirs["seq_lengths"]]
    return abs(len(ours) - len(wanted)) + len([1 for a, b in zip(ours, wanted, strict=False) if a != b])


def measured() -> list[Row]:
    """Return the rows of the table."""
    import transformers
    import trl

    rows = []
    for name in parity.CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = differences(Path(folder), name).values()
        losses, weights = max(one.losses for one in found), max(one.weights for one in found)
        cell = f"losses {losses:.0e}, weights {weights:.0e}"
        rows.append(Row(f"{name}: three steps", f"transformers {transformers.__version__}", cell))
    with tempfile.TemporaryDirectory() as folder:
        rows += [Row(*row) for row in peft_models.parity_rows(Path(folder))]
    sizes = np.random.default_rng(1).integers(1, 200, 10_000)
    cell = f"{other_samples(sizes, 129)} samples differ"
    return [
        *rows,
        Row(
            "`best_fit` of 10,000 documents: lengths of the documents in each sample",
            f"trl {trl.__version__}, `bfd`",
            cell,
        ),
    ]


def table(rows: list[Row]) -> str:
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page_rows() -> list[Row]:
    """Return the rows of the page's table."""
    text = PAGE.read_text(encoding="utf-8")
    part = text[text.index(START) : text.index(END)]
    return [Row(*(cell.strip() for cell in line.split("|")[1:-1])) for line in re.findall(r"^\| .*", part, re.M)[1:]]


def main() -> None:
    os.environ["USE_TF"] = "0"
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
    PAGE.write_text(f"{before}{table(measured())}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
