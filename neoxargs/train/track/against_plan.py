"""Where the time of a run goes, beside what was planned: in the log, in metrics.jsonl and in report.html.

Measured on the main rank by the host's clock, without waiting for a GPU: the steps, and in them the time until a batch
is there; saving, evaluation, and the rest between the steps. What remains of a step is computation and messages, which
are measured apart on CPUs only: on GPUs, both are queued, and only a profiler can tell them apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from html import escape
from typing import Any

from neoxargs.base.text import format_duration, format_number
from neoxargs.files.metrics import LEAST, WARM_UP
from neoxargs.targets.planned import Planned
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.process import messages
from neoxargs.train.track.tracker import Comparison, Step

DATA, SAVING, EVALUATION, OTHER = "waiting for data", "saving", "evaluation", "between steps"
COMPUTE, MESSAGES, BOTH = "compute", "messages", "compute and messages"
#: Steps after which the run is first compared, besides those of WARM_UP.
STEPS = 20
#: The share of the time from which a part that is not planned is named in the log.
NAMED = 0.01
#: What takes longer than planned -> what to do about it.
ADVICE = {
    DATA: "increase num_workers, or move the token files to a faster disk",
    SAVING: "save less often (checkpoint_factor), or set save_in_background",
    EVALUATION: "evaluate less often (eval_interval), or on fewer batches (eval_iters)",
    OTHER: "look for trackers and disks that are slow to write to",
}
LEARN = "`deepy plan --learn RUN --write NAME.rates.yml` finds the rates of this machine (docs/plan.md)"
#: The parts of a plan that a rank spends in messages: a stage of a pipeline waits for those of others.
IN_MESSAGES = ("messages", "bubble")


class Spent:
    """Adds up where the time goes, and compares it with the plan.

    tokens_per_sample: of the run. is_idle: whether the device has nothing left to compute; None if computation is not
    queued. A batch that arrives while it is still computing has delayed nothing. with_messages: whether messages are
    measured.
    """

    def __init__(
        self,
        planned: Planned | None = None,
        tokens_per_sample: int = 0,
        is_idle: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        with_messages: bool = False,
    ) -> None:
        self.planned, self.tokens_per_sample, self.is_idle, self.clock = planned, tokens_per_sample, is_idle, clock
        self.with_messages, self.read, self.between = with_messages, 0, False
        self._begin()

    def _begin(self) -> None:
        self.began, self.steps, self.in_steps, self.parts = self.clock(), 0, 0.0, Counter[str]()

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Within this, time is spent on a part of a run outside of its steps."""
        began, self.between = self.clock(), True
        yield
        self.parts[part] += self.clock() - began  # type: ignore[assignment]
        self.between = False

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Within this, messages are measured if they can be."""
        with messages.timed(self._in_message, self.clock) if self.planned and self.with_messages else nullcontext():
            yield

    def _in_message(self, seconds: float) -> None:
        if not self.between:
            self.parts[MESSAGES] += seconds  # type: ignore[assignment]

    def waiting(self, batches: Iterator[MicroBatch] | None) -> Iterator[MicroBatch] | None:
        """Return the same batches, with the time until each is there counted."""
        return self._waiting(batches) if batches and self.planned else batches

    def _waiting(self, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        while True:
            began = self.clock()
            batch = next(batches)
            if self.is_idle is None or self.is_idle():
                self.parts[DATA] += self.clock() - began  # type: ignore[assignment]
            yield batch

    def after(self, step: Step) -> Comparison | None:
        """Count a step; return the comparison after the first STEPS that count.

        Steps at the start do not count, nor those of a ramp, which have other batches than the planned one.
        """
        if not self.planned:
            return None
        self.read += 1
        if (
            self.read <= WARM_UP
            or step.length is not None
            or step.batch * self.tokens_per_sample != self.planned.tokens
        ):
            self._begin()
            return None
        self.steps += 1
        self.in_steps += step.seconds
        return self.compared(step.iteration) if self.steps == STEPS else None

    def compared(self, iteration: int) -> Comparison | None:
        """Return the comparison of all steps that count so far; None if they are too few."""
        if not self.planned or self.steps < LEAST:
            return None
        total, parts = self.clock() - self.began, self.parts
        computed = max(0.0, self.in_steps - parts[DATA] - parts[MESSAGES])
        is_alone = not self.planned.parts.keys() & IN_MESSAGES
        spent = {
            **({COMPUTE: computed, MESSAGES: parts[MESSAGES]} if self.with_messages else {}),
            **({} if self.with_messages else {COMPUTE if is_alone else BOTH: computed}),
            **{name: parts[name] for name in (DATA, SAVING, EVALUATION)},
            OTHER: max(0.0, total - self.in_steps - parts[SAVING] - parts[EVALUATION]),
        }
        of_step = {name: seconds / self.steps for name, seconds in spent.items()}
        return Comparison(iteration, self.steps, of_step, self.planned)


def expected(compared: Comparison) -> dict[str, float]:
    """Return the planned seconds of the parts that are planned."""
    planned = compared.planned
    sent = sum(planned.parts.get(name, 0.0) for name in IN_MESSAGES)
    of_parts = {COMPUTE: planned.seconds - sent, MESSAGES: sent, BOTH: planned.seconds}
    return {name: of_parts[name] for name in compared.parts if name in of_parts}


def row(compared: Comparison) -> dict[str, Any]:
    """Return the row of metrics.jsonl; times in seconds per step."""
    planned = compared.planned
    return {
        "steps": compared.steps,
        "device": planned.device,
        "seconds": _rounded(compared.seconds),
        "parts": {name: _rounded(seconds) for name, seconds in compared.parts.items()},
        "planned_seconds": _rounded(planned.seconds),
        "planned_interval": [_rounded(planned.low), _rounded(planned.high)],
        "planned_parts": {name: _rounded(seconds) for name, seconds in expected(compared).items()},
        "planned_for": {name: _rounded(seconds) for name, seconds in planned.parts.items()},
        "rates": planned.rates,
        "tokens": planned.tokens,
        "verdict": verdict(compared),
    }


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def line(compared: Comparison) -> str:
    """Return the line of the log."""
    planned, tokens, at = compared.planned, compared.planned.tokens, expected(compared)
    shown = {name: spent for name, spent in compared.parts.items() if name in at or spent >= NAMED * compared.seconds}
    parts = [
        f"{name} {format_duration(spent)}" + (f" (planned {format_duration(at[name])})" if name in at else "")
        for name, spent in shown.items()
    ]
    return " | ".join((
        f"{compared.steps} steps of {format_duration(compared.seconds)}, planned {format_duration(planned.seconds)} "
        f"({format_duration(planned.low)} to {format_duration(planned.high)})",
        f"{format_number(tokens / compared.seconds)} tokens/s, planned {format_number(tokens / planned.seconds)}",
        *parts,
        verdict(compared),
    ))  # fmt: skip


def verdict(compared: Comparison) -> str:
    """Return whether the steps are as planned and, if not, what takes longer and what to do."""
    planned = compared.planned
    if compared.seconds < planned.low:
        return f"faster than planned: {LEARN}"
    if compared.seconds <= planned.high:
        return "as planned"
    at = expected(compared)
    longer = {name: spent - at.get(name, 0.0) for name, spent in compared.parts.items()}
    worst = max(longer, key=lambda name: longer[name])
    return f"slower than planned, most of it {worst}: {ADVICE.get(worst, LEARN)}"


STYLE = """
.against { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin: 12px 0;
  overflow-x: auto; padding: 12px 18px; }
