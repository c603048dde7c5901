"""Corrections from the history of public repositories: which of the mistakes `check` tells, and which `--fix` corrects.

`bench/config_history.py` does the same with the whole files.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import sentence
from neoxargs.base.request import Request
from neoxargs.commands.check.command import find_problems
from neoxargs.commands.check.fix import correct, find_in
from neoxargs.resolve import File, draft
from tests.support.bad_inputs import GOOD
from tests.support.each import for_each
from tests.support.reference import read

Row = dict[str, str]
ROWS: list[Row] = read("config_corrections.tsv")
NAMES = ["base.yml", "my.yml"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files(row: Row, column: str) -> list[Text]:
    """Return the smallest model with the settings beside the mistake, and a file with the mistake or its correction."""
    written, beside = (row[key].replace("\\n", "\n") for key in (column, "beside"))
    keys = {key.replace("-", "_") for key in re.findall(r"([\w-]+)\"?:", f"{row['before']}\n{written}\n{beside}")}
    base = "".join(line for line in GOOD.splitlines(keepends=True) if line.partition(":")[0] not in keys)
    return [Text("base.yml", f"{base}{beside}\n"), Text("my.yml", written or "seed: 1")]


def found(texts: list[Text]) -> Counter[tuple[str, str]]:
    for name, text in texts:
        Path(name).write_text(text)
    return Counter((problem.id, sentence(problem)) for problem in find_problems(Request(NAMES, gpus=8))[1])


def values(texts: list[Text]) -> dict[str, object]:
    return {name: value.value for name, value in draft([File(*text) for text in texts]).values.items()}


@for_each(ROWS)
def test_a_mistake_is_told_and_corrected_as_the_table_says(row: Row) -> None:
    before, after = files(row, "before"), files(row, "after")
    was, becomes = found(before), found(after)
    told = Counter(id for id, _ in was.elements() if id != "dialect-guessed")
    told -= Counter(id for id, _ in becomes.elements())
    assert row["told"] in (told or {""}), (row, told)
    fixed = list(correct(before, find_in([Request(NAMES, gpus=8)])).after)
    if row["fix"] == "right":
        assert values(fixed) == values(after) and found(fixed) <= becomes, row
    else:
        assert fixed == before, row


def test_the_table_counts_what_is_out_of_reach() -> None:
    assert {row["reach"] for row in ROWS if not row["told"]} == {"same", "choice", "data", "fork", "free"}
    assert all(row["fix"] or row["reach"] for row in ROWS) and len(ROWS) > 40
    for chosen in ("seen", "aside"):
        rows = [row for row in ROWS if row["set"] == chosen]
        mistakes = [row for row in rows if row["told"] or row["reach"] not in ("same", "choice")]
        told, right = (row["told"] != "" for row in rows), (row["fix"] == "right" for row in rows)
        counts = len(rows), len(mistakes), sum(told), sum(right)
        assert counts == {"seen": (31, 15, 13, 4), "aside": (27, 12, 9, 4)}[chosen]
