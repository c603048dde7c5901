"""`deepy data --sample N FILE ...` and `deepy data --ledger RUN`."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neoxargs.base.options import add_files, add_json
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.request import LOCK_FILE, Request
from neoxargs.base.text import aligned, format_count
from neoxargs.checks.checkpoint.changes import recorded_config
from neoxargs.config.config import Config
from neoxargs.facts.batch_sizes import BatchSizes
from neoxargs.files import metrics
from neoxargs.files.token_files.sources import with_text
from neoxargs.runs.lockfile import read_lock
from neoxargs.runs.run_spec import resolve_run
from neoxargs.train.batches.datasets import training_samples
from neoxargs.train.batches.ledger import Account, Launch, accounts, index_files
from neoxargs.train.batches.samples.spans import Part, parts

DESCRIPTION = "Say which documents the training samples of a run are made of, or what a run has read of each dataset."
#: More samples at once are no answer to a question.
MOST = 10_000
#: How often tokens were read, for messages.
TIMES = {1: "once", 2: "twice"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--sample", metavar="N", help="print the documents of training sample N, or of a range such as "
        "3840-3871, counted from 0, of YAML files or of the run in a folder")  # fmt: skip
    how.add_argument("--ledger", action="store_true", help="print how many tokens of each dataset the run in a folder "
        "has read, over all times that it was resumed, and whether it has read any twice")  # fmt: skip
    add_files(parser, what="YAML files, or the run_dir of a run")
    add_json(parser)
    parser.add_argument("--step", type=int, metavar="N", help="with --ledger: up to step N instead of the last one")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises Problems."""
    if options.ledger:
        launches, steps = launches_of(Path(options.files[0]) / metrics.FILE, options.step)
        read = accounts(launches)
        head = {
            "first_step": steps[0],
            "step": steps[1],
            "samples": sum(len(samples) for launch in launches for samples in launch.ranges),
            "launches": len(launches),
        }
        found, text = {**head, "datasets": _to_json(read)}, ledger_text(head, read)
    else:
        listed = documents_of(config_of(Request.of(options)), _range(options.sample))
        found, text = {"parts": [each._asdict() for each in listed]}, _text(listed)
    print(json.dumps({"ok": True, **found}, indent=1) if options.json else text)
    return 0


def config_of(request: Request) -> Config:
    """Return the configuration of YAML files, or that of the last launch of the run in a folder. Raises Problems."""
    if len(request.files) == 1 and os.path.isdir(request.files[0]):
        values = read_lock(os.path.join(request.files[0], LOCK_FILE)).values
        return with_text(recorded_config({name: entry["value"] for name, entry in values.items()}))
    return with_text(resolve_run(request, os.environ).config)


def documents_of(config: Config, numbers: range) -> list[Part]:
    """Return the parts of documents that training samples consist of. Raises Problems."""
    with index_files(config) as folder:
        # A run that leaves out samples reads others after its last ones, but hardly as many again.
        planned = BatchSizes.of(config.get).samples_after(config.training.train_iters)
        samples = training_samples(config, folder, reach=min(numbers.stop, 2 * planned))
        if numbers.stop > len(samples):
            what = f"the training data of this run has {len(samples):,} samples, counted from 0"
            raise Problems(Problem(what, hint="name one of them", id="data-option-invalid"))
        return parts(samples, numbers)


def launches_of(file: Path, step: int | None) -> tuple[list[Launch], tuple[int, int]]:
    """Return the parts of a run up to a step, and its first and last step there. Raises Problems."""
    try:
        parts, steps = [], list[int]()
        for start, rows in metrics.by_launch(file):
            own, ranges = _read_by(row for row in rows if step is None or row["step"] <= step)
            steps += own
            if ranges:
                parts.append((start["values"], start["files"], ranges))
    except (OSError, ValueError, LookupError, TypeError):
        parts = []
    if not parts:
        what = "this file does not say which data the steps of a run have read"
        hint = "pass the run_dir of a run of train.py; earlier versions did not record it"
        if not file.is_file():
            what = "there is no such file, so this is not the run_dir of a run of train.py"
            hint = "pass the folder with the run's report.html"
        elif step is not None and step < 1:
            what, hint = f"--step ({step}) must be at least 1", "steps are counted from 1"
        raise Problems(Problem(what, Place(str(file), 0, 0), hint, id="ledger-not-recorded"))
    if step is not None and step > steps[-1]:
        what = f"--step ({step:,}) is after the last step that the run has taken ({steps[-1]:,})"
        raise Problems(Problem(what, hint=f"write --step {steps[-1]}, or leave it out", id="data-option-invalid"))
    return [
        Launch(with_text(recorded_config(values)), files, [range(*bounds) for bounds in ranges])
        for values, files, ranges in parts
    ], (steps[0], steps[-1])


