"""Learn the rates of this machine's CPU from a few runs, and compare the plan of other runs with what they take.

    python bench/plan_learn.py [--write] [--turns 3] [--steps 40]

Each run is `deepy.py train.py` of a small GPT. LEARNED are what the rates are learned from; none of the others is a
layout, a size, a batch or a sequence length of theirs. The runs are made several times in turns, because the speed of a
machine drifts; the spread of these repeats is printed beside the errors. --write writes the table to docs/plan.md.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from cpu_runs import ROOT, command, configuration_file, environment, prepare

from neoxargs.plan.given.assumptions import DEFAULT, Assumptions
from neoxargs.plan.learn.measured import Measured, measured_runs
from neoxargs.plan.learn.posterior import learn

PLAIN = {"pipe_parallel_size": 0, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}
LARGER = {"hidden_size": 512, "num_layers": 3}
#: What the rates are learned from.
LEARNED: dict[str, dict[str, Any]] = {
    "one process": PLAIN,
    "data parallel 2": {**PLAIN, "num_gpus": 2},
}
#: What is predicted.
OTHERS: dict[str, dict[str, Any]] = {
    "tensor parallel 2": {**PLAIN, "num_gpus": 2, "model_parallel_size": 2},
    "pipeline 2": {**PLAIN, "num_gpus": 2, "pipe_parallel_size": 2, "train_micro_batch_size_per_gpu": 1},
    "data parallel 2, hidden 512": {**PLAIN, **LARGER, "num_gpus": 2},
    "data parallel 2, 8 layers of 128": {**PLAIN, "num_gpus": 2, "hidden_size": 128, "num_layers": 8},
    "one process, hidden 512": {**PLAIN, **LARGER},
    "one process, 1,024 tokens": {**PLAIN, "seq_length": 1024, "max_position_embeddings": 1024, "train_batch_size": 4},
    "one process, recomputed": {**PLAIN, "checkpoint_activations": True},
    "data parallel 2, ZeRO-1": {**PLAIN, "num_gpus": 2, "zero_optimization": {"stage": 1}},
    "data parallel 2, batch of 32": {**PLAIN, "num_gpus": 2, "train_batch_size": 32},
    "tensor 2, hidden 512": {**PLAIN, **LARGER, "num_gpus": 2, "model_parallel_size": 2},
}
MARKS = "<!-- learned: start, written by bench/plan_learn.py -->", "<!-- learned: end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table to docs/plan.md")
    parser.add_argument("--turns", type=int, default=3, help="how often each run is made (default: 3)")
    parser.add_argument("--steps", type=int, default=40, help="iterations of a run (default: 40)")
    options = parser.parse_args()
    runs = measure(LEARNED | OTHERS, options.turns, options.steps)
    table = "\n".join(lines(runs))
    print(table)
    if options.write:
        page = ROOT / "docs" / "plan.md"
        before, rest = page.read_text(encoding="utf-8").split(MARKS[0])
        page.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")


def measure(layouts: dict[str, dict[str, Any]], turns: int, steps: int) -> dict[str, list[Measured]]:
    """Return name -> the repeats of a run."""
    found: dict[str, list[Measured]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        base = prepare(Path(folder), 512, steps)
        for turn in range(turns):
            for name, changes in layouts.items():
                run_dir = Path(folder, f"{len(found)}-{turn}")
                file = configuration_file({**base, **changes, "log_interval": 10}, run_dir)
                subprocess.run(command(ROOT, file), env=environment(changes.get("num_gpus", 1)), check=True,
                               stdout=subprocess.DEVNULL, timeout=600)  # fmt: skip
                found[name] += measured_runs(str(run_dir))
                print(f"{name}: {found[name][-1].seconds:.3f} s", file=sys.stderr)
    return found


def lines(runs: dict[str, list[Measured]]) -> Iterable[str]:
    """Yield a Markdown table: measured, planned without and with the rates."""
    rates = learn([run for name in LEARNED for run in runs[name]])
    learned = Assumptions(**rates.values)
    errors: list[float] = []
    yield "| run | measured | spread of repeats | planned / measured | with the learned rates |"
    yield "|---|--:|--:|--:|--:|"
    for name in [*LEARNED, *OTHERS]:
        times = [run.seconds for run in runs[name]]
        middle, spread = median(times), max(times) / min(times) - 1
        before, after = (runs[name][0].planned(assumed) / middle for assumed in (DEFAULT, learned))
        shown = f"{name} (learned from)" if name in LEARNED else name
        yield f"| {shown} | {middle:.3g} s | {spread:.0%} | {before:.2f} | {after:.2f} |"
        errors += [abs(math.log(after))] if name in OTHERS else []
    yield ""
    yield (
        f"The median error of the {len(errors)} predictions is {math.exp(median(errors)) - 1:.0%}, "
        f"the largest {math.exp(max(errors)) - 1:.0%}."
    )


if __name__ == "__main__":
    main()
