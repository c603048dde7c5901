"""Compare published layouts with what `deepy plan --search` finds for the same model, devices and batch.

    python bench/search_against_published.py FIGURES.tsv [--runs 10]

For the largest run of each model in a table of published figures (three models per source), the search plans all
layouts of the same number of devices, under the same assumptions about the program. A published layout is on the front
if no layout is both faster and smaller. For one that is not, the table names the fastest layout that needs no more
memory, and the component of the step in which the plan expects the difference, with the assumption that decides it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import plan_against_published as published
from plan_against_published import ROOT
from published_programs import LeftOut
from published_rows import Case, Row

sys.path.insert(0, str(ROOT))

from neoxargs.base.problems import Problems
from neoxargs.plan.advice.smaller import Changes
from neoxargs.plan.estimate import Plan
from neoxargs.plan.search.search import Found, Search

#: Component of a step -> the assumption that decides it.
DECIDED_BY = {
    "compute": "matmul, eager: the rates of matrix multiplications and of other kernels",
    "bubble": "the schedule: 1F1B without interleaved stages, which DeepSpeed's pipeline engine has",
    "tensor": "link: the share of the links' rate that collectives reach; none of it overlaps computation",
    "pipe": "link: the share of the links' rate",
    "data": "overlap: the share of the computation that hides ZeRO's messages",
    "optimizer": "step_traffic: the memory traffic of the optimizer",
    "lost": "losses: what several GPUs lose besides",
}
#: Step times closer than this are the same.
SAME = 0.01
MOST_PER_SOURCE = 3


@dataclass(frozen=True)
class Verdict:
    """A published layout, and the layout that the plan prefers to it, if there is one."""

    row: Row
    plan: Plan
    better: Found | None
    planned: int
    seconds: float

    def line(self) -> str:
        speed = self.plan.speed
        run = f"{self.row['model']} on {speed.ranks} x {self.plan.target.device.name}"
        if self.better is None:
            return f"{run}: on the front, {speed.step:.3g} s ({self.planned} layouts in {self.seconds:.1f} s)"
        gain = speed.step / self.better.seconds
        return f"{run}: not on the front; {gain:.2f}x as fast: {self.better.layout}. {self._reason(self.better)}"

    def _reason(self, better: Found) -> str:
        saved = {name: getattr(self.plan.speed, name) - getattr(better.plan.speed, name) for name in DECIDED_BY}
        component = max(saved, key=lambda name: saved[name])
        return f"It saves {saved[component]:.3g} s of {component}; decided by {DECIDED_BY[component]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", type=Path, help="a table of published figures")
    parser.add_argument("--runs", type=int, default=10, help="compare this many models (default: %(default)s)")
    options = parser.parse_args()
    verdicts = []
    for case, plan in largest_runs(published.read_rows(options.figures)):
        verdicts.append(verdict(case, plan))
        print(verdicts[-1].line(), flush=True)
        if len(verdicts) == options.runs:
            break
    print(
        f"{sum(verdict.better is None for verdict in verdicts)} of {len(verdicts)} published layouts are on the front"
    )


def largest_runs(rows: Sequence[Row]) -> Iterator[tuple[Case, Plan]]:
    """Yield the largest planned run of each model on several hosts, of at most MOST_PER_SOURCE models per source."""
    cases: dict[str, Case] = {}
    for row in rows:
        try:
            case = published.case_of(row)
        except (LeftOut, ValueError):
            continue
        if published.KINDS.get(row["measured_kind"]) == published.SPEED and case.gpus > case.per_host:
            known = cases.get(row["model"])
            cases[row["model"]] = case if known is None or case.gpus > known.gpus else known
    chosen = Counter[str]()
    for case in cases.values():
        try:
            plan = published.plan_of(case)
        except Problems:
            continue
        if plan.fits and chosen[case.row["source_repo"]] < MOST_PER_SOURCE:
            chosen[case.row["source_repo"]] += 1
            yield case, plan


def verdict(case: Case, plan: Plan) -> Verdict:
    """Search the layouts of a published run and return the fastest that needs no more memory and is faster."""

    def planned(changes: Changes) -> Plan:
        return published.plan_of(replace(case, changes=merged(case.changes, changes)))

    began = time.monotonic()
    samples = plan.config.batch.train_batch_size
    result = Search(plan.config, case.per_host, planned, lambda count: None, samples).run(case.gpus)
    smaller = [found for found in result.fitting if found.memory <= plan.fullest.peak]
    faster = [found for found in smaller if found.seconds < plan.speed.step * (1 - SAME)]
    better = min(faster, key=lambda found: found.seconds, default=None)
    return Verdict(case.row, plan, better, result.planned, time.monotonic() - began)


def merged(values: dict[str, object], changes: Changes) -> dict[str, object]:
    """Return the values with changes whose keys may name a part of a section, such as `zero_optimization.stage`."""
    copy: dict[str, object] = json.loads(json.dumps(values))
    for key, value in changes.items():
        *sections, name = key.split(".")
        held = copy
        for section in sections:
            held = held.setdefault(section, {})  # type: ignore[assignment]
        held[name] = value
    return copy


if __name__ == "__main__":
    main()
