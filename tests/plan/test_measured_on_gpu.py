"""The plan against what bench/on_gpu.py measured on an H100 (tests/reference/h100.json).

No rate of the plan was derived from these rows, except `compiled_logit_traffic`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.devices import DEVICES
from tests.support.paths import ROOT
from tests.support.reference import read

MEASURED: dict[str, dict[str, Any]] = {row["name"]: row for row in read("h100.json")["models"]}


@pytest.fixture(params=MEASURED)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, dict[str, Any]]:
    """The plan of a model, and what was measured."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    bench, row = import_module("on_gpu"), MEASURED[request.param]
    way = bench.Way(row["micro_batch"], row["recompute"], row["offload"])
    return bench.plan(row["name"], way, DEVICES["H100-80GB"], False), row


def test_the_time_of_a_step(pair: tuple[Plan, dict[str, Any]]) -> None:
    plan, row = pair
    assert plan.speed.step / row["seconds"] == pytest.approx(1, abs=0.08)


def test_memory(pair: tuple[Plan, dict[str, Any]]) -> None:
    plan, row = pair
    # The plan does not count what compiled layers save: Llama's SwiGLU keeps less.
    most = 1.15 if "compiled" in row["name"] else 1.01
    assert 0.99 < plan.fullest.allocated / row["tensors"] < most
    assert plan.fullest.peak / row["used"] == pytest.approx(1, abs=0.14 if "compiled" in row["name"] else 0.07)


def test_the_recorded_layouts_agree_with_the_cpu_as_the_bench_judges_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    bench, rows = import_module("on_gpu"), read("h100.json")["layouts"]
    assert len(rows) == 63 and {row["name"] for row in rows} <= set(bench.LAYOUTS)
    for row in rows:
        logits = [row["logits"]] if row["logits"] is not None else None
        found = {"losses": [1 + row["difference"]], "logits": logits}
        assert bench.compare(row["name"], found, {"losses": [1.0], "logits": [0.0]})["problem"] == "", row["name"]
