"""Estimate the errors of `deepy plan` from published figures, and show how often its 80 % intervals hold.

    python bench/plan_intervals.py FIGURES.tsv ... [--write] [--page docs/plan.md]

A source is a repository, or a document where a repository has several programs. Every source has the same weight,
however many runs it measured: the next source differs from those known as they differ from each other, and a hundred
runs of one program on one machine say little about that. How often the intervals hold is judged on sources left out,
one after another: neither their runs nor the errors of their runs choose the numbers. --write writes the numbers to
neoxargs/plan/given/assumptions.json.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

import plan_against_published as published
from plan_against_published import MEMORY, ROOT, SPEED

sys.path.insert(0, str(ROOT))

import gpu_models

from neoxargs.hosts.device_table import DEVICES
from neoxargs.plan.estimate import Plan
from neoxargs.plan.given import assumptions
from neoxargs.plan.given.assumptions import DEFAULT

SHARE = 0.8
#: Repositories whose documents are of one program on one machine.
ONE_PROGRAM = ("Aleph-Alpha/", "pytorch/torchtitan")
#: Notes of runs whose kernels or network train.py's plan is not meant for: attention of separate operators, which
#: train.py never runs, and a network of unknown rate.
FOREIGN = re.compile("transformers, eager|minGPT|rate not said")


@dataclass(frozen=True)
class Run:
    """A measured value as log(measured / planned), of time or memory, without the loss of several GPUs."""

    source: str
    kind: str
    error: float
    several: bool
    beyond: bool
    """Whether the plan says that the sources do not cover it."""
    foreign: bool
    tuned: bool
    """Whether rates of the plan were chosen by looking at this source."""
    compared: tuple[object, ...] = ()
    """What layouts share whose times are compared with each other."""
    device: str = ""


@dataclass(frozen=True)
class Fit:
    """The numbers that the plan assumes; names are those of assumptions.json."""

    slowdown: float
    error_time: float
    error_time_one: float
    error_memory: float
    beyond_time: float
    beyond_memory: float
    error_layouts: float

    def deviation(self, run: Run) -> float:
        """log(measured / planned), with the loss."""
        return run.error - (math.log(self.slowdown) if run.kind == SPEED and run.several else 0.0)

    def error(self, run: Run) -> float:
        """The factor of a run's interval."""
        if run.kind == MEMORY:
            return self.error_memory * (self.beyond_memory if run.beyond else 1)
        return (self.error_time if run.several else self.error_time_one) * (self.beyond_time if run.beyond else 1)

    def holds(self, run: Run) -> bool:
        return abs(self.deviation(run)) <= math.log(self.error(run)) + 1e-9


def runs_of(files: Iterable[Path]) -> list[Run]:
    """Return the published runs of the tables, and those of train.py on one GPU."""
    rows = [row for file in files for row in published.read_rows(file)]
    runs = [
        run_of(row, published.comparison(row, case, plan), plan)
        for row, case, plan in published.planned(rows, Counter())
        if published.KINDS[row["measured_kind"]] != published.VERDICT
    ]
    return [*runs, *own_runs()]


def run_of(row: dict[str, str], compared: published.Comparison, plan: Plan) -> Run:
    is_time, several = compared.kind == SPEED, plan.layout.ranks > 1
    loss = math.log(DEFAULT.slowdown) if is_time and several else 0.0
    # a rate is too high where a time is too low
    error = math.log(compared.ratio) * (1 if is_time else -1) + loss
    foreign = bool(FOREIGN.search(row["note"]))
    document = published.source_of(row)
    source = row["source_repo"] if row["source_repo"].startswith(ONE_PROGRAM) else document
    later = document in _AFTERWARDS
    same = (source, compared.model, plan.target.device.name, plan.layout.ranks, row["seq"], row["note"])
    return Run(source, compared.kind, error, several, bool(plan.beyond), foreign,
               not later and not published.is_held_out(document), same, plan.target.device.name)  # fmt: skip


#: Documents that were found after the rates were chosen.
_AFTERWARDS = {
    published.source_of(row)
    for row in published.read_rows(ROOT / "tests" / "reference" / "published_afterwards.tsv")
}  # fmt: skip


def own_runs() -> Iterator[Run]:
    """Yield the runs of train.py that bench/on_gpu.py measured on one GPU."""
    for device, name in (("H100-80GB", "h100.json"), ("H200-141GB", "h200.json")):
        for row in json.loads((ROOT / "tests" / "reference" / name).read_text(encoding="utf-8"))["models"]:
            way = gpu_models.Way(row["micro_batch"], row["recompute"], row["offload"])
            plan = gpu_models.plan(row["name"], way, DEVICES[device], False)
            for kind, measured, value in (
                (SPEED, row["seconds"], plan.speed.step),
                (MEMORY, row["used"], plan.fullest.peak),
            ):
                error = math.log(measured / value)
                yield Run(f"deepy on an {device}", kind, error, False, bool(plan.beyond), False, False, device=device)


def quantile(runs: Sequence[Run], value: Callable[[Run], float], share: float = SHARE) -> float:
    """Return the quantile of a value over runs, with the same weight for every source."""
    counts = Counter(run.source for run in runs)
    pairs = sorted((value(run), 1 / counts[run.source]) for run in runs)
    total, below = sum(weight for _, weight in pairs), 0.0
    for number, weight in pairs:
        below += weight
        if below >= share * total - 1e-9:
            return number
    return pairs[-1][0] if pairs else 0.0


