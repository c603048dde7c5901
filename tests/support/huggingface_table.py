"""Measures how far imported models are from transformers', and writes the table of docs/huggingface.md.

`python -m tests.support.huggingface_table` takes about three minutes.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neoxargs.train.process import mesh, setup
from tests.support.huggingface import MODELS, PROMPTS, Difference, on_layout, one_process, prepared
from tests.support.paths import DOCS
from tests.support.ranks import run_ranks

PAGE = DOCS / "huggingface.md"
LAYOUTS: dict[str, dict[str, Any]] = {"tp2": {"model_parallel_size": 2}, "pp2": {"pipe_parallel_size": 2}}
START, END = "<!-- parity: written by python -m tests.support.huggingface_table -->\n", "<!-- end of parity -->"


def on_ranks(root: Path, names: list[str]) -> dict[str, Difference]:
    """Return the differences of every model on every layout, on this rank."""
    process, found = setup.start("gloo", seed=1), {}
    for name in names:
        for layout, sizes in LAYOUTS.items():
            found[f"{name}, {layout}"] = on_layout(root / name, sizes, process)
            mesh.destroy_groups()
    return found


def two_ranks(folder: Path, names: Iterable[str] = MODELS) -> list[dict[str, Difference]]:
    """Return what `on_ranks` returns, of each of two ranks."""
    prepared(folder, names)
    return run_ranks(on_ranks, 2, folder, list(names), timeout=800)


def table(folder: Path) -> str:
    """Measure, and return the table."""
    import transformers

    ranks = two_ranks(folder / "two")
    count = 2 * len(PROMPTS)
    lines = [f"Models with random weights, against transformers {transformers.__version__}:", "",
             "| model | class | one process | tp 2 | pp 2 |", "|---|---|---|---|---|"]  # fmt: skip
    for name, case in MODELS.items():
        measured = [[one_process(folder / name, name)]]
        measured += [[rank[f"{name}, {layout}"] for rank in ranks] for layout in LAYOUTS]
        cells = [_cell(differences, count) for differences in measured]
        lines.append(f"| {name} | `{case.architecture}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(differences: list[Difference], count: int) -> str:
    logits = max(one.logits for one in differences if one.logits is not None)
    gradients, texts = max(one.gradients for one in differences), max(one.texts for one in differences)
    return f"{logits:.0e}, {gradients:.0e}, {count - texts} of {count}"


def rows() -> list[list[str]]:
    """Return the cells of the page's table."""
    text = PAGE.read_text(encoding="utf-8")
    part = text[text.index(START) : text.index(END)]
    return [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in re.findall(r"^\| .*", part, re.M)[1:]]


def main() -> None:
    os.environ["USE_TF"] = "0"
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(f"{before}{table(Path(folder))}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
