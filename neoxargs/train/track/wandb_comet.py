"""Weights & Biases and Comet, if their packages are installed. Both receive the same series as TensorBoard."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from neoxargs.base.problems import Problem, Problems
from neoxargs.registry.logging import Comet, Wandb
from neoxargs.train.track.tensorboard import scalars
from neoxargs.train.track.tracker import Answers, Evaluation, Outcome, Run, Step, TaskResults, Tracker


class WandbTracker(Tracker):
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

    def on_step(self, step: Step) -> None:
        self.session.log(scalars(self.run, step), step=step.iteration)

    def on_eval(self, evaluation: Evaluation) -> None:
        self.session.log(evaluation.series, step=evaluation.iteration)

    def on_tasks(self, results: TaskResults) -> None:
        self.session.log(results.series, step=results.iteration)

    def on_answers(self, answers: Answers) -> None:
        rows = [[answers.iteration, answer.prompt, answer.text] for answer in answers.answers]
        table = self.wandb.Table(columns=["iteration", "prompt", "answer"], data=rows)
        self.session.log({"answers": table}, step=answers.iteration)

    def on_end(self, outcome: Outcome) -> None:
        self.session.finish()


class CometTracker(Tracker):
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

    def on_step(self, step: Step) -> None:
        self.experiment.log_metrics(scalars(self.run, step), step=step.iteration)

    def on_eval(self, evaluation: Evaluation) -> None:
        self.experiment.log_metrics(evaluation.series, step=evaluation.iteration)

    def on_tasks(self, results: TaskResults) -> None:
        self.experiment.log_metrics(results.series, step=results.iteration)

    def on_answers(self, answers: Answers) -> None:
        for answer in answers.answers:
            self.experiment.log_text(answer.text, step=answers.iteration, metadata={"prompt": answer.prompt})

    def on_end(self, outcome: Outcome) -> None:
        self.experiment.end()


def _installed(package: str, parameter: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        what = f"{parameter} (true) needs the Python package {package}, which is not installed"
        hint = f"run pip install {package}, or remove {parameter}"
        raise Problems(Problem(what, hint=hint, id="package-missing", about=(parameter,))) from None
