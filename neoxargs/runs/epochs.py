"""Count the samples of one pass over the training data, from which `train_epochs` determines `train_iters`.

The count needs no torch: it is made before the schedule and the plan, both of which depend on the length of the run.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.config.value import Value
from neoxargs.facts.trained import prompt_length
from neoxargs.files.token_files.sources import Source, sources
from neoxargs.registry.architectures import SoftPrompt
from neoxargs.registry.data import Data
from neoxargs.registry.model import Shape
from neoxargs.registry.post_training import PostTraining
from neoxargs.registry.training import Training
from neoxargs.resolve.derive import Partial

if TYPE_CHECKING:
    from neoxargs.files.token_files.packing import How


class Cut(NamedTuple):
    """What determines the samples of a source, apart from its files."""

    pack_impl: How | str
    seq_length: int
    prompt: int
    allow_chopped: bool
    seed: int


def samples_per_epoch(partial: Partial | Config) -> int | None:
    """Return the number of samples of one pass over the training data; 0 without `train_epochs` or token files.

    None if the lists of files and of their labels differ in length, which is reported elsewhere.

    Raises Problems if a token file cannot be read, and Uncertain if an error makes a value unknown that the number
    follows from.
    """
    epochs = partial.values.get("train_epochs")
    if epochs is None or epochs.value is None or "train_epochs" in partial.broken:
        return 0
    try:
        chosen, cut = sources(partial.group(Data), partial.group(PostTraining))["train"], cut_of(partial)
    except ValueError:  # lists of files, labels and weights differ in length, which a rule reports
        return None
    try:
        counts = {source: samples_in(source, cut) for source in chosen}
    except ImportError:  # a machine that only checks may lack it
        raise _not_countable(epochs, "numpy is not installed", "run pip install numpy") from None
    if unknown := [source.prefix for source, count in counts.items() if count is None]:
        reason = f"a token file or label file of {' and of '.join(unknown)} is missing or damaged"
        raise _not_countable(epochs, reason, "correct the path")
    return sum(counts[source] or 0 for source in chosen)


def _not_countable(epochs: Value, reason: str, remedy: str) -> Problems:
    what = f"train_epochs ({epochs.value}) needs the number of samples, but they cannot be counted: {reason}"
    hint = f"{remedy}, or set train_iters instead"
    return Problems(Problem(what, epochs.source.where, hint, id="epoch-not-countable", about=("train_epochs",)))


def cut_of(partial: Partial | Config) -> Cut:
    data, prompt = partial.group(Data), prompt_length(partial.group(SoftPrompt))
    length, seed = partial.group(Shape).seq_length, partial.group(Training).seed
    return Cut(data.pack_impl, length, prompt, data.allow_chopped, seed)


def samples_in(source: Source, cut: Cut) -> int | None:
    """Return the number of samples of a source, or None if one of its files cannot be read."""
    try:
        stamps = [os.stat(f"{prefix}.{ending}") for prefix in source.files for ending in ("idx", "bin")]
        return _samples(source, cut, tuple((stamp.st_size, stamp.st_mtime_ns) for stamp in stamps))
    except OSError:
        return None


@lru_cache(maxsize=64)  # the search for a layout resolves hundreds of configurations with the same data
def _samples(source: Source, cut: Cut, stamps: tuple[tuple[int, int], ...]) -> int | None:
    from neoxargs.files.token_files import packing
    from neoxargs.files.token_files.documents import documents_of

    window = packing.window_of(cut.seq_length, cut.prompt)
    found = documents_of(source, window)
    if found is None:
        return None
    if cut.pack_impl == "packed":
        return packing.joined_samples(int(found.lengths.sum()), cut.seq_length)
    how: How = cut.pack_impl  # type: ignore[assignment]
    return packing.pack(how, *found, window, cut.allow_chopped, cut.seed).samples
