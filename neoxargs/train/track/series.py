"""Series in TensorBoard (`tensorboard_dir`), Weights & Biases and Comet, the last two if their packages are installed.

They have GPT-NeoX's names, so that runs of both programs share a chart.
"""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Mapping
from typing import Any

from neoxargs.base.problems import Problem, Problems
from neoxargs.registry.logging import Comet, Wandb
from neoxargs.train.track.console import sequence_length, tflops
from neoxargs.train.track.tracker import Answer, Answers, Evaluation, Outcome, Run, Step, TaskResults, Tracker


class SeriesTracker(Tracker):
    """Base of the trackers that log the scalars of every step and evaluation."""

    run: Run

    def log(self, series: Mapping[str, float], iteration: int) -> None:
        raise NotImplementedError

    def on_step(self, step: Step) -> None:
        self.log(scalars(self.run, step), step.iteration)

    def on_eval(self, evaluation: Evaluation) -> None:
        self.log(evaluation.series, evaluation.iteration)

    def on_tasks(self, results: TaskResults) -> None:
        self.log(results.series, results.iteration)


class TensorBoard(SeriesTracker):
    """Writes TensorBoard's files."""

    writer: Any

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_start(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run = run
        # purge_step hides the iterations that an earlier process logged and this one repeats.
        self.writer = SummaryWriter(self.folder, purge_step=run.start + 1 if run.start else None)

    def log(self, series: Mapping[str, float], iteration: int) -> None:
        for name, value in series.items():
            self.writer.add_scalar(name, value, iteration)

    def on_answers(self, answers: Answers) -> None:
        for number, answer in enumerate(answers.answers, 1):
            self.writer.add_text(f"answers/{number}", as_markdown(answer), answers.iteration)

    def on_end(self, outcome: Outcome) -> None:
        self.writer.close()


class WandbTracker(SeriesTracker):
    """Logs to Weights & Biases (`use_wandb`).

    values: the configuration, which is stored with the run. Raises Problems if wandb is missing or rejects the run.
    """

    def __init__(self, options: Wandb, values: Mapping[str, Any]) -> None:
        self.options, self.values = options, values
        self.wandb = _installed("wandb", "use_wandb")

    def on_start(self, run: Run) -> None:
        self.run = run
        options = self.options
        try:
            self.session = self.wandb.init(
                project=options.wandb_project,
                group=options.wandb_group,
                name=options.wandb_run_name,
                entity=options.wandb_team,
                dir=str(run.folder),
                config=dict(self.values),
                settings=self.wandb.Settings(base_url=options.wandb_host),
            )
        except self.wandb.Error as error:
            hint = "run `wandb login`, or set WANDB_MODE=offline in the environment, which needs no account or network"
            raise Problems(
                Problem(f"use_wandb (true): {error}", hint=hint, id="tracker-refuses", about=("use_wandb",))
            ) from error

    def log(self, series: Mapping[str, float], iteration: int) -> None:
        self.session.log(series, step=iteration)

    def on_answers(self, answers: Answers) -> None:
        rows = [[answers.iteration, answer.prompt, answer.text] for answer in answers.answers]
        table = self.wandb.Table(columns=["iteration", "prompt", "answer"], data=rows)
        self.session.log({"answers": table}, step=answers.iteration)

    def on_end(self, outcome: Outcome) -> None:
        self.session.finish()


class CometTracker(SeriesTracker):
    """Logs to Comet (`use_comet`).

    values: the configuration, which is stored with the experiment. Raises Problems if comet_ml is not installed.
    """

    def __init__(self, options: Comet, values: Mapping[str, Any]) -> None:
        self.options, self.values = options, values
        self.comet = _installed("comet_ml", "use_comet")

    def on_start(self, run: Run) -> None:
        self.run = run
        options = self.options
        self.experiment = self.comet.start(workspace=options.comet_workspace, project=options.comet_project)
        if options.comet_experiment_name:
            self.experiment.set_name(options.comet_experiment_name)
        self.experiment.add_tags(options.comet_tags or [])
        self.experiment.log_others(options.comet_others or {})
        self.experiment.log_parameters(dict(self.values))

    def log(self, series: Mapping[str, float], iteration: int) -> None:
        self.experiment.log_metrics(series, step=iteration)

    def on_answers(self, answers: Answers) -> None:
        for answer in answers.answers:
            self.experiment.log_text(answer.text, step=answers.iteration, metadata={"prompt": answer.prompt})

    def on_end(self, outcome: Outcome) -> None:
        self.experiment.end()


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


def _installed(package: str, parameter: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        what = f"{parameter} (true) needs the Python package {package}, which is not installed"
        hint = f"run pip install {package}, or remove {parameter}"
        raise Problems(Problem(what, hint=hint, id="package-missing", about=(parameter,))) from None
