"""Checks of the documents in token files: they fit into a sample, and label files belong to them.

They need numpy, which a machine that only checks may lack, and whose import takes as long as a whole check.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.facts.data import ANSWERS, SPLITS, label_pairs
from neoxargs.facts.model import is_reward_model
from neoxargs.facts.trained import prompt_length
from neoxargs.facts.validation_sets import validation_sets
from neoxargs.files.token_files import index
from neoxargs.files.token_files.sources import REWARDS_HINT, Source, labelled, sources

PAIR_HINT = "write both files from the same prompts, so that document i of one belongs to document i of the other"


def empty_splits(config: Config) -> Iterator[Problem]:
    """Yield the problem of each split without a document, from the headers of the token files."""
    chosen = {} if config.data.text_path else sources(config.data, config.post_training)
    for part, named in chosen.items():
        if (part == "train" or config.training.eval_iters) and (files := _without_documents(named)):
            what = f"the {part} split is empty: there are too few documents in {files}"
            hint, about = "change split, or add documents", ("data_path", "split")
            problem = Problem(what, config.place("split"), hint, id="data-part-empty", about=about)
            yield problem if part == "train" else problem.as_warning()


def _without_documents(chosen: Sequence[Source]) -> str:
    """Return the files of a split and their numbers of documents if none is left for it, otherwise ""."""
    found = [(source, size.sequences) for source in chosen if (size := index.extent(source.prefix))]
    shares = [source.share.sequences(count) for source, count in found]
    if len(found) < len(chosen) or any(share.stop > share.start for share in shares):
        return ""
    return ", ".join(f"{source.prefix} ({count:,})" for source, count in found)


def shorter_than_a_sample(config: Config) -> Iterator[Problem]:
    """Yield a warning for each dataset that is repeated within a sample."""
    data, window = config.data, config.shape.seq_length + 1
    joined = data.pack_impl == "packed" and not data.text_path
    chosen = sources(data, config.post_training) if joined else {}
    for prefix in dict.fromkeys(source.prefix for part in chosen.values() for source in part):
        size = index.extent(prefix)
        if size and size.tokens < window:
            what = f"{prefix} has {size.tokens:,} tokens, fewer than one sample ({window:,} tokens)"
            hint, about = "use more text, or set a smaller seq_length", ("data_path", "seq_length")
            yield Problem(what, config.place("data_path"), hint, severity="warning", id="data-too-short", about=about)


def wrong_labels(config: Config) -> Iterator[Problem]:
    """Yield a problem for each pair of files that do not fit; missing and damaged files are reported elsewhere."""
    pairs = _pairs(config)
    if not pairs:
        return
    try:
        from neoxargs.files.token_files import labels
    except ImportError:
        yield _skipped("labels are not compared with the tokens", [f"{split}_label_data_paths" for split in SPLITS])
        return
    for (prefix, own), (name, of_text) in pairs.items():
        text, label = index.read(prefix), index.read(own)
        if text and label and (found := labels.mismatch(text, label)):
            what, about = f"{name}: {own} {found.text}", (name, of_text)
            yield Problem(what, config.place(name), labels.HINTS[found.kind], id="labels-do-not-match", about=about)


def unpaired_answers(config: Config) -> Iterator[Problem]:
    """Yield a problem for two token files of preference pairs that do not have answers to the same prompts."""
    for split in SPLITS if config.data.dataset_impl == "pairwise" else ():
        names = f"pos_{split}_data_paths", f"neg_{split}_data_paths"
        labels = label_pairs(*(config.get(f"{answer}_{split}_label_data_paths") for answer in ("pos", "neg")))
        for paths, own in zip_longest(label_pairs(*map(config.get, names)), labels, fillvalue=("", "")):
            # The labels of a reward model do not tell where the prompt ends.
            other_prompt = "" if is_reward_model(config) else _other_prompt(paths, own)
            if what := _other_documents(*paths) or other_prompt:
                place = config.place(names[1])
                yield Problem(f"{names[1]}: {what}", place, PAIR_HINT, id="pairs-do-not-match", about=names[::-1])


def wrong_rewards(config: Config) -> Iterator[Problem]:
    """Yield a problem for each reward file that does not fit its token file; missing files are reported elsewhere."""
    for split in SPLITS if config.post_training.train_impl == "kto" else ():
        names = f"{split}_reward_data_paths", f"{split}_data_paths"
        for own, prefix in label_pairs(*map(config.get, names)):
            if (size := index.extent(prefix)) and (what := _wrong_rewards(own, size.sequences)):
                place = config.place(names[0])
                yield Problem(f"{names[0]}: {own} {what}", place, REWARDS_HINT, id="rewards-do-not-match", about=names)


def _wrong_rewards(prefix: str, documents: int) -> str:
    """Return what is wrong with a reward file that exists, or ""."""
    try:
        from neoxargs.files.token_files import rewards
    except ImportError:
        return ""
    exists = all(os.path.exists(prefix + ending) for ending in (".bin", ".idx"))
    found = rewards.read(prefix, documents) if exists else ""
    return found if isinstance(found, str) else ""


def _other_documents(chosen: str, rejected: str) -> str:
    """Return that the numbers of documents differ, or ""; missing files are reported elsewhere."""
    ours, theirs = index.extent(chosen), index.extent(rejected)
    if ours is None or theirs is None or ours.sequences == theirs.sequences:
        return ""
    return f"{rejected} has {theirs.sequences:,} documents, but {chosen} has {ours.sequences:,}"


def _other_prompt(paths: tuple[str, str], labels: tuple[str, str]) -> str:
    """Return the first document whose prompts differ, or "". The prompt is what precedes the first trained token."""
    try:
        from neoxargs.files.token_files.labels import prompts
    except ImportError:
        return ""
    chosen, rejected = (prompts(*files) for files in zip(paths, labels, strict=True))
    for document, (ours, theirs) in enumerate(zip(chosen, rejected, strict=False)):
        if ours != theirs:
            return f"the prompts of document {document} in {paths[1]} and of document {document} in {paths[0]} differ"
    return ""


def no_document_fits(config: Config) -> Iterator[Problem]:
    """Yield the error of training documents that are all left out: too long for a sample, or not trained within it."""
    data, prompt = config.data, prompt_length(config.soft_prompt)
    chosen = sources(data, config.post_training)["train"] if data.pack_impl != "packed" else []
    if not chosen or (data.allow_chopped and not labelled({"train": chosen})):
        return
    try:
        from neoxargs.files.token_files.documents import documents_of
        from neoxargs.files.token_files.packing import window_of
    except ImportError:
        yield _skipped("the documents that pack_impl leaves out are not counted", ["pack_impl"])
        return
    window = window_of(config.shape.seq_length, prompt)
    found = [documents_of(source, window) for source in chosen]
    known = [each for each in found if each is not None and len(each.lengths)]
    if not known or any(each is None for each in found):
        return  # reported elsewhere
    shortest = min(int(each.lengths.min()) for each in known)
    longest = max(int(each.lengths.max()) for each in known)
    if shortest > window and not data.allow_chopped:
        what = "allow_chopped: false leaves no training data: every document is longer than a sample "
        what += f"({window:,} tokens); the shortest one has {shortest:,} tokens"
        # A sample has seq_length + 1 tokens (inputs and labels are shifted), of which a soft prompt takes some.
        hint = f"remove allow_chopped to truncate long documents, or set seq_length to at least {shortest - 1 + prompt}"
        yield Problem(what, config.place("allow_chopped"), hint, id="data-part-empty", about=("allow_chopped",))
    elif not any(each.trained[(each.lengths <= window) | data.allow_chopped].any() for each in known):
        what = f"there is no training data: no document has a trained token within a sample ({window:,} tokens)"
        larger = f"set a larger seq_length (the longest document has {longest:,} tokens)"
        hint = larger if longest > window else "write the labels again: a token that is trained is its own label"
        yield Problem(what, config.place("seq_length"), hint, id="data-part-empty", about=("seq_length",))


def _skipped(what: str, about: Sequence[str]) -> Problem:
    what, hint = f"{what}, because numpy is not installed", "run pip install numpy"
    return Problem(what, hint=hint, severity="warning", id="check-skipped", about=tuple(about))


def _pairs(config: Config) -> dict[tuple[str, str], tuple[str, str]]:
    """Return token file and label file -> the first parameters that name the labels and the text."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for split in (answer + split for answer in ANSWERS for split in SPLITS):
        names = f"{split}_label_data_paths", f"{split}_data_paths"
        for pair in label_pairs(config.get(names[1]), config.get(names[0])):
            found.setdefault(pair, names)
    for each in validation_sets(config.get("validation")):
        for pair in zip(each.paths, each.labels, strict=False):
            found.setdefault(pair, ("validation", "validation"))
    return found
