"""Which settings keep the result of training, on each path through DeepSpeed. Run: python bench/same_result.py

Trains some 600 pairs of small runs with 4 ranks, and writes neoxargs/resolve/compare/same_result.json and
docs/same-result.md; 20 minutes on two cores. With `--check`, only compares, and fails if the table says that a setting
changes nothing where it does. `--only TEXT` measures the paths with this text in their name, such as `ZeRO-3 bf16`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoxargs.resolve.compare.same_result import path_of
from tests.support import paths_tried
from tests.support.paths import DOCS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    options = parser.parse_args()
    table = paths_tried.read_table()
    if not options.check and not options.only:  # otherwise, what is no longer tried would stay
        table = {"alone": {}, "together": {"names": [], "paths": {}}}
    with TemporaryDirectory() as name:
        paths_tried.write_data(folder := Path(name))
        wrong = list(measure(table, folder, options.check, options.only))
    if not options.check:
        paths_tried.write_table(table)
        (DOCS / "same-result.md").write_text(paths_tried.page(), encoding="utf-8")
    print("\n".join(wrong) or "the table holds")
    return int(bool(wrong))


def measure(table: dict[str, Any], folder: Path, check: bool, only: str) -> Iterator[str]:
    """Put what is measured into the table; with `check`, yield what contradicts it instead."""
    paths = [path for path in paths_tried.PATHS if only in path_of(paths_tried.BASE | path)]
    for path in paths:
        print(path_of(paths_tried.BASE | path), file=sys.stderr, flush=True)
        cells = paths_tried.measured(path, folder)
        if check:
            yield from paths_tried.contradictions(table, cells)
        else:
            paths_tried.with_cells(table, cells)
    if any(path["optimizer.type"] == "Adam" for path in paths):
        cells = paths_tried.measured_optimizers(folder, paths)
        yield from paths_tried.contradictions(paths_tried.with_cells(table, [] if check else cells), cells)
    names, equal = sorted(paths_tried.TOGETHER), table["together"]["paths"]
    for path in paths_tried.MORE_PATHS:
        name = path_of(paths_tried.resolved(path, folder))
        if only not in name:
            continue
        print(f"{name}, all at once", file=sys.stderr, flush=True)
        found = sorted(paths_tried.unequal(path, folder))
        if check and found != equal[name]:
            yield f"{name}: {found} change a bit, in the table {equal[name]}"
        equal[name] = found
    table["together"]["names"] = names


if __name__ == "__main__":
    sys.exit(main())
