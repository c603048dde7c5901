"""Corrections from the history of public repositories, with the whole files: what `check` tells and `--fix` corrects.

    python bench/config_history.py CLONES

CLONES/OWNER+NAME is a clone of the repository, or has one in `repo`. For each row of
tests/reference/config_corrections.tsv (of several files of a run, the last has the mistake): the ids of problems that
the file had before the commit and not after it, and whether `--fix` corrects something in the file before. It is worse
if the file then has an error that it had neither before nor after.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.base.files import Text  # noqa: E402
from neoxargs.base.problems import Problem, sentence  # noqa: E402
from neoxargs.base.request import Request  # noqa: E402
from neoxargs.commands.check.command import find_problems  # noqa: E402
from neoxargs.commands.check.fix import correct, find_in  # noqa: E402


def content(clones: Path, repository: str, commit: str, file: str) -> str:
    """Return a file at a commit."""
    folder = clones / repository.replace("/", "+")
    folder = folder / "repo" if (folder / "repo").exists() else folder
    words = ["git", "-C", str(folder), "show", f"{commit}:{file}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def found(texts: Sequence[Text]) -> list[Problem]:
    for name, text in texts:
        Path(name).write_text(text)
    return find_problems(Request([name for name, _ in texts], gpus=8))[1]


def errors(problems: Sequence[Problem]) -> Counter[str]:
    return Counter(f"{problem.id}: {sentence(problem)}" for problem in problems if problem.severity == "error")


def main() -> None:
    clones = Path(sys.argv[1]).resolve()
    with (ROOT / "tests/reference/config_corrections.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    totals: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for row in rows:
            before, after = (
                [
                    Text(os.path.basename(file), content(clones, row["repository"], commit, file))
                    for file in row["file"].split()
                ]
                for commit in (f"{row['commit']}^", row["commit"])
            )
            was, becomes = found(before), found(after)
            told = Counter(problem.id for problem in was) - Counter(problem.id for problem in becomes)
            request = Request([text.name for text in before], gpus=8)
            fixed = list(correct(before, find_in([request])).after)
            worse = errors(found(fixed)) - errors(was) - errors(becomes)
            counts = Counter(rows=1, told=bool(told), corrected=fixed != before, worse=bool(worse))
            totals.setdefault(row["set"], Counter()).update(counts)
            shown = [
                row["set"],
                row["repository"],
                row["commit"],
                before[-1].name,
                ", ".join(told) or f"({row['reach']})",
            ]
            print("  ".join(shown), " corrected" * (fixed != before), "".join(f"\n  WORSE: {each}" for each in worse))
    for chosen, counts in totals.items():
        print(f"{chosen}: " + ", ".join(f"{counts[kind]} {kind}" for kind in ("rows", "told", "corrected", "worse")))


if __name__ == "__main__":
    main()
