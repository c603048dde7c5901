"""`deepy plan`: where each rank runs, its memory in each phase and an estimate of speed; nothing is started."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence

from neoxargs.base.charts.html_page import BEGINNING
from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems, report
from neoxargs.base.record import replace
from neoxargs.base.write_files import require_replaceable, write_all
from neoxargs.plan.advice.faster import suggest_faster
from neoxargs.plan.advice.smaller import Suggestion, suggest_changes
from neoxargs.plan.estimate import Plan, make_plan
from neoxargs.plan.given.options import PlanOptions, options_of
from neoxargs.plan.given.placement import on_hosts
from neoxargs.plan.given.target import choose_device, choose_target
from neoxargs.resolve import Draft
from neoxargs.runs.run_spec import RunSpec, complete_run


def run(arguments: argparse.Namespace, texts: Sequence[Text] = (), left_out: Sequence[Problem] = ()) -> int:
    """Run `deepy plan` with its parsed command line and return the exit code.

    texts: in place of its files. left_out: what their conversion leaves out.
    """
    if arguments.learn:
        from neoxargs.plan.learn.command import run_learn

        return run_learn(arguments.files, arguments.write, arguments.json)
    options = replace(options_of(arguments), texts=texts, left_out=left_out)
    is_search = arguments.search or arguments.fewest
    if is_search or not options.as_json:
        report(left_out, end="\n\n")
    if is_search:
        from neoxargs.plan.search.command import SearchOptions, run_search

        search = SearchOptions(arguments.fewest, arguments.left_out, arguments.write, arguments.html)
        return run_search(options, search)
    unused = [
        Problem(f"{name} requires --search or --fewest", hint="add --search", id="search-option-without-search")
        for name, is_given in (("--write", arguments.write is not None), ("--left-out", arguments.left_out))
        if is_given
    ]
    if unused:
        raise Problems(unused)
    return print_plan(options, arguments.html)


def print_plan(options: PlanOptions, page: str | None = None) -> int:
    """Print the plan and return the exit code: 1 if the run does not fit, else 0. Raises Problems.

    page: the path of an HTML file to write as well.
    """
    require_replaceable(page, BEGINNING)
    plan, suggestions = plan_and_suggest(options)
    if page:
        from neoxargs.plan.output.html import to_html

        write_all([Text(page, to_html(plan, suggestions, options.files))])
    if options.as_json:
        from neoxargs.plan.output.json import to_json

        print(json.dumps(to_json(plan, suggestions, options.left_out), indent=1))
    else:
        from neoxargs.plan.output.text import to_text

        report(plan.warnings, end="\n\n")
        print(to_text(plan, suggestions))
    return int(not plan.fits)


def plan_and_suggest(options: PlanOptions) -> tuple[Plan, list[Suggestion]]:
    """Return the plan, and changes with which the run would fit or, if it fits, would be faster. Raises Problems."""
    drafted = options.draft()
    plan = _plan(drafted, options)
    suggest = suggest_faster if plan.fits else suggest_changes
    if plan.fits and not plan.has_verdict:
        return plan, []
    return plan, suggest(plan, lambda changes: _resolve(drafted.with_values(changes), options))


def plan_of(options: PlanOptions) -> Plan:
    """Return the plan alone. Raises Problems."""
    return _plan(options.draft(), options)


def _plan(drafted: Draft, options: PlanOptions) -> Plan:
    spec = _resolve(drafted, options)
    return make_plan(spec, choose_target(options, spec))


def _resolve(drafted: Draft, options: PlanOptions) -> RunSpec:
    nodes, each = (0, 0) if options.gpus else _machines(drafted)
    gpus, per_host = (nodes * each, each) if nodes else (options.gpus, options.per_host)
    spec = complete_run(drafted, os.environ, gpus)
    kind, resources = choose_device(options, spec).kind, spec.resources
    return on_hosts(spec, kind, per_host) if gpus or kind != resources.device else spec


def _machines(drafted: Draft) -> tuple[int, int]:
    """Return the number of several machines and of GPUs in each; zeros if unknown, or in a hostfile."""
    values = {name: drafted.values[name].value for name in ("num_nodes", "num_gpus") if name in drafted.values}
    is_known = len(values) == 2 and values["num_nodes"] > 1 and values["num_gpus"] > 0
    return (values["num_nodes"], values["num_gpus"]) if is_known and "hostfile" not in drafted.values else (0, 0)
