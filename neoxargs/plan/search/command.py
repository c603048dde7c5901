"""`deepy plan --search` and `--fewest`: what they print and write."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from neoxargs.base.charts.html_page import BEGINNING
from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems, report
from neoxargs.base.record import Record, replace
from neoxargs.base.write_files import require_replaceable, write_all
from neoxargs.hosts.device_table import ASSUMED_DEVICE
from neoxargs.plan.advice.smaller import Changes
from neoxargs.plan.estimate import Plan, make_plan
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.given.placement import on_hosts
from neoxargs.plan.given.target import Target, choose_target
from neoxargs.plan.search.output import fewest, to_json, to_text
from neoxargs.plan.search.search import Result, Search, Tell, device_counts
from neoxargs.plan.search.subject import GPU_COUNTS, Resolve, Start, Subject, start_of, under_all_names
from neoxargs.resolve import Draft
from neoxargs.runs.run_spec import RunSpec, complete_run

#: The most GPUs that --fewest tries without --gpus.
MOST_GPUS = 1024


class SearchOptions(Record):
    """What is searched for, and where the result goes."""

    fewest: bool = False
    """Search for the smallest number of devices first."""
    left_out: bool = False
    """List the layouts that do not fit or that a rule forbids."""
    write: str | None = None
    """The YAML file to write the fastest layout to."""
    page: str | None = None
    """The HTML file to write."""

    @property
    def name(self) -> str:
        """The option that asks for the search."""
        return "--fewest" if self.fewest else "--search"


def run_search(options: PlanOptions, search: SearchOptions) -> int:
    """Print the result and return the exit code: 1 if no layout fits, else 0. Raises Problems."""
    require_replaceable(search.page, BEGINNING)
    require_replaceable(search.write)
    if search.fewest and not options.gpus:
        options = replace(options, gpus=MOST_GPUS)
    drafted = options.draft()
    result, subject = find_layouts(drafted, options, search.name, search.fewest)
    usage = _write(result, subject, search, drafted, options)
    if options.as_json:
        print(json.dumps(to_json(result, subject), indent=1))
    else:
        if search.fewest:
            print(fewest(result, subject), end="\n\n")
        print(to_text(result, subject, search.left_out, usage))
    return int(not result.fitting)


def find_layouts(drafted: Draft, options: PlanOptions, asked_by: str, fewest: bool = False) -> tuple[Result, Subject]:
    """Search the layouts of a draft, and report warnings about the device. Raises Problems.

    asked_by: the option or command that asks, for problems. fewest: on the smallest number of devices that suffices.
    """

    def resolve(changes: Changes, gpus: int | None) -> RunSpec:
        # the fewest GPUs are not those that the files count
        counts = {name: gpus for name in GPU_COUNTS if fewest and gpus and name in drafted.values}
        changed = drafted.with_values({**under_all_names(changes, drafted.values), **counts})
        return on_hosts(complete_run(changed, os.environ, gpus), "cuda", options.per_host)

    start = start_of(resolve, drafted, options.gpus, fewest)
    target = _target(options, start.spec, asked_by)
    report(target.warnings(start.spec.config), end="\n\n")
    with _progress() as tell:
        result = _search(resolve, start, target, options, fewest, tell)
    assumed = target.assumed.bytes_of("host_memory") * min(result.devices, options.per_host)
    return result, Subject(start, target, options.files, target.host_memory or assumed)


def _search(resolve: Resolve, start: Start, target: Target, options: PlanOptions, fewest: bool, tell: Tell) -> Result:
    def on(devices: int) -> Search:
        def plan(changes: Changes) -> Plan:
            return make_plan(resolve(changes, devices), target)

        return Search(start.spec.config, options.per_host, plan, tell, start.samples)

    most = options.gpus or start.spec.resources.gpus
    counts = device_counts(most, options.per_host) if fewest else iter([most])
    devices = next((count for count in counts if not fewest or on(count).fits_on(count)), most)
    return on(devices).run(devices)


def _target(options: PlanOptions, base: RunSpec, name: str) -> Target:
    """Return the GPU and host to plan for. name: the option that asks for the search."""
    target = choose_target(options, base)
    if target.device.kind != "cuda":
        what = f"{name} plans for GPUs only, but the device is {target.device.name}"
    elif target.device.memory is None:
        what = f"{name} needs the memory size of the GPUs, which is unknown"
    else:
        return target
    hint = f"name a GPU with --device, such as --device {ASSUMED_DEVICE}"
    raise Problems(Problem(what, hint=hint, id="search-needs-a-device"))


def _write(
    result: Result, subject: Subject, search: SearchOptions, drafted: Draft, options: PlanOptions
) -> Sequence[str]:
    """Write the files that are asked for, and return the lines that tell how to use the fastest layout's."""
    files: list[Text] = []
    usage: Sequence[str] = ()
    if search.write and result.fitting:
        from neoxargs.plan.search.layout_file import layout_file

        counts: Changes = {}
        if options.gpus:  # without, the numbers in the files are those that were planned for
            devices, each = result.devices, options.per_host
            hosts = {"num_gpus": min(devices, each), "num_nodes": -(-devices // each)}
            counts = {**dict.fromkeys(GPU_COUNTS, devices), **hosts}
        file, usage = layout_file(search.write, result, drafted, options.overrides, counts)
        files.append(file)
    if search.page:
        from neoxargs.plan.search.page import to_html

        files.append(Text(search.page, to_html(result, subject)))
    write_all(files)
    return usage


@contextmanager
def _progress() -> Iterator[Tell]:
    """Yield a function that shows how many layouts have been planned, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda planned: None
        return
    from rich.console import Console

    with Console(stderr=True).status("planning layouts") as status:
        yield lambda planned: status.update(f"planning layouts: {planned:,}")