def fit(runs: Sequence[Run]) -> Fit:
    """Return the numbers of these runs."""
    times = [run for run in runs if run.kind == SPEED and not run.foreign]
    memory = [run for run in runs if run.kind == MEMORY and not run.foreign]
    several = [run for run in times if run.several]
    # the rates were chosen so that the tuned sources have no loss
    loss = middle(run for run in several if not run.tuned and not (run.beyond and not run.device.startswith("V100")))
    # two sources, of one program: their largest error
    one = max((abs(run.error) for run in times if not run.several and not run.beyond), default=0.0)

    def off(run: Run) -> float:
        return abs(run.error - (loss if run.kind == SPEED and run.several else 0.0))

    within = quantile([run for run in several if not run.beyond], off)
    held = quantile([run for run in memory if not run.beyond], off)
    far = [run for run in runs if run.beyond or run.foreign]
    return Fit(
        slowdown=math.exp(loss),
        error_time=math.exp(within),
        error_time_one=math.exp(one),
        error_memory=math.exp(held),
        beyond_time=math.exp(max(0.0, quantile([run for run in far if run.kind == SPEED], off) - within)),
        beyond_memory=math.exp(max(0.0, quantile([run for run in far if run.kind == MEMORY], off) - held)),
        error_layouts=math.exp(between_layouts(several)),
    )


def middle(runs: Iterable[Run]) -> float:
    """Return the median of the sources' medians."""
    errors = defaultdict(list)
    for run in runs:
        errors[run.source].append(run.error)
    return median(map(median, errors.values()))


def between_layouts(runs: Iterable[Run]) -> float:
    """Return the quantile of the error of the ratio of two times, over pairs of layouts of the same model."""
    groups = defaultdict(list)
    for run in runs:
        if not run.beyond and run.compared:
            groups[run.compared].append(run)
    pairs = [
        Run(first.source, SPEED, abs(first.error - second.error), True, False, False, False)
        for group in groups.values()
        for first, second in combinations(group, 2)
    ]
    return quantile(pairs, lambda pair: pair.error)


def left_out(runs: Sequence[Run]) -> list[tuple[Run, Fit]]:
    """Return each run with the numbers of all other sources."""
    fits = {
        source: fit([run for run in runs if run.source != source]) for source in sorted({run.source for run in runs})
    }
    return [(run, fits[run.source]) for run in runs]


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the coverage and width of the intervals in Markdown, by kind, by device and by source."""
    pairs = left_out(runs)
    compared = "median planned / measured | holds, of runs | holds, of sources | median width"
    yield f"| | figure | sources | runs | {compared} |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    groups: dict[str, Callable[[Run], bool]] = {
        "**all**": lambda run: True,
        "several GPUs, covered": lambda run: run.several and not run.beyond and not run.foreign,
        "one GPU": lambda run: not run.several and not run.beyond,
        "beyond the sources": lambda run: run.beyond or run.foreign,
        **{f"{name}": (lambda run, name=name: run.device.startswith(name)) for name in ("V100", "A100", "H")},
        **{source: (lambda run, source=source: run.source == source) for source in sorted({r.source for r in runs})},
    }
    for name, belongs in groups.items():
        for kind in (SPEED, MEMORY):
            chosen = [(run, found) for run, found in pairs if run.kind == kind and belongs(run)]
            if chosen:
                yield _line(name, kind, chosen)


def _line(name: str, kind: str, chosen: Sequence[tuple[Run, Fit]]) -> str:
    by_source = defaultdict(list)
    for run, found in chosen:
        by_source[run.source].append(found.holds(run))
    # planned / measured rates are measured / planned times
    sign = 1 if kind == SPEED else -1
    ratio = median(math.exp(sign * found.deviation(run)) for run, found in chosen)
    holds = sum(map(sum, by_source.values())) / len(chosen)
    of_sources = sum(sum(each) / len(each) for each in by_source.values()) / len(by_source)
    width = median(found.error(run) ** 2 for run, found in chosen)
    return (f"| {name} | {kind} | {len(by_source)} | {len(chosen)} | {ratio:.2f} | {holds:.0%} | {of_sources:.0%} | "
            f"{width:.2f} |")  # fmt: skip


def write(found: Fit) -> None:
    """Write the numbers to the file of assumptions."""
    path = Path(assumptions.__file__).with_suffix(".json")
    text = path.read_text(encoding="utf-8")
    for name, value in vars(found).items():
        text = re.sub(rf'("{name}": \[)[\d.]+', rf"\g<1>{value:.2f}", text)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", type=Path, nargs="+", help="tables of published figures")
    parser.add_argument("--write", action="store_true", help="write the numbers to assumptions.json")
    parser.add_argument("--page", type=Path, help="write the table between the markers of this page")
    options = parser.parse_args()
    runs = runs_of(options.figures)
    found = fit(runs)
    print("\n".join(f"{name}: {value:.3f}" for name, value in vars(found).items()), end="\n\n")
    print("\n".join(table(runs)))
    if options.write:
        write(found)
    if options.page:
        published.write_between_markers(options.page, "intervals", table(runs))


if __name__ == "__main__":
    main()
