"""Count the samples of one pass over the training data, from which `train_epochs` determines `train_iters`.

The count needs no torch: it is made before the schedule and the plan, both of which depend on the length of the run.
"""

from __future__ import annotations

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.config.value import Value
from neoxargs.files.token_files.one_pass import cut_of, samples_in
from neoxargs.files.token_files.sources import sources
from neoxargs.registry.data import Data
from neoxargs.registry.post_training import PostTraining
from neoxargs.resolve.derive import Partial


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
