"""`deepy plan`: who sits on which rank, how full the devices get and when, how fast it can be; nothing is started."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neoxargs.launch.report.summary import MOST_IN_ONE
from neoxargs.launch.run_spec import RunSpec, resolve_run
from neoxargs.problems import render
from neoxargs.resolve import Text
from neoxargs.tools.plan.advice import Suggestion, suggestions
from neoxargs.tools.plan.assumptions import GIB
from neoxargs.tools.plan.devices import DEVICES, Device, named, unnamed
from neoxargs.tools.plan.placement import PER_HOST, spread
from neoxargs.tools.plan.plan import Plan, Target, plan


@dataclass(frozen=True)
class Options:
    """The command line."""

    files: Sequence[str]
    overrides: Sequence[str] = ()
    directory: str | None = None
    gpus: int | None = None
    per_host: int = PER_HOST
    device: str | None = None
    gpu_memory: float | None = None
    """GiB of one device."""
    host_memory: float | None = None
    """GiB of one host."""
    built_whole: bool = False
    """Does the script build a ZeRO-3 model before it is divided?"""


def run(words: argparse.Namespace) -> int:
    """What `deepy plan` does with its parsed command line; returns the exit code."""
    options = Options(
        files=words.files,
        overrides=words.set,
        directory=words.conf_dir,
        gpus=words.gpus,
        per_host=words.per_host,
        device=words.device,
        gpu_memory=words.gpu_memory,
        host_memory=words.host_memory,
        built_whole=words.built_whole,
    )
    return report(options, words.json, words.html)


def report(options: Options, as_json: bool = False, page: str | None = None) -> int:
    """Print the plan; page: also write it as HTML there. Returns 1 where it does not fit; raises Problems."""
    made, found = planned(options)
    if page:
        from neoxargs.tools.plan.output.html import html
        from neoxargs.tools.write import write_all

        write_all([Text(page, html(made, found, options.files))])
    if as_json:
        from neoxargs.tools.plan.output.json import facts

        print(json.dumps(facts(made, found), indent=1))
    else:
        from neoxargs.tools.plan.output.text import text

        if made.spec.warnings:
            print(render(made.spec.warnings), end="\n\n", file=sys.stderr)
        print(text(made, found))
    return int(not made.fits)


def planned(options: Options) -> tuple[Plan, list[Suggestion]]:
    """The plan, and changes that would make it fit where it does not."""
    spec = _resolved(options, [])
    target = _target(options, spec)
    made = plan(spec, target)
    found = [] if made.fits else suggestions(made, lambda changes: _resolved(options, changes))
    return made, found


def _resolved(options: Options, changes: Sequence[str]) -> RunSpec:
    changed = {change.partition("=")[0] for change in changes}
    # what is given twice would be a mistake, and a changed layout or batch decides the rest of its equation anew
    kept = [given for given in options.overrides if given.partition("=")[0] not in changed]
    spec = resolve_run(options.files, [*kept, *changes], options.directory, os.environ, options.gpus)
    kind, resources = _device(options, spec).kind, spec.resources
    if options.gpus or kind != resources.device:
        return replace(spec, resources=spread(replace(resources, device=kind), options.per_host))
    return spec


def _target(options: Options, spec: RunSpec) -> Target:
    device = _device(options, spec)
    memory = int(options.gpu_memory * GIB) if options.gpu_memory else None
    host = int(options.host_memory * GIB) if options.host_memory else _own_memory(options, device)
    return Target(device, host, not options.built_whole).with_memory(memory)


def _device(options: Options, spec: RunSpec) -> Device:
    """The one that is named; a machine without GPUs is planned as what it is, unless the run is meant for GPUs."""
    if options.device:
        return named(options.device)
    if spec.resources.device == "cpu" and options.gpu_memory is None and not _for_gpus(spec):
        return _processor(spec.resources.gpus)
    return unnamed()  # and no verdict without a memory to hold it against


def _for_gpus(spec: RunSpec) -> bool:
    """Nobody computes in 16 bits on a CPU, or starts more ranks on one machine than it could have GPUs or has cores."""
    most = max(MOST_IN_ONE, os.cpu_count() or 1)
    return spec.config.precision.precision != "fp32" or spec.resources.gpus > most


def _own_memory(options: Options, device: Device) -> int | None:
    """Bytes of this machine, where the run would be on its CPU."""
    if options.device or device.kind != "cpu":
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor(ranks: int) -> Device:
    """This machine's, of which more ranks than it has cores get a share each."""
    share, one = min(1.0, (os.cpu_count() or 1) / ranks), DEVICES["CPU"]
    return replace(one, half=one.half * share, single=one.single * share)
