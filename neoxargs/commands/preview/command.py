"""`deepy preview FILE ...`: what the run will do, as one screen or one page; nothing is started."""

from __future__ import annotations

import argparse
import json
from typing import Any

from neoxargs.base.charts.html_page import BEGINNING
from neoxargs.base.files import Text
from neoxargs.base.options import add_json
from neoxargs.base.problems import has_errors, report
from neoxargs.base.write_files import require_replaceable, write_all
from neoxargs.commands.preview.forecast import Forecast
from neoxargs.plan.command import plan_of
from neoxargs.plan.given import options as plan_options

DESCRIPTION = (
    "Show what a run will do: its learning rate, the tokens and epochs of each source, evaluations, checkpoints and "
    "their disk space, and the planned time. Starts nothing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    plan_options.add_target_arguments(parser)
    price = "the price of one device for an hour, in any currency; prints the cost of the run"
    parser.add_argument("--price", metavar="PRICE", type=_price, help=price)
    parser.add_argument("--html", metavar="FILE", help="also write an HTML page with charts")


def _price(text: str) -> float:
    return plan_options.positive(text, "a price per device and hour")


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 if a launch would refuse the checkpoint. Raises Problems."""
    require_replaceable(arguments.html, BEGINNING)
    forecast = Forecast(plan_of(plan_options.options_of(arguments)), arguments.price)
    if arguments.html:
        from neoxargs.commands.preview.page import to_html

        write_all([Text(arguments.html, to_html(forecast, arguments.files))])
    if arguments.json:
        print(json.dumps(to_json(forecast), indent=1))
        return int(has_errors(forecast.problems))
    from neoxargs.commands.preview.text import to_text

    report(forecast.problems, end="\n\n")
    print(to_text(forecast))
    return int(has_errors(forecast.problems))


def to_json(forecast: Forecast) -> dict[str, Any]:
    """Return the forecast for a program."""
    return {
        "ok": not has_errors(forecast.problems),
        "fits": forecast.plan.fits,
        "problems": [problem.to_json() for problem in forecast.problems],
        "iterations": {"first": forecast.start + 1, "last": forecast.iterations},
        "tokens_per_iteration": forecast.tokens_per_iteration,
        "learning_rate": forecast.learning_rate,
        "data": [
            {
                "source": each.source.prefix,
                "tokens": round(each.tokens),
                "tokens_of_one_pass": None if each.available is None else round(each.available),
                "epochs": each.epochs,
                "repeats_in": each.repeats_in(forecast.iterations),
            }
            for each in forecast.drawn
        ],
        "evaluations": forecast.evaluations,
        "checkpoints": {
            "iterations": forecast.saves,
            "bytes": forecast.checkpoint_bytes,
            "bytes_on_disk": forecast.disk_bytes,
        },
        "seconds": {
            "training": forecast.seconds - forecast.evaluation_seconds,
            "evaluation": forecast.evaluation_seconds,
        },
        "cost": forecast.cost,
        "continues": str(forecast.continues) if forecast.continues else None,
        "differences": {each.name: list(each.values) for each in forecast.differences},
    }
