"""The 80 % intervals of a plan hold on published runs; what is printed of them."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from neoxargs.base.text import format_duration, format_number
from neoxargs.plan.command import print_plan
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given.assumptions import DEFAULT, ROWS
from neoxargs.plan.given.errors import odds
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.output.text import to_text
from neoxargs.plan.output.wording import assumption_notes, ranged, verdict
from tests.support.paths import AFTERWARDS, DOCS, FIGURES
from tests.support.plans import planned
from tests.support.snapshots import pinned

BENCH = "plan_intervals"


def shares(comparisons: list[Any], kind: str) -> tuple[float, float]:
    """Share of the runs whose interval holds, and the mean of the sources' shares without the unusual ones."""
    held = defaultdict(list)
    for each in comparisons:
        if each.kind == kind:
            held[each.source].append(each.holds)
    runs = [each for source in held.values() for each in source]
    return sum(runs) / len(runs), sum(sum(source) / len(source) for source in held.values()) / len(held)


def check_coverage(comparisons: list[Any]) -> None:
    of_runs, of_sources = shares(comparisons, "throughput")
    assert 0.8 <= of_runs <= 0.95 and 0.7 <= of_sources <= 0.95
    # half of these figures are of nvidia-smi and programs from 2020
    assert 0.55 <= shares(comparisons, "memory")[0] <= 0.95


@pytest.mark.slow
def test_the_intervals_hold_on_the_figures_found_afterwards(bench: ModuleType) -> None:
    comparisons = bench.published.compare(bench.published.read_rows(AFTERWARDS)).comparisons
    check_coverage(comparisons)
    for narrower in (1.5, 2.0):
        with pytest.raises(AssertionError):
            check_coverage([replace(each, error=each.error ** (1 / narrower)) for each in comparisons])
    with pytest.raises(AssertionError):
        check_coverage([replace(each, error=each.error * 2) for each in comparisons])
    assert 0.9 <= math.exp(sum(math.log(each.ratio) for each in comparisons) / len(comparisons)) <= 1.1


@pytest.mark.slow
@pytest.mark.skipif(not FIGURES.is_file(), reason=f"no figures in {FIGURES}")
def test_the_numbers_and_the_page_are_those_of_the_program(bench: ModuleType) -> None:
    runs = bench.runs_of([FIGURES, AFTERWARDS])
    found = vars(bench.fit(runs))
    assert {name: getattr(DEFAULT, name) for name in found} == {name: round(each, 2) for name, each in found.items()}
    _, written, _ = bench.published.written_between_markers(DOCS / "plan.md", "intervals")
    command = f"python bench/plan_intervals.py {FIGURES.name} {AFTERWARDS.name} --write --page docs/plan.md"
    assert written.strip() == "\n".join(bench.table(runs)).strip(), f"run {command}"


def run(bench: ModuleType, source: str, error: float, **changes: Any) -> Any:
    given = {"kind": "throughput", "several": True, "beyond": False, "foreign": False, "tuned": False}
    return bench.Run(source=source, error=error, **{**given, **changes})


def test_every_source_has_the_same_weight(bench: ModuleType) -> None:
    """A hundred runs of one source that are as planned do not outweigh two sources that are slower."""
    runs = [run(bench, "large", 0.0) for _ in range(100)] + [run(bench, "b", 0.2), run(bench, "c", 0.3)]
    assert bench.fit(runs).slowdown == pytest.approx(math.exp(0.2))
    assert bench.fit(runs).error_time == pytest.approx(math.exp(0.2))


def test_a_source_that_is_left_out_does_not_choose_its_numbers(bench: ModuleType) -> None:
    runs = [run(bench, name, error) for name, error in (("a", 0.0), ("b", 0.1), ("c", 5.0))]
    found = {each.source: numbers for each, numbers in bench.left_out(runs)}
    assert found["c"].slowdown < 1.2 < found["a"].slowdown
    assert not found["c"].holds(runs[2])


def test_runs_of_other_kernels_only_widen_what_is_beyond(bench: ModuleType) -> None:
    usual = [run(bench, name, error) for name, error in (("a", 0.0), ("b", 0.1), ("c", 0.2))]
    odd = run(bench, "d", 2.0, foreign=True)
    plain, other = bench.fit(usual), bench.fit([*usual, odd])
    assert (plain.slowdown, plain.error_time) == (other.slowdown, other.error_time)
    assert plain.beyond_time == 1 < other.beyond_time


