"""Compare the memory traffic that `deepy plan` counts in a layer with a trace, for the files of configs/models.

    python bench/traffic_against_trace.py [--only pythia-1b] [--set KEY=VALUE] [--write]

Norms, sums, activation functions, rotations and gradients of biases: all operators of a layer but matrix products and
attention, forward and backward, in passes over the residual stream (neoxargs/plan/memory/traffic.py). The traced
traffic of one layer is the difference between a model of three layers and one of two, on the first layout without a
pipeline on which the model fits. The copies that sequence parallelism makes around its messages are not counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import plan_against_trace as against

from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.traffic import passes

#: Numbers of layers; the second has one more.
LAYERS = (2, 3)
#: The masks of unfused attention, which the plan counts with the scores, are in the trace of phi-3-mini.
TOLERANCE = 0.05
BEGIN, END = "<!-- written by bench/traffic_against_trace.py -->\n", "<!-- end of traffic -->\n"


class Traffic(NamedTuple):
    """Passes over the residual stream that one layer makes, forward and backward."""

    model: str
    layout: str
    planned: float
    traced: float

    @property
    def error(self) -> float:
        return self.planned / self.traced - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", choices=against.MODELS, metavar="NAME", help="compare this file of configs/models only"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a value")
    parser.add_argument("--write", action="store_true", help=f"write the table of docs/{against.PAGE.name}")
    options = parser.parse_args()
    rows = []
    for model in [options.only] if options.only else against.MODELS:
        layouts = [layout for layout in against.LAYOUTS[0] if against.fits(model, layout, options.set, against.GPUS[0])]
        if layouts:
            rows.append(row := compare(model, layouts[0], options.set))
            both = f"{row.planned:8.2f} planned, {row.traced:8.2f} traced"
            print(f"{model:18} {row.layout:14} {both} ({row.error:+.1%})", flush=True)
    if options.write:
        _write(rows)
    return int(any(abs(row.error) > TOLERANCE for row in rows))


def _write(rows: Sequence[Traffic]) -> None:
    head, _, tail = against.PAGE.read_text(encoding="utf-8").partition(BEGIN)
    against.PAGE.write_text(head + BEGIN + table(rows) + END + tail.partition(END)[2], encoding="utf-8")


def compare(model: str, layout: str, sets: Sequence[str] = ()) -> Traffic:
    """Return both counts. The layout has no pipeline."""
    files, moved = against.files_of(model, layout), []
    for layers in LAYERS:
        changed = [*sets, f"num_layers={layers}"]
        plan = against.plan_of(files, changed)
        assert plan is not None, f"{layout} does not suit {model}"
        moved.append(against.trace_of(plan, files, changed, 0).moved)
    sizes = ActivationSizes(plan.config)
    return Traffic(model, layout, sum(passes(sizes)), (moved[1] - moved[0]) / sizes.hidden)


def table(rows: Sequence[Traffic]) -> str:
    """Return the Markdown table of the page."""
    lines = ["| model | layout | planned passes | traced passes | error |", "|---|---|--:|--:|--:|"]
    lines += [
        f"| {row.model} | {row.layout} | {row.planned:.1f} | {row.traced:.1f} | {row.error:+.1%} |" for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
