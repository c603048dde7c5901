"""The reference model's log-probabilities of all answers that a run reads.

The reference model is the model before its first step. Its log-probabilities are computed with the training engine
before that step, so no second model takes up memory, and every layout that can train can compute them. Where a resumed
run reads further answers, the weights from before the first step are loaded once more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch.distributed as dist

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.facts.objectives import needs_reference_model
from neoxargs.files.checkpoints.folder import recorded_base
from neoxargs.processes.watch import Progress
from neoxargs.train.batches.loader import Loader, Samples, collate
from neoxargs.train.batches.references import References, Table
from neoxargs.train.batches.samples.answers import Answers, Pairs
from neoxargs.train.batches.samples.gpt_neox import BlendSamples
from neoxargs.train.checkpoint.references import Recorded, read
from neoxargs.train.checkpoint.save_load import Checkpoints
from neoxargs.train.engine.steps import Trainer
from neoxargs.train.generation.logprobs import Scorer
from neoxargs.train.generation.paused import paused
from neoxargs.train.model.lora import adapters
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.process.mesh import Mesh

#: Seconds between two lines about the progress.
INTERVAL = 30.0


def prepare(config: Config, trainer: Trainer, data: Loader, mesh: Mesh, saver: Checkpoints, progress: Progress) -> None:
    """Fill the tables of the data, from the checkpoint that the run continues or else with the model. Collective.

    Raises Problems if a sample is new and the model before the first step cannot be restored.
    """
    recorded = read(saver.last) if saver.last else Recorded({}, saver.initial)
    saver.initial = recorded.initial
    if needs_reference_model(config):
        data.references.restore(recorded.tables)
        saver.references = data.references
    else:
        data.references.ignore()
        saver.references = References()  # not those, which are no model's
    if samples := missing(data):
        scorer = Scorer(trainer, mesh, config.batch.train_micro_batch_size_per_gpu)
        with _reference_model(config, trainer, saver, samples):
            compute(samples, scorer, progress)


@contextmanager
def _reference_model(config: Config, trainer: Trainer, saver: Checkpoints, samples: list[Unscored]) -> Iterator[None]:
    """Let the engine have the weights from before the first step within this; raise Problems if they are lost."""
    has_adapters = saver.initial and saver.initial.folder and recorded_base(saver.initial.folder) is not None
    if saver.last is None:
        yield
    elif config.lora.rank and not has_adapters:
        with adapters.disabled(trainer.deepspeed.module):  # they had no effect before the first step
            yield
    elif saver.initial:
        saver.load_initial_weights(saver.initial)
        yield
        saver.load()
    else:
        what = f"load ({saver.last}): the checkpoint contains no reference log-probabilities of {counted(samples)} of "
        what += "this run's data, and the reference model cannot be restored, because it had random weights"
        hint = "use the data and train_iters of the run that wrote the checkpoint, or set finetune: true to start a "
        hint += "new run, with the loaded model as its reference model"
        about = ("load", "train_iters", "finetune")
        raise Problems(Problem(what, hint=hint, id="reference-model-lost", about=about))


class Unscored(NamedTuple):
    """A sample of the data, and where its log-probabilities belong."""

    samples: Answers
    number: int
    """Its index in `samples`."""

    @property
    def place(self) -> tuple[int, int]:
        """What is equal for two samples of the same documents."""
        return id(self.samples.references), self.samples.document(self.number)

    @property
    def entry(self) -> Table:
        """(answers), a view."""
        entry: Table = self.samples.references[self.samples.document(self.number)]
        return entry


def counted(samples: list[Unscored]) -> str:
    """Return the number of samples, in words."""
    return f"{len(samples):,} {'pairs' if isinstance(samples[0].samples, Pairs) else 'answers'}"


def compute(samples: list[Unscored], scorer: Scorer, progress: Progress) -> None:
    """Compute the log-probabilities of these samples, on all data parallel ranks together. Collective."""
    at_once = scorer.micro_batch * scorer.mesh.samples.size * scorer.in_flight
    total = counted(samples)
    _say(f"computing the reference log-probabilities of {total}")
    said = time.monotonic()
    with paused(scorer.trainer):
        for start in range(0, len(samples), at_once):
            progress.long(f"the reference model on sample {start + 1} of {len(samples)}")
            _compute_together(samples[start : start + at_once], scorer)
            if time.monotonic() - said > INTERVAL:
                said = time.monotonic()
                _say(f"reference log-probabilities: {min(start + at_once, len(samples)):,} of {total}")


def _compute_together(samples: list[Unscored], scorer: Scorer) -> None:
    replicas, size = scorer.mesh.samples, scorer.micro_batch
    # Full micro batches on every rank: the last sample again where there are too few.
    step = size * replicas.size
    padded = [*samples, *[samples[-1]] * (-len(samples) % step)]
    starts = range(replicas.rank * size, len(padded), step)
    micro_batches = [padded[start : start + size] for start in starts]
    batches = (collate([each.samples[each.number] for each in chosen]) for chosen in micro_batches)
    scored = scorer.run(batches if scorer.trainer.reads_data else None, len(micro_batches))
    # (micro batch, answers)
    own = [scores.logs.double().sum(1).view(-1, size).T.float() for scores in scored]
    found = of_all_ranks([*zip(starts, own, strict=True)] if scorer.reports else [])
    for start, values in chain.from_iterable(found):
        for sample, value in zip(padded[start:], values, strict=False):
            sample.entry[:] = value.numpy()


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def missing(data: Loader) -> list[Unscored]:
    """Return every sample of the run's data without log-probabilities, once."""
    found: dict[tuple[int, int], Unscored] = {}
    for samples in data.parts.values():
        for index in range(len(samples) if samples is not None else 0):
            assert samples is not None
            sample = _origin(samples, index)
            if np.isnan(sample.entry).any():
                found.setdefault(sample.place, sample)
    return list(found.values())


def _origin(samples: Samples, index: int) -> Unscored:
    """Return the sample that is one of a blend, or of several passes."""
    while isinstance(samples, BlendSamples):
        samples, index = samples.locate(index)
    assert isinstance(samples, Answers)
    return Unscored(samples, index)
