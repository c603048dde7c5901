"""Tasks of EleutherAI's lm-evaluation-harness, by the names and files that `eval_tasks` lists.

As a program, this module loads tasks before the ranks start: it downloads their data and reports unknown names.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem, Problems, did_you_mean
from neoxargs.base.programs import LM_EVAL_TASKS
from neoxargs.config.config import Config
from neoxargs.hosts.packages import harness_missing


@dataclass
class Tasks:
    """Tasks of the harness, which only rank 0 loads."""

    names: Sequence[str]
    seed: int
    """Seed for the choice of few-shot examples."""
    folder: str | None = None
    """A folder with YAML files that define additional tasks."""
    limit: int | None = None
    """Maximum number of examples per task."""
    _loaded: dict[str, Any] | None = None

    @classmethod
    def of(cls, config: Config) -> Tasks:
        """Return the tasks that the configuration names."""
        options = config.generation
        return cls(options.eval_tasks or [], config.training.seed, options.eval_tasks_path, options.eval_tasks_limit)

    def load(self) -> dict[str, Any]:
        """Return the tasks and groups with their data. Raises Problems if one cannot be loaded."""
        if self._loaded is not None:
            return self._loaded
        manager = harness("tasks").TaskManager(include_path=self.folder)
        available = set(manager.all_tasks)
        unknown = [name for name in self.names if name not in available and not Path(name).is_file()]
        if unknown:
            raise Problems(_unknown(name, available) for name in unknown)
        try:
            self._loaded = manager.load(list(self.names))
        except Exception as error:  # an invalid task YAML, missing data or no network each raise another type
            what = f"eval_tasks ({', '.join(self.names)}) cannot be loaded: {type(error).__name__}: {error}"
            raise Problems(Problem(what, id="evaluation-task-not-loadable", about=("eval_tasks",))) from error
        return self._loaded


def harness(module: str) -> Any:
    """Return a module of the package lm_eval; raise Problems if the package is not installed."""
    try:
        return importlib.import_module(f"lm_eval.{module}")
    except ImportError as error:
        raise Problems(harness_missing(str(error))) from error


def _unknown(name: str, available: Collection[str]) -> Problem:
    subject, about = f"eval_tasks ({name})", ("eval_tasks",)
    if name.endswith((".yaml", ".yml")):
        return Problem(f"{subject}: there is no such file", id="evaluation-task-file-missing", about=about)
    other = "set eval_tasks to lm_eval task names, or to paths of YAML files that define tasks"
    hint = did_you_mean(name, available) or other
    return Problem(f"{subject}: lm_eval has no such task", hint=hint, id="evaluation-task-unknown", about=about)


def main(argv: Sequence[str] | None = None) -> int:
    """Load tasks; return 0, or 1 after printing problems."""
    parser = argparse.ArgumentParser(prog=f"python -m {LM_EVAL_TASKS}", allow_abbrev=False)
    parser.add_argument(
        "tasks", nargs="+", metavar="TASK", help="the name of an lm_eval task, or a YAML file that defines one"
    )
    parser.add_argument("--folder", help="also find tasks by name in the YAML files of this folder")
    arguments = parser.parse_args(argv)
    try:
        Tasks(arguments.tasks, seed=0, folder=arguments.folder).load()
    except Problems as problems:
        print(problems, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
