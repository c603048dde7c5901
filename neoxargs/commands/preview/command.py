"""`deepy preview FILE ...`: what the run will do, as one screen or one page; nothing is started."""

from __future__ import annotations

import argparse
import json
from typing import Any

from neoxargs.base.charts.html_page import BEGINNING
from neoxargs.base.files import Text
from neoxargs.base.options import add_json
from neoxargs.base.problems import report
from neoxargs.base.write_files import require_replaceable, write_all
from neoxargs.commands.preview.forecast import Forecast
from neoxargs.facts import context
from neoxargs.plan.command import plan_of
from neoxargs.plan.given import options as plan_options
from neoxargs.plan.given.errors import Interval

DESCRIPTION = (
    "Show what a run will do: its learning rate, the tokens and epochs of each source, evaluations, checkpoints and "
    "their disk space, and the planned time. Starts nothing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    plan_options.add_target_arguments(parser)
    parser.add_argument("--html", metavar="FILE", help="also write an HTML page with charts")


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if the run does not fit or would be refused. Raises Problems."""
    require_replaceable(arguments.html, BEGINNING)
    forecast = Forecast(plan_of(plan_options.options_of(arguments)))
    if arguments.html:
        from neoxargs.commands.preview.page import to_html

        write_all([Text(arguments.html, to_html(forecast, arguments.files))])
    if arguments.json:
        print(json.dumps(to_json(forecast), indent=1))
        return int(not forecast.ok)
    from neoxargs.commands.preview.text import to_text

    report(forecast.problems, end="\n\n")
    print(to_text(forecast))
    return int(not forecast.ok)


def to_json(forecast: Forecast) -> dict[str, Any]:
    """Return the forecast for a program."""
    timeline = forecast.timeline
    return {
        "ok": forecast.ok,
        "fits": forecast.plan.fits,
        "problems": [problem.to_json() for problem in forecast.problems],
        "iterations": {"first": timeline.start + 1, "last": timeline.iterations},
        "tokens": timeline.tokens_left,
        "context_parallel": context.to_json(forecast.config),
        "samples_left_out": timeline.position.left_out,
        "batch": [{"from": iteration, "samples": size} for iteration, size in timeline.batches],
        "learning_rate": timeline.learning_rate,
        "weight_decay": timeline.weight_decays if timeline.weight_decay.changes else [],
        "data": [
            {
                "source": each.name,
                "tokens": round(each.tokens),
                "tokens_left": round(timeline.tokens_left_of(each)),
                "tokens_of_one_pass": None if each.available is None else round(each.available),
                "epochs": each.epochs,
                "repeats_in": timeline.repeats_in(each),
            }
            for each in timeline.drawn
        ],
        "evaluations": timeline.evaluations,
        "checkpoints": {
            "iterations": timeline.saves,
            "bytes": timeline.checkpoint_bytes,
            "bytes_on_disk": timeline.disk_bytes,
        },
        "seconds": {
            "training": forecast.seconds - forecast.evaluation_seconds,
            "evaluation": forecast.evaluation_seconds,
        },
        "interval": {"seconds": Interval.of(forecast.seconds, forecast.plan.time_error)},
        "cost": forecast.cost,
        "continues": str(forecast.continues) if forecast.continues else None,
        "differences": {each.name: list(each.values) for each in forecast.differences},
    }
