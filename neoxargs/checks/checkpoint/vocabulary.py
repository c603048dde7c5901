"""Check that the rows of a checkpoint's embedding belong to the tokens of this run's tokenizer.

Rows are added and dropped on loading, because their padding depends on the layout. The ranks cannot tell a padding row
from a trained one, so a different tokenizer would load without a message.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem
from neoxargs.checks.checkpoint.model import differs
from neoxargs.config.config import Config
from neoxargs.facts.model import vocabulary_rows
from neoxargs.facts.vocab import SAME_VOCABULARY, tokenizer_file, vocabulary_size
from neoxargs.files.checkpoints import folder as checkpoint_folder

FILES = ("vocab_file", "merge_file")
#: What a problem with numbers of rows is about.
ROWS = ("load", "padded_vocab_size", "tokenizer_type", "vocab_file")


def other_vocabulary(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """Yield a warning if the checkpoint is of another tokenizer, and an error if it then cannot be loaded."""
    recorded = checkpoint_folder.configuration(checkpoint)
    if checkpoint is None or recorded is None:
        return
    # Imported here, because most checks load no checkpoint.
    from neoxargs.checks.checkpoint.changes import recorded_config

    saved = recorded_config(recorded)
    yield from _other_tokenizer(config, checkpoint, saved)
    yield from _other_rows(config, checkpoint, saved)


def _other_tokenizer(config: Config, checkpoint: Path, saved: Config) -> Iterator[Problem]:
    ours, theirs = config.tokenizer.tokenizer_type, saved.tokenizer.tokenizer_type
    if ours != theirs and not {ours, theirs} <= SAME_VOCABULARY:
        yield _warning(config, "tokenizer_type", checkpoint, ours, theirs)
    elif ours == theirs:
        for name in FILES:
            here, there = config.get(name), saved.get(name)
            if not here or not there or here == there:
                continue
            one, other = tokenizer_file(here), tokenizer_file(there)
            # A path alone proves nothing, because files are moved.
            if one.is_file() and other.is_file() and not filecmp.cmp(one, other, shallow=False):
                yield _warning(config, name, checkpoint, here, there)


def _warning(config: Config, name: str, checkpoint: Path, ours: Any, theirs: Any) -> Problem:
    what = differs(name, ours, theirs, checkpoint)
    what += ", and the contents of the two files differ" if name in FILES else ""
    hint = f"set {name} to {theirs}: the rows of the embedding belong to the tokens of that tokenizer"
    place, about = config.place(name) or config.place("load"), (name, "load")
    return Problem(what, place, hint, severity="warning", id="checkpoint-other-vocabulary", about=about)


def _other_rows(config: Config, checkpoint: Path, saved: Config) -> Iterator[Problem]:
    """Compare numbers of rows and tokens, as far as they are known without the tokenizer."""
    ours, theirs = vocabulary_rows(config), checkpoint_folder.embedding_rows(checkpoint)
    if ours is None:
        return
    if checkpoint_folder.lists_weights(checkpoint):
        yield from _added_or_dropped(config, checkpoint, saved, ours, theirs) if theirs is not None else ()
    # Only DeepSpeed can load a checkpoint without a list of its weights, and only with the same number of rows.
    elif (theirs := vocabulary_rows(saved)) and theirs != ours:
        what = f"the embedding has {ours:,} rows in this configuration, "
        what += f"but {theirs:,} in the checkpoint to be loaded ({checkpoint})"
        hint = f"set padded_vocab_size to {theirs}, or load a different checkpoint"
        yield Problem(what, config.place("load"), hint, id="checkpoint-other-model", about=ROWS)


def _added_or_dropped(config: Config, checkpoint: Path, saved: Config, ours: int, theirs: int) -> Iterator[Problem]:
    """A warning about rows that are more than padding."""
    tokens = vocabulary_size(config.tokenizer.tokenizer_type, config.tokenizer.vocab_file)
    if tokens is not None and tokens > theirs:
        what = f"the tokenizer of this configuration has {tokens:,} tokens, but the embedding in the checkpoint to be "
        what += f"loaded ({checkpoint}) has only {theirs:,} rows; "
        what += f"the embeddings of tokens {theirs} and above start at 0"
        hint = "use the tokenizer that the model was trained with, unless tokens have been added to it since then"
    elif ours < theirs and (lost := _trained_rows(saved, theirs) - ours) > 0:
        what = f"the embedding has {ours:,} rows in this configuration, but {theirs:,} in the checkpoint to be loaded "
        what += f"({checkpoint}); at least {lost:,} trained {'row' if lost == 1 else 'rows'} would be dropped"
        hint = "use the tokenizer that the model was trained with"
    else:
        return
    yield Problem(what, config.place("load"), hint, severity="warning", id="checkpoint-other-vocabulary", about=ROWS)


def _trained_rows(saved: Config, rows: int) -> int:
    """Return how many rows of a checkpoint belong to tokens, or a lower bound if its tokenizer is not known."""
    known = vocabulary_size(saved.tokenizer.tokenizer_type, saved.tokenizer.vocab_file)
    if known is not None:
        return min(known, rows)
    # Padding fills up the last unit at most, unless the number of rows was set.
    unit = saved.embedding.make_vocab_size_divisible_by * saved.parallel.model_parallel_size
    return 0 if "padded_vocab_size" in saved.values else rows - unit + 1
