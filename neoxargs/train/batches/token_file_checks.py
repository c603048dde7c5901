"""Checks of token, label and reward files before they are read: intact, of the same documents, of this vocabulary.

The launcher makes more of them, but not if a rank is started without it, or reads other files than the launcher's host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from neoxargs.base.problems import Problem, Problems
from neoxargs.files.token_files import index, rewards
from neoxargs.files.token_files import writer as indexed
from neoxargs.files.token_files.labels import other_lengths
from neoxargs.files.token_files.sources import REWARDS_HINT, Part, Source


def require_token_files(chosen: Mapping[Part, Sequence[Source]], vocab_size: int | None = None) -> None:
    """Raise Problems unless every token file is intact, fits its labels, and has this vocabulary size (if it has a
    summary). None: of any size."""
    problems = [*_other_labels(chosen), *_wrong_rewards(chosen)]
    for prefix in dict.fromkeys(source.prefix for part in chosen.values() for source in _answers(part)):
        if damage := indexed.damage(Path(prefix)):
            hint = f"tokenise the text again: deepy data TEXT --output-prefix {prefix}"
            problems.append(
                Problem(f"data_path ({prefix}): {damage}", hint=hint, id="data-file-damaged", about=("data_path",))
            )
            continue
        made_by = index.tokenised_by(prefix)
        if made_by and vocab_size is not None and made_by.vocab_size != vocab_size:
            made = f"was tokenised by {made_by.tokenizer_type} with a vocabulary of {made_by.vocab_size} tokens"
            hint = "use the tokenizer that tokenised the data, or tokenise the text again"
            what = f"data_path ({prefix}) {made}, but this run's tokenizer has a vocabulary of {vocab_size}"
            problems.append(Problem(what, hint=hint, id="data-other-tokenizer", about=("data_path", "tokenizer_type")))
    if problems:
        raise Problems(problems)


def _other_labels(chosen: Mapping[Part, Sequence[Source]]) -> Iterator[Problem]:
    """Yield a problem for each label file with other documents than its token file; the launcher compares tokens."""
    labelled = [source for part in chosen.values() for source in _answers(part) if source.labels]
    pairs = {(source.prefix, source.labels): None for source in labelled if source.labels}
    for prefix, labels in pairs:
        text, own = index.read(prefix), index.read(labels)
        if own is None:
            what = f"{labels}: the label file is missing or damaged"
            hint = "correct the path, or write the label file again with deepy data"
            yield Problem(what, hint=hint, id="data-file-damaged", about=("train_label_data_paths",))
        elif text is not None and (found := other_lengths(text, own)) is not None:
            hint = "write both files from the same documents"
            about = ("train_label_data_paths", "train_data_paths")
            yield Problem(f"{labels} {found.text}", hint=hint, id="labels-do-not-match", about=about)


def _wrong_rewards(chosen: Mapping[Part, Sequence[Source]]) -> Iterator[Problem]:
    """Yield a problem for each reward file that is damaged or belongs to other documents."""
    rated = {(source.prefix, source.rewards) for part in chosen.values() for source in part if source.rewards}
    for prefix, own in sorted(rated):
        text = index.read(prefix)
        if text is not None and isinstance(wrong := rewards.read(own, len(text.lengths)), str):
            about = ("train_reward_data_paths", "train_data_paths")
            yield Problem(f"{own} {wrong}", hint=REWARDS_HINT, id="rewards-do-not-match", about=about)


def _answers(part: Sequence[Source]) -> Iterator[Source]:
    """Yield the sources of a split; of preference pairs, those of both answers."""
    for source in part:
        yield from (source, source.rejected) if source.rejected else (source,)
