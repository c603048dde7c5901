"""Log lines: every `log_interval` iterations, at each evaluation and checkpoint, and a list of files at the end."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path

from neoxargs.files import metrics as run_metrics
from neoxargs.train.track import against_plan
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


class Console(Tracker):
    """Writes lines through `write` (to the terminal, or above a progress bar) and to the log file, if there is one.

    tensorboard: the folder of TensorBoard's logs, if there is one.
    """

    def __init__(
        self, interval: int, write: Callable[[str], None], log: Path | None = None, tensorboard: str | None = None
    ) -> None:
        self.interval, self.write, self.log, self.tensorboard = interval, write, log, tensorboard
        self.window: list[Step] = []

    def on_start(self, run: Run) -> None:
        self.run = run
        if self.log:
            self.log.parent.mkdir(parents=True, exist_ok=True)
        if run.start and run.start >= run.iterations:
            hint = "to continue, increase train_iters; to start over, remove load and change save"
            self._say(f"iteration {run.start} of {run.iterations} is already done: {hint}")
        elif run.start:
            self._say(f"resuming after iteration {run.start}")
        for about in run.kernels:
            self._say(about)

    def on_step(self, step: Step) -> None:
        self.window.append(step)
        if step.iteration % self.interval == 0 or step.iteration == self.run.iterations:
            self._say(line(self.run, self.window))
            self.window.clear()

    def on_eval(self, evaluation: Evaluation) -> None:
        perplexity = f" | perplexity {run_metrics.perplexity(evaluation.loss):.4g}" if self.run.has_perplexity else ""
        if evaluation.character_perplexity is not None:
            perplexity += f" | perplexity per character {evaluation.character_perplexity:.4g}"
        rewards = "".join(f" | {what} {value:.4g}" for what, value in run_metrics.rewards(evaluation.reports).items())
        loss = f"loss {evaluation.loss:.4f}{perplexity}{rewards}"
        self._say(f"{evaluation.split} after iteration {evaluation.iteration} | {loss}")

    def on_tasks(self, results: TaskResults) -> None:
        for task, values in results.values.items():
            shown = [f"{name.replace('_', ' ')} {x:.4g}" for name, x in values.items() if not is_error(name)]
            self._say(" | ".join((f"{task} after iteration {results.iteration}", *shown)))

    def on_answers(self, answers: Answers) -> None:
        for answer in answers.answers:
            prompt, text = one_line(answer.prompt, end=True), one_line(answer.text)
            self._say(f"answer after iteration {answers.iteration} | {prompt} \N{RIGHTWARDS ARROW} {text}")

    def on_comparison(self, compared: Comparison) -> None:
        self._say(against_plan.line(compared))

    def on_spike(self, spike: SpikeEvent) -> None:
        done = {
            "skip": "; the step is skipped",
            "skip_samples": "; the step and the next samples are skipped",
            "rollback": f"; back to iteration {spike.back_to}, after these samples" if spike.back_to else "",
        }
        self._say(f"spike: {spike.describe()}{done.get(spike.decision, '')}")

    def on_save(self, iteration: int, folder: Path) -> None:
        self._say(f"saved iteration {iteration} to {folder}")

    def on_end(self, outcome: Outcome) -> None:
        self._say(ending(outcome))
        if outcome.checkpoint:
            self._say(f"  checkpoint  {outcome.checkpoint}")
        for name, file in (("report", "report.html"), ("loss curve", "loss.svg"), ("metrics", "metrics.jsonl")):
            if (self.run.folder / file).exists():
                self._say(f"  {name:<11} {self.run.folder / file}")
        if self.tensorboard:
            self._say(f"  tensorboard {self.tensorboard}")

    def _say(self, text: str) -> None:
        self.write(text)
        if self.log:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


def is_error(metric: str) -> bool:
    """Whether a metric of a task is the standard error of another one."""
    return "_stderr" in metric


def one_line(text: str, length: int = 60, end: bool = False) -> str:
    """Return a text on one line, cut to a length. end: whether to keep its end instead of its start."""
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    if len(line) <= length:
        return line
    return f"…{line[1 - length :]}" if end else f"{line[: length - 1]}…"


def ending(outcome: Outcome) -> str:
    """Return the line that says how the run ended.

    It does not name the signal, because the launcher forwards Ctrl-C as SIGTERM.
    """
    if outcome.reason in signal.Signals.__members__:
        return f"interrupted after iteration {outcome.iteration}"
    return f"stopped after iteration {outcome.iteration}: {outcome.reason}" if outcome.reason else "done"


def line(run: Run, window: list[Step]) -> str:
    """Return the log line of the last step in the window; loss and speed are means over the window.

    The mean loss is that of the steps that have one, as a skipped step may not.
    """
    last = window[-1]
    finite = [step.loss for step in window if math.isfinite(step.loss)]
    # All steps of the window without a finite loss: the last one, so that nan or inf is shown.
    loss = sum(finite) / len(finite) if finite else last.loss
    seconds, samples = sum(step.seconds for step in window), sum(step.batch for step in window)
    speed = samples * run.tokens_per_sample / seconds
    parts = [f"iteration {last.iteration}/{run.iterations}", f"loss {loss:.4f}", f"lr {last.lr:.3g}"]
    if last.grad_norm is not None:
        parts.append(f"grad norm {last.grad_norm:.3g}")
    peak = f" ({tflops(run, speed, last.length) / run.peak_tflops:.1%} of peak)" if run.peak_tflops else ""
    parts += [f"batch {last.batch:,}"] * run.batch_size_changes
    parts += [f"sequences of {sequence_length(run, last):,}"] if run.flops_by_length else []
    planned = run.planned
    of_plan = ""
    if planned and all(is_whole(run, step, planned.tokens) for step in window):
        of_plan = f" ({speed * planned.seconds / planned.tokens:.0%} of planned)"
    parts += [
        f"{speed:,.0f} tokens/s{of_plan}",
        f"{tflops(run, speed, last.length):.3g} TFLOP/s per rank{peak}",
        f"{duration((run.samples - last.samples) * seconds / samples)} left",
        f"{last.samples:,} samples",
    ]
    skipped = sum(step.skipped for step in window)
    return " | ".join(parts + [f"{skipped} {'step' if skipped == 1 else 'steps'} skipped"] * bool(skipped))


def is_whole(run: Run, step: Step, tokens: int) -> bool:
    """Return whether a step has so many tokens, in sequences of whole samples."""
    return step.batch * run.tokens_per_sample == tokens and step.length is None


def sequence_length(run: Run, step: Step) -> int:
    """Return the length of a step's sequences in a run in which it changes."""
    return step.length or max(run.flops_by_length)


def tflops(run: Run, speed: float, length: int | None = None) -> float:
    """Return the throughput of one rank in TFLOP/s. speed: tokens per second of all ranks. length: of a `Step`."""
    return run.flops_by_length.get(length or 0, run.flops_per_token) * speed / run.ranks / 1e12


def duration(seconds: float) -> str:
    """Format a duration: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes:.0f} min"
    if hours < 48:
        return f"{int(hours)} h {int(minutes % 60)} min"
    return f"{int(days)} d {int(hours % 24)} h"
