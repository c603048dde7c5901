"""Run tasks of the lm-evaluation-harness and complete prompts during training.

Both use the training engine, with the layout of the run. Random numbers are seeded in the same way at each iteration:
only the model makes the answers of two iterations differ, and a resumed run gives the same answers.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stderr

from neoxargs.config.config import Config
from neoxargs.data.tokenizer import Tokenizer
from neoxargs.files.prompts import read_prompts
from neoxargs.train.engine.steps import Trainer
from neoxargs.train.evaluation.lm_eval_harness import Model, measured, run_tasks
from neoxargs.train.evaluation.lm_eval_tasks import Tasks
from neoxargs.train.generation.generator import Sample
from neoxargs.train.generation.loading import make_generator
from neoxargs.train.generation.logprobs import Scorer
from neoxargs.train.generation.paused import paused
from neoxargs.train.process import setup
from neoxargs.train.process.mesh import Mesh
from neoxargs.train.process.setup import Process, suppress_output
from neoxargs.train.track.tracker import Answer, Answers, TaskResults


class Questions:
    """Asks the model of a run. Collective: every rank makes the same calls and gets the answers; rank 0 the results.

    Raises Problems if a task cannot be loaded, or the file of prompts cannot be read.
    """

    def __init__(self, trainer: Trainer, config: Config, tokenizer: Tokenizer, mesh: Mesh, process: Process):
        self.trainer, self.options = trainer, config.generation
        self.every = config.training.eval_interval
        self.tasks = Tasks.of(config) if config.generation.eval_tasks_interval else None
        file = self.options.eval_prompts_file
        of_file = read_prompts("eval_prompts_file", file) if file else []
        self.prompts = [*(self.options.eval_prompts or ()), *of_file]
        self.generator = make_generator(trainer, config, tokenizer, mesh, process)
        for warning in self.generator.overlong(self._samples()) if process.main else ():
            print(warning, flush=True)
        self.generator.count = 0  # the seeds of all ranks are counted alike
        if self.tasks:
            self.model = Model(Scorer(trainer, mesh, config.batch.train_micro_batch_size_per_gpu), self.generator)
            if process.main:
                # Now, so that an unknown task is reported before the first step.
                self.tasks.load()

    def due(self, iteration: int) -> bool:
        """Whether anything is asked after this iteration. It is always before the first step and after the last one."""
        evaluated = bool(self.every) and iteration % (self.every or 1) == 0
        return self._tasks_due(iteration) or bool(self.prompts and evaluated)

    def ask(self, iteration: int, everything: bool = False) -> Iterator[TaskResults | Answers]:
        """Yield what the model answers. everything: whether to run the tasks although they are not due."""
        if self.tasks and (everything or self._tasks_due(iteration)):
            # The harness writes a progress bar for each task to standard error, at every evaluation.
            no_bars = nullcontext() if setup.show_all else redirect_stderr(io.StringIO())
            with paused(self.trainer), suppress_output(), no_bars:
                results = run_tasks(self.tasks, self.model)
            yield TaskResults(iteration, measured(results))
        if self.prompts:
            yield Answers(iteration, self._answers())

    def _tasks_due(self, iteration: int) -> bool:
        return bool(self.tasks) and iteration % self.options.eval_tasks_interval == 0

    def _samples(self) -> list[Sample]:
        self.generator.count = 0  # from 0 again, because a sample's seed depends on the count
        return [self.generator.sample(prompt) for prompt in self.prompts]

    def _answers(self) -> list[Answer]:
        generator, samples = self.generator, self._samples()
        generator.options = self.options
        with paused(self.trainer):
            generator.finish(samples)
        texts = (generator.tokenizer.detokenize(sample.ids) for sample in samples)
        return [Answer(sample.context, text, sample.finished) for sample, text in zip(samples, texts, strict=True)]


def questions(trainer: Trainer, config: Config, tokenizer: Tokenizer, mesh: Mesh, process: Process) -> Questions | None:
    """Return what the configuration asks, or None. Raises Problems if a task cannot be loaded."""
    options = config.generation
    asked = options.eval_tasks_interval or options.eval_prompts or options.eval_prompts_file
    return Questions(trainer, config, tokenizer, mesh, process) if asked else None
