"""metrics.jsonl in `run_dir`: the record of a run, one JSON object per line; the source of report.html and loss.svg.

Every row has `event` (start, step, evaluation, tasks, answers, plan, spike or save) and `step`. A run that is resumed
or goes back first drops the rows of the iterations that it will repeat, so that the file has no duplicates.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from neoxargs.base.files import replace_text
from neoxargs.files.metrics import read
from neoxargs.train.track import against_plan
from neoxargs.train.track.console import sequence_length, tflops
from neoxargs.train.track.tracker import (
    Answers,
    Comparison,
    Evaluation,
    Outcome,
    Run,
    SpikeEvent,
    Step,
    TaskResults,
    Tracker,
)

#: The events that a finished run repeats when it is started again.
EVALUATIONS = ("evaluation", "tasks", "answers")


class Metrics(Tracker):
    """Appends rows; each is written to the file before the next step begins."""

    def __init__(self, path: Path, recorded: Mapping[str, Any] | None = None) -> None:
        """recorded: what the row of the start also has."""
        self.path, self.recorded = path, recorded or {}
        self.file: IO[str]

    def on_start(self, run: Run) -> None:
        self.run = run
        self.path.parent.mkdir(parents=True, exist_ok=True)
        truncate(self.path, run.start, with_evaluations=run.start < run.iterations)
        # Line buffered: every row is in the file when it is written, also if the process is killed.
        self.file = self.path.open("a", encoding="utf-8", buffering=1)
        row: dict[str, Any] = {"iterations": run.iterations, "ranks": run.ranks, "parameters": run.parameters}
        if run.unigram_entropy is not None:
            row["unigram_entropy"] = run.unigram_entropy
        self._write("start", run.start, {**row, **self.recorded})

    def on_step(self, step: Step) -> None:
        tokens = step.batch * self.run.tokens_per_sample
        row: dict[str, Any] = {
            "loss": _finite(step.loss),
            "lr": step.lr,
            "tokens_per_second": round(tokens / step.seconds, 2),
            "tflops": float(f"{tflops(self.run, tokens / step.seconds, step.length):.6g}"),
            "elapsed": round(step.elapsed, 4),
            "batch": step.batch,
            "samples": step.samples,
        }
        if self.run.flops_by_length:
            row["seq_length"] = sequence_length(self.run, step)
        if step.grad_norm is not None:
            row["grad_norm"] = _finite(step.grad_norm)
        if step.memory is not None:
            row["memory"] = step.memory
        if step.left_out:
            row["left_out"] = step.left_out
        if step.skipped:
            row["skipped"] = True
        row |= {name: _finite(value) for name, value in step.reports.items()}
        self._write("step", step.iteration, row)

    def on_eval(self, evaluation: Evaluation) -> None:
        row: dict[str, Any] = {"split": evaluation.split, "loss": _finite(evaluation.loss)}
        if evaluation.character_perplexity is not None:
            row["character_perplexity"] = _finite(evaluation.character_perplexity)
        row |= {f"{evaluation.split}/{name}": _finite(value) for name, value in evaluation.reports.items()}
        self._write("evaluation", evaluation.iteration, row)

    def on_tasks(self, results: TaskResults) -> None:
        values = {task: {name: _finite(x) for name, x in of.items()} for task, of in results.values.items()}
        self._write("tasks", results.iteration, {"results": values})

    def on_answers(self, answers: Answers) -> None:
        self._write("answers", answers.iteration, {"answers": [asdict(answer) for answer in answers.answers]})

    def on_comparison(self, compared: Comparison) -> None:
        self._write("plan", compared.iteration, against_plan.row(compared))

    def on_spike(self, spike: SpikeEvent) -> None:
        row = {name: _finite(value) if isinstance(value, float) else value for name, value in asdict(spike).items()}
        if spike.back_to is not None:
            truncate(self.path, spike.back_to)
        self._write("spike", spike.iteration if spike.back_to is None else spike.back_to, row)

    def on_save(self, iteration: int, folder: Path) -> None:
        self._write("save", iteration, {"checkpoint": str(folder)})

    def on_end(self, outcome: Outcome) -> None:
        self.file.close()

    def _write(self, event: str, step: int, row: Mapping[str, Any]) -> None:
        if self._is_gone():
            gone, self.file = self.file, self.path.open("a", encoding="utf-8", buffering=1)
            gone.close()
        self.file.write(json.dumps({"event": event, "step": step, **row}) + "\n")

    def _is_gone(self) -> bool:
        """Return whether the file was removed or renamed, so that its rows would be lost, or not be found."""
        try:
            # By device and inode, because the path may name another file by now.
            return not os.path.samestat(os.fstat(self.file.fileno()), self.path.stat())
        except FileNotFoundError:
            return True


def _finite(x: float) -> float | None:
    """Return the number, or None for infinity and NaN, which JSON does not have."""
    return x if math.isfinite(x) else None


def truncate(path: Path, iteration: int, with_evaluations: bool = True) -> None:
    """Remove the rows after this iteration; 0 removes all.

    with_evaluations: whether to keep its evaluations. A finished run that is started again repeats them.
    """
    rows = [row for row in read(path) if 0 < iteration >= row["step"]]
    if not with_evaluations:
        rows = [row for row in rows if row["step"] != iteration or row["event"] not in EVALUATIONS]
    replace_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def elapsed(path: Path, iteration: int) -> float:
    """Return the seconds that a run had spent in steps when it finished this iteration."""
    return max((row["elapsed"] for row in read(path) if row["event"] == "step" and row["step"] <= iteration), default=0)
