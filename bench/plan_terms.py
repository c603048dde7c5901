"""Which single cause would explain why published runs of several GPUs take longer than `deepy plan` says.

    python bench/plan_terms.py FIGURES.tsv ... [--page docs/plan.md]

Each candidate adds its time, times a number, to the plan's. The number, and the loss that stays besides, are fitted to
all sources but one, and judged on that one. A candidate that is a cause makes the errors of sources left out smaller.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import plan_against_published as published
import plan_intervals
from plan_intervals import SHARE, Run, quantile

from neoxargs.plan.estimate import Plan

#: The candidates: seconds of a step that each adds, for the number 1.
Term = Callable[[Plan], float]
#: Numbers that are tried.
NUMBERS = [step / 4 for step in range(41)]


def layers(plan: Plan) -> float:
    """Layers that a rank computes in a step, counted for each micro batch."""
    return plan.config.get("num_layers") / plan.layout.pipe * micro_batches(plan)


def micro_batches(plan: Plan) -> float:
    return float(plan.config.get("gradient_accumulation_steps"))


TERMS: dict[str, tuple[Term, str]] = {
    "none: a constant factor, as of lower clock rates": (lambda plan: 0.0, ""),
    "tensor communication, as a share": (lambda plan: plan.speed.tensor, "nccl-tests"),
    "20 us per collective of tensor parallel ranks": (
        lambda plan: (plan.layout.tensor > 1) * 5 * layers(plan) * 20e-6,
        "nccl-tests",
    ),
    "exposed communication of replicas, as a share": (lambda plan: plan.speed.data, "arXiv:2304.11277"),
    "ring steps of ZeRO-3: 5 us per rank and collective": (
        lambda plan: (plan.config.get("zero_optimization.stage") == 3) * 3 * layers(plan) * plan.layout.data * 5e-6,
        "arXiv:2507.04786",
    ),
    "stragglers: 1% of the step per doubling of ranks": (
        lambda plan: (plan.speed.step - plan.speed.lost) * 0.01 * math.log2(plan.layout.ranks),
        "arXiv:2402.15627",
    ),
    "the host: 0.2 ms per layer and micro batch": (lambda plan: layers(plan) * 0.2e-3, "docs/gpus.md"),
    "the host: 10 ms per micro batch": (lambda plan: micro_batches(plan) * 0.01, "docs/gpus.md"),
    "0.5 s per step": (lambda plan: 0.5, "arXiv:2402.15627"),
}


@dataclass(frozen=True)
class Timed:
    """A run, and the share of its planned time that each candidate adds for the number 1."""

    run: Run
    shares: dict[str, float]

    def error(self, term: str, number: float) -> float:
        """log(measured / planned) with a term."""
        return self.run.error - math.log1p(number * self.shares[term])


@dataclass(frozen=True)
class Fit:
    """What was fitted to sources: the number of a term, and the loss and the error that stay."""

    number: float
    loss: float
    error: float


def timed(files: Sequence[Path]) -> list[Timed]:
    """Return the runs of several GPUs that the plan covers."""
    rows = [row for file in files for row in published.read_rows(file)]
    found = []
    for row, case, plan in published.planned(rows, Counter()):
        if published.KINDS[row["measured_kind"]] == published.SPEED and plan.layout.ranks > 1 and not plan.beyond:
            step = plan.speed.step - plan.speed.lost
            shares = {name: term(plan) / step for name, (term, _) in TERMS.items()}
            found.append(Timed(plan_intervals.run_of(row, published.comparison(row, case, plan), plan), shares))
    return [each for each in found if not each.run.foreign]


def fit(runs: Sequence[Timed], term: str) -> Fit:
    """Return the number with which the errors differ least, all sources weighing the same."""
    return min((_with(runs, term, number) for number in NUMBERS), key=lambda found: found.error)


def _with(runs: Sequence[Timed], term: str, number: float) -> Fit:
    by_source = defaultdict(list)
    for each in runs:
        by_source[each.run.source].append(each.error(term, number))
    loss = median(map(median, by_source.values()))
    off = {id(each.run): abs(each.error(term, number) - loss) for each in runs}
    return Fit(number, loss, quantile([each.run for each in runs], lambda run: off[id(run)], SHARE))


def table(runs: Sequence[Timed]) -> Iterator[str]:
    """Yield what each candidate explains of sources that were left out, in Markdown."""
    judged = "error of the source left out | its interval holds | width"
    yield f"| added to the planned time | source | fitted number | {judged} |"
    yield "|---|---|--:|--:|--:|--:|"
    sources = sorted({each.run.source for each in runs})
    for term, (_, reference) in TERMS.items():
        fits, errors, holds = [], [], []
        for source in sources:
            found = fit([each for each in runs if each.run.source != source], term)
            off = [each.error(term, found.number) - found.loss for each in runs if each.run.source == source]
            fits.append(found)
            errors.append(abs(median(off)))
            holds.append(mean(abs(each) <= found.error + 1e-9 for each in off))
        numbers = [found.number for found in fits]
        width = median(math.exp(2 * found.error) for found in fits)
        fitted = f"{min(numbers):g} to {max(numbers):g}" if reference else ""
        judged = f"{math.expm1(mean(errors)):.0%} | {mean(holds):.0%} | {width:.2f}"
        yield f"| {term} | {reference} | {fitted} | {judged} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", type=Path, nargs="+", help="tables of published figures")
    parser.add_argument("--page", type=Path, help="write the table between the markers of this page")
    options = parser.parse_args()
    runs = timed(options.figures)
    print("\n".join(table(runs)))
    if options.page:
        published.write_between_markers(options.page, "terms", table(runs))


if __name__ == "__main__":
    main()