def on_h100(middle: str, *changes: str, **options: Any) -> Plan:
    return planned(middle, *changes, **{"device": "H100", **options})


def test_what_is_printed(middle: str) -> None:
    text = to_text(on_h100(middle), [])
    pinned(text, "per step")
    pinned(text, "steps in about")
    [note] = [each for each in assumption_notes(on_h100(middle, "moe_num_experts=4", device="V100")) if "80 %" in each]
    pinned(note)


def test_a_unit_is_said_once_where_it_is_the_same() -> None:
    assert ranged(1.31, 1.25, format_duration) == "1.31 s (1.05 to 1.64)"
    assert ranged(100, 1.25, format_duration) == "100 s (80 s to 2.08 minutes)"
    assert ranged(40, 1.25, format_number) == "40 (32 to 50)"


def test_the_verdict_is_sure_only_outside_of_the_interval(middle: str) -> None:
    peak = on_h100(middle).fullest.peak / 2**30 / DEFAULT.usable
    said = [
        verdict(on_h100(middle, device=None, gpu_memory=peak * factor)).split(":")[0]
        for factor in (1.12, 1.03, 0.97, 0.88)
    ]
    pinned("\n".join(said))


def test_odds() -> None:
    assert odds(10, 11, 1.1) == pytest.approx(0.9) and odds(11, 10, 1.1) == pytest.approx(0.1)
    assert odds(10, 10, 1.1) == pytest.approx(0.5)
    assert odds(10, 10, 1) == 1 and odds(10.1, 10, 1) == 0


@pytest.mark.parametrize(("changes", "options", "reasons"), [
    ([], {}, 0), ([], {"device": None}, 1), ([], {"device": "V100"}, 1), (["seq_length=256"], {}, 1),
    ([], {"gpus": 1032}, 1), (["moe_num_experts=4"], {}, 1),
    (["model_parallel_size=4"], {"per_host": 2}, 1), (["model_parallel_size=4"], {"per_host": 4}, 0),
    (["zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=cpu"], {}, 1),
])  # fmt: skip
def test_what_no_source_covers_is_named_and_less_sure(
    changes: list[str], options: dict[str, Any], reasons: int, middle: str
) -> None:
    plan = on_h100(middle, *changes, **options)
    assert len(plan.beyond) == reasons
    assert plan.time_error == pytest.approx(DEFAULT.error_time * DEFAULT.beyond_time**reasons)
    unnamed = options.get("device", "") is None
    assert plan.memory_error == pytest.approx(DEFAULT.error_memory * DEFAULT.beyond_memory ** (reasons - unnamed))


def test_tensor_groups_that_a_host_cuts_are_timed_by_the_network(middle: str) -> None:
    within, cut, across = (on_h100(middle, "model_parallel_size=4", gpus=24, per_host=each) for each in (8, 6, 2))
    assert not within.beyond and cut.beyond == across.beyond
    assert cut.speed.tensor == across.speed.tensor > 2 * within.speed.tensor


def test_one_gpu_has_no_loss_and_an_error_of_its_own(middle: str) -> None:
    one, two = on_h100(middle, gpus=1), on_h100(middle, gpus=2)
    assert one.speed.lost == 0 and one.time_error == DEFAULT.error_time_one
    assert two.speed.lost == pytest.approx((1 - 1 / DEFAULT.slowdown) * two.speed.step)


def test_json_has_intervals_beside_the_values(middle: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(PlanOptions([middle], gpus=8, device="H100", as_json=True))
    found = json.loads(capsys.readouterr().out)
    for holder in (found["speed"], found["host"], *found["stages"]):
        for name, (low, high) in holder["interval"].items():
            assert low < holder[name] < high and low * high == pytest.approx(holder[name] ** 2)
    assert found["odds"] == 1 and found["beyond"] == []


def test_the_page_has_the_factors_of_the_plan() -> None:
    page, names = (
        (DOCS / "plan.md").read_text(),
        ("slowdown", *(name for name in ROWS if name.startswith(("error_", "beyond_")))),
    )
    rows = re.findall(r"^\| (`(?:slowdown|error|beyond)\S*`(?:, `\S+`)*) \| ([0-9., ]+) \|", page, re.MULTILINE)
    shown = {
        name.strip("`"): float(x)
        for cells, values in rows
        for name, x in zip(cells.split(", "), values.split(", "), strict=True)
    }
    assert shown == {name: ROWS[name].default for name in names}
