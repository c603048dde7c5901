"""What a run evaluates between its steps: the loss on held-out data, tasks and prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neoxargs.facts.validation_sets import ValidationSet, mean_loss
from neoxargs.files.token_files.sources import Part
from neoxargs.processes.watch import Progress
from neoxargs.registry.training import Training
from neoxargs.train.batches.loader import Loader
from neoxargs.train.engine.steps import Trainer
from neoxargs.train.evaluation.characters import CharacterCounter
from neoxargs.train.evaluation.questions import Questions
from neoxargs.train.track.tracker import Answers, Evaluation, TaskResults

Results = Iterator[Evaluation | TaskResults | Answers]


@dataclass
class Evaluations:
    """Yields the results that are due, each when it is computed. Collective."""

    options: Training
    trainer: Trainer
    data: Loader
    progress: Progress
    characters: CharacterCounter | None = None
    """With `char_level_ppl`."""
    questions: Questions | None = None
    """Tasks and prompts, if there are any."""
    sets: Sequence[ValidationSet] = ()
    """Of `validation`."""

    def before_training(self) -> Results:
        """What the untrained model answers, to compare with."""
        return self._ask(0, everything=True)

    def due(self, iteration: int) -> bool:
        """Whether anything is evaluated after a step that is not the last one."""
        return self._held_out_due(iteration) or bool(self.questions and self.questions.due(iteration))

    def after_step(self, iteration: int) -> Results:
        """Of any step but the last one."""
        if self._held_out_due(iteration):
            yield from self._validate(iteration, iteration // self.options.eval_interval - 1)
        if self.questions and self.questions.due(iteration):
            yield from self._ask(iteration)

    def after_training(self, iteration: int) -> Results:
        # GPT-NeoX evaluates the last iteration twice if its number is a multiple of the interval.
        every = self.options.eval_interval
        yield from self._validate(iteration, iteration // every if every else 0)
        yield from self._held_out("test", iteration)
        yield from self._ask(iteration, everything=True)

    def _held_out_due(self, iteration: int) -> bool:
        every = self.options.eval_interval
        return bool(every) and iteration % every == 0

    def _validate(self, iteration: int, number: int) -> Iterator[Evaluation]:
        """number: how many validations came before in an uninterrupted run."""
        if not self.sets:
            yield from self._held_out("validation", iteration, number)
            return
        losses = {}
        for each in self.sets:
            for result in self._held_out(each.part, iteration, number):
                losses[each.name] = result.loss
                yield result
        if losses:
            yield Evaluation(iteration, "validation", mean_loss(self.sets, losses))

    def _held_out(self, split: Part, iteration: int, number: int = 0) -> Iterator[Evaluation]:
        wanted = self.options.do_test if split == "test" else self.options.do_valid
        if wanted is False or not self.options.eval_iters or not self.data.has(split):
            return
        self.progress.long(f"the evaluation after step {iteration}")
        batches, characters = self.data.held_out(split, number), self.characters
        if characters:
            batches = characters.counted(batches)
        loss, reports = self.trainer.evaluate(batches, self.options.eval_iters)
        yield Evaluation(iteration, split, loss, characters.perplexity(loss) if characters else None, reports)

    def _ask(self, iteration: int, everything: bool = False) -> Iterator[TaskResults | Answers]:
        """Run the tasks and continue the prompts that are due, or all of them."""
        if self.questions:
            self.progress.long(f"the tasks and prompts after step {iteration}")
            yield from self.questions.ask(iteration, everything)