.against h2 { font-size: 14px; margin: 0 0 8px; } .against p { color: var(--soft); font-size: 13px; margin: 8px 0 0; }
.against table { border-collapse: collapse; font-size: 13px; } .against td, .against th { padding: 2px 18px 2px 0; }
.against th { color: var(--soft); font-weight: 400; text-align: right; }
.against tr > :first-child { text-align: left; }
.against td { font-variant-numeric: tabular-nums; text-align: right; }
"""


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of report.html, or "" if nothing was compared. rows: those of metrics.jsonl."""
    found = next((row for row in reversed(rows) if row["event"] == "plan"), None)
    if found is None:
        return ""
    seconds, planned, tokens = found["seconds"], found["planned_seconds"], found["tokens"]
    low, high = found["planned_interval"]
    at = found["planned_parts"]
    cells = [
        ("step", format_duration(seconds), format_duration(planned), *map(format_duration, (low, high))),
        ("tokens/s", *(format_number(tokens / each) for each in (seconds, planned, high, low))),
        *(
            (name, format_duration(spent), format_duration(at[name]) if name in at else "", "", "")
            for name, spent in found["parts"].items()
        ),
    ]
    head = "".join(f"<th>{title}</th>" for title in ("", "measured", "planned", "80 % interval from", "to"))
    body = "".join(
        f"<tr><th>{escape(title)}</th>{''.join(f'<td>{value}</td>' for value in values)}</tr>"
        for title, *values in cells
    )
    about = f"Mean of {found['steps']:,} steps with evaluation and saving, on the host of rank 0, beside the plan for "
    about += f"{found['device']}{found['rates'] and ' with the rates of ' + found['rates']}: "
    about += ", ".join(f"{name} {format_duration(each)}" for name, each in found["planned_for"].items())
    about += f". {found['verdict'].capitalize()}."
    table = f"<table><tr>{head}</tr>{body}</table>"
    return f'<section class="against"><h2>Planned and measured</h2>{table}<p>{escape(about)}</p></section>'
