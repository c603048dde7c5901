"""What `deepy diff` promises of settings follows from the table of what tests have shown, which has every setting."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from neoxargs.registry import REGISTRY, Parameter
from neoxargs.resolve.compare import same_result
from neoxargs.resolve.compare.apart import NOT_OF_THE_RUN, names
from neoxargs.resolve.compare.impact import IMPACTS, kind_of
from neoxargs.resolve.compare.same_result import EXPECTED, as_shown
from neoxargs.resolve.rules.synonyms import names_of_setting
from tests.support import paths_tried
from tests.support.paths import DOCS, ROOT

PAGE = DOCS / "same-result.md"
PLAIN = {"pipe_parallel_size": 0, "zero_optimization.stage": 2, "precision": "fp32", "optimizer.type": "Adam"}
PATH = "ZeRO-2 fp32 adam"


def promised() -> list[Parameter]:
    """Return the parameters that are declared to change at most rounding."""
    apart = names(NOT_OF_THE_RUN)
    return [p for p in REGISTRY.parameters.values() if IMPACTS[kind_of(p)] in EXPECTED and p.name not in apart]


def is_received(parameter: Parameter) -> bool:
    return bool({"train", "deepspeed"} & {*parameter.to})


def test_every_promise_is_tried_or_has_a_reason_why_not() -> None:
    table = paths_tried.read_table()
    rows = [
        *table["alone"],
        *table["together"]["names"],
        *(name for some in table["not tried"].values() for name in some),
    ]
    rows += [other for other, name in same_result.CHANGES_WITH.items() if name in table["alone"]]
    known = {other for name in rows for other in names_of_setting(name)} | {*rows}
    assert sorted(rows) == sorted({*rows}), "in two places"
    assert [p.name for p in promised() if is_received(p) and not p.replaced_by and p.name not in known] == []


def test_the_trainer_does_not_read_what_is_promised_without_a_trial() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "neoxargs" / "train").rglob("*.py"))
    untried = [p for p in promised() if not is_received(p) and not p.replaced_by]
    assert {p.group.key() for p in untried} == {"runner", "runner_extras"}
    read = {*re.findall(r"\b(runner|runner_extras)\.(\w+)", sources), *re.findall(r"\bconfig\.get\(\"(\w+)\"", sources)}
    assert ("runner_extras", "step_timeout") in read
    assert not {(p.group.key(), p.attribute) for p in untried} & read
    assert {p.name for p in untried} & read == {"master_addr", "master_port"}, "where ranks find each other"


@pytest.mark.parametrize(
    ("name", "pair", "cells", "expected"),
    [
        ("zero_optimization.overlap_comm", (None, True), {PATH: 0.0}, "rounding"),
        ("zero_optimization.overlap_comm", (None, True), {PATH: 1e-5}, "rounding"),
        ("zero_optimization.overlap_comm", (None, True), {PATH: 0.01}, "result"),
        ("zero_optimization.overlap_comm", (None, True), {"ZeRO-2 bf16 adam": 0.0}, "unshown"),
        ("zero_optimization.overlap_comm", (None, False), {PATH: 0.0}, "unshown"),
        ("zero_optimization.reduce_bucket_size", (5, 7), {PATH: 0.0}, "rounding"),
    ],
)
def test_a_promise_needs_a_row_for_the_path(
    name: str, pair: tuple[Any, Any], cells: dict[str, float], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"from": ["null"], "to": {"true": cells}}
    table = {"alone": {name: row}, "together": {"names": [], "paths": {}}, "not tried": {}}
    monkeypatch.setattr(same_result, "table_beside", lambda _: table)
    assert as_shown("rounding", [name], pair, (PLAIN, PLAIN))[0] == expected


def test_a_promise_between_paths_needs_both(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {PATH: 0.0}
    row = {"zero_optimization.stage": {"from": ["2"], "to": {"0": cells}}}
    monkeypatch.setattr(
        same_result, "table_beside", lambda _: {"alone": row, "together": {"names": []}, "not tried": {}}
    )
    sides = [PLAIN | {"zero_optimization.stage": stage} for stage in (0, 1, 2)]
    found = {
        (a, b): as_shown("rounding", ["zero_optimization.stage"], (a, b), (sides[a], sides[b]))[0]
        for a, b in ((0, 2), (2, 0), (1, 2), (0, 1))
    }
    assert found == {(0, 2): "rounding", (2, 0): "rounding", (1, 2): "unshown", (0, 1): "unshown"}


@pytest.mark.parametrize("pair", [(1, 2), (2, 1), ("auto", "ring"), ("ring", "all_to_all"), ("ring", "hybrid")])
def test_context_parallel_ranks_and_their_style_are_tried(pair: tuple[Any, Any]) -> None:
    name = "context_parallel_style" if isinstance(pair[0], str) else "context_parallel_size"
    first, other = (PLAIN | {"context_parallel_size": 2, name: value} for value in pair)
    shown, _ = as_shown("rounding", [name], pair, (first, other))
    assert shown == ("unshown" if "hybrid" in pair else "rounding")


def test_what_must_change_no_bit_is_shown_with_each_part_of_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {PATH: [], "ZeRO-0 fp32 lion": [], "ZeRO-0 bf16 adam experts": ["save"]}
    table = {"alone": {}, "together": {"names": ["save", "log_interval"], "paths": paths}, "not tried": {}}
    monkeypatch.setattr(same_result, "table_beside", lambda _: table)

    def of(name: str, **changes: Any) -> str:
        run = PLAIN | changes
        return as_shown("nothing", [name], (1, 2), (run, run))[0]

    assert of("log_interval") == of("save") == of("save", **{"optimizer.type": "Lion"}) == "nothing"
    assert of("save", moe_num_experts=4) == of("log_interval", **{"zero_optimization.stage": 3}) == "unshown"
    assert of("log_interval", moe_num_experts=4, precision="bfloat16") == "nothing"


def test_adamw_takes_the_path_of_adam() -> None:
    cells = paths_tried.read_table()["alone"]["optimizer.type"]["to"]['"AdamW"']
    paths = [same_result.path_of(paths_tried.BASE | path) for path in paths_tried.PATHS]
    assert {path: 0.0 for path in paths if path.endswith(" adam")} == cells


def test_the_page_shows_the_table() -> None:
    if os.environ.get("UPDATE"):
        paths_tried.write_table(paths_tried.read_table())
        PAGE.write_text(paths_tried.page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == paths_tried.page()
