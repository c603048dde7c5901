"""TensorBoard logs in `tensorboard_dir`, with GPT-NeoX's series names, so that runs of both programs share a chart."""

from __future__ import annotations

import textwrap
from typing import Any

from neoxargs.train.track.console import sequence_length, tflops
from neoxargs.train.track.tracker import (
    Answer,
    Answers,
    Evaluation,
    Outcome,
    Run,
    Step,
    TaskResults,
    Tracker,
)


class TensorBoard(Tracker):
    """Writes the scalars of every step and evaluation."""

    writer: Any

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_start(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run = run
        # purge_step hides the iterations that an earlier process logged and this one repeats.
        self.writer = SummaryWriter(self.folder, purge_step=run.start + 1 if run.start else None)

    def on_step(self, step: Step) -> None:
        for name, value in scalars(self.run, step).items():
            self.writer.add_scalar(name, value, step.iteration)

    def on_eval(self, evaluation: Evaluation) -> None:
        for name, value in evaluation.series.items():
            self.writer.add_scalar(name, value, evaluation.iteration)

    def on_tasks(self, results: TaskResults) -> None:
        for name, value in results.series.items():
            self.writer.add_scalar(name, value, results.iteration)

    def on_answers(self, answers: Answers) -> None:
        for number, answer in enumerate(answers.answers, 1):
            self.writer.add_text(f"answers/{number}", as_markdown(answer), answers.iteration)

    def on_end(self, outcome: Outcome) -> None:
        self.writer.close()


def scalars(run: Run, step: Step) -> dict[str, float]:
    """Return the series of a step: name -> value."""
    speed = step.batch * run.tokens_per_sample / step.seconds
    values = {
        "train/lm_loss": step.loss,
        "train/learning_rate": step.lr,
        "runtime/iteration_time": step.seconds,
        "runtime/samples_per_sec": step.batch / step.seconds,
        "runtime/tokens_per_sec": speed,
        "runtime/tflops_per_rank": tflops(run, speed, step.length),
        **({"train/batch_size": step.batch} if run.batch_size_changes else {}),
        **({"train/seq_length": sequence_length(run, step)} if run.flops_by_length else {}),
    }
    if step.grad_norm is not None:
        values["train/grad_norm"] = step.grad_norm
    return {**values, **step.reports}


def as_markdown(answer: Answer) -> str:
    """Return the prompt and the answer as blocks of code, in which Markdown changes nothing."""
    return "\n\n".join(textwrap.indent(text, "    ", lambda line: True) for text in (answer.prompt, answer.text))
