"""bench/plan_terms.py finds a cause that there is, and says so of the published runs where there is none."""

from __future__ import annotations

import math
import random
from types import ModuleType
from typing import Any

import pytest

from tests.support.paths import AFTERWARDS, DOCS, FIGURES

BENCH = "plan_terms"


def judged(bench: ModuleType, runs: list[Any], term: str) -> tuple[str, float]:
    """Return the fitted number of a term, and the error of the sources that were left out."""
    [line] = [line for line in bench.table(runs) if line.startswith(f"| {term}")]
    _, _, fitted, error, *_ = (cell.strip() for cell in line.strip("|").split("|"))
    return fitted, float(error.rstrip("%"))


def test_a_planted_cause_is_found_in_sources_that_were_left_out(bench: ModuleType) -> None:
    """Runs of five sources lose twice the time of their tensor communication, and 10 % for another reason."""
    tensor = "tensor communication"
    drawn, runs = random.Random(1), []
    for source in "abcde":
        for _ in range(20):
            shares = {name: drawn.uniform(0, 0.3) for name in bench.TERMS} | {next(iter(bench.TERMS)): 0.0}
            [name] = (each for each in shares if each.startswith(tensor))
            error = math.log(1.1 * (1 + 2 * shares[name]))
            run = bench.Run(source, "throughput", error, several=True, beyond=False, foreign=False, tuned=False)
            runs.append(bench.Timed(run, shares))
    assert judged(bench, runs, tensor) == ("2 to 2", 0.0)
    assert bench.fit(runs, next(iter(bench.TERMS))).error > 0.1


@pytest.mark.slow
@pytest.mark.skipif(not FIGURES.is_file(), reason=f"no figures in {FIGURES}")
def test_the_page_is_that_of_the_program(bench: ModuleType) -> None:
    _, written, _ = bench.published.written_between_markers(DOCS / "plan.md", "terms")
    command = f"python bench/plan_terms.py {FIGURES.name} {AFTERWARDS.name} --page docs/plan.md"
    runs = bench.timed([FIGURES, AFTERWARDS])
    assert written.strip() == "\n".join(bench.table(runs)).strip(), f"run {command}"
    errors = [judged(bench, runs, term)[1] for term in bench.TERMS]
    assert min(errors) >= errors[0] - 1, "a cause was found: say so on the page"