def _read_by(rows: Iterable[Mapping[str, Any]]) -> tuple[list[int], list[list[int]]]:
    """Return steps, and the samples that they have read: first one and end of each range, without those left out."""
    steps, ranges = list[int](), list[list[int]]()
    for row in rows:
        steps.append(row["step"])
        end = row["samples"] + row.get("left_out", 0)
        if not ranges or ranges[-1][1] != end - row["batch"]:
            ranges.append([end - row["batch"], end])
        ranges[-1][1] = end
    return steps, ranges


def _range(text: str) -> range:
    """Return the numbers of `3840`, `3,840` or `3840-3871`. Raises Problems."""
    given = re.fullmatch(r"(\d+)(?:-(\d+))?", text.replace(",", ""))
    first, last = (int(number) for number in (given[1], given[2] or given[1])) if given else (0, -1)
    if first > last or last - first >= MOST:
        what = f"--sample {text} is no number of a sample, and no range of at most {MOST:,}"
        raise Problems(Problem(what, hint="write --sample 3840, or --sample 3840-3871", id="data-option-invalid"))
    return range(first, last + 1)


def _text(found: Sequence[Part]) -> str:
    rows = [["sample", "dataset", "document", "tokens", "bytes of .bin"]]
    for each in found:
        ranges = (f"{begin:,} to {end - 1:,}" for begin, end in (each.tokens, each.bytes))
        rows.append([f"{each.sample:,}", each.dataset, f"{each.document:,}", *ranges])
    return "\n".join(aligned(rows))


def ledger_text(head: Mapping[str, int], read: Sequence[Account]) -> str:
    """Return the table of datasets, and what was read more than once."""
    total = sum(each.tokens for each in read) or 1
    rows = [["dataset", "tokens read", "share", "passes", "read once", "twice", "more often"]]
    for each in read:
        often = sum(tokens for times, tokens in each.times.items() if times > 2)
        counts = map(format_count, (each.times.get(1, 0), each.times.get(2, 0), often))
        share = f"{each.tokens / total:.1%}"
        rows.append([each.dataset, format_count(each.tokens), share, f"{each.passes:.2f}", *counts])
    launches = "1 launch" if head["launches"] == 1 else f"{head['launches']} launches"
    first = f"steps {head['first_step']:,} to {head['step']:,}: {head['samples']:,} samples, of {launches}"
    return "\n".join([first, "", *aligned(rows), "", *map(repeats, read)])


def repeats(account: Account) -> str:
    """Return what was read of a dataset more than once, as a sentence."""
    most = max(account.times, default=0)
    if most <= 1:
        return f"{account.dataset}: no token was read twice"
    again = sum(tokens for times, tokens in account.times.items() if times > 1)
    what = f"{account.dataset}: {again:,} tokens were read more than once, at most {TIMES.get(most, f'{most} times')}"
    if account.in_passes:
        return f"{what}; no pass over it began before the one before had ended"
    return f"{what}, while {account.size - sum(account.times.values()):,} of its tokens were not read"


def _to_json(read: Sequence[Account]) -> dict[str, Any]:
    return {
        each.dataset: {
            "tokens": each.tokens, "size": each.size, "passes": each.passes, "in_passes": each.in_passes,
            "times": {str(times): tokens for times, tokens in sorted(each.times.items())},
        }
        for each in read
    }  # fmt: skip
