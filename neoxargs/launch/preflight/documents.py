"""Checks of the documents in token files: they fit into a sample, and label files belong to them.

They need numpy, which a machine that only checks may lack, and whose import takes as long as a whole check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neoxargs.problems import Problem
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.data import SPLITS, label_pairs
from neoxargs.sizes.trained import prompt_length
from neoxargs.token_files import index
from neoxargs.token_files.sources import sources

HINTS = {
    "documents": "write both files from the same documents, in the same order",
    "length": "write one label for each token of every document",
    "label": "write the token itself as its label, or -100 to exclude the token from the loss; do not shift the labels",
}


def wrong_labels(config: Config) -> Iterator[Problem]:
    """Yield a problem for each pair of files that do not fit; missing and damaged files are reported elsewhere."""
    pairs = _pairs(config)
    if not pairs:
        return
    try:
        from neoxargs.token_files import labels
    except ImportError:
        yield _skipped("labels are not compared with the tokens", [f"{split}_label_data_paths" for split in SPLITS])
        return
    for (prefix, own), split in pairs.items():
        text, label = index.read(prefix), index.read(own)
        if text and label and (found := labels.mismatch(text, label)):
            name = f"{split}_label_data_paths"
            what, about = f"{name}: {own} {found.text}", (name, f"{split}_data_paths")
            yield Problem(what, config.place(name), HINTS[found.kind], id="labels-do-not-match", about=about)


def no_document_fits(config: Config) -> Iterator[Problem]:
    """Yield the error of `allow_chopped: false` with only documents that are longer than a sample."""
    data, prompt = config.data, prompt_length(config.soft_prompt)
    if data.allow_chopped or data.pack_impl == "packed" or not (data.data_path or data.train_data_paths):
        return
    try:
        from neoxargs.token_files.packing import window_of
    except ImportError:
        yield _skipped("the documents that allow_chopped: false leaves out are not counted", ["allow_chopped"])
        return
    chosen = sources(data)["train"]
    opened = [(index.read(source.prefix), source.share) for source in chosen]
    lengths = [file.lengths[share.sequences(len(file.lengths))] for file, share in opened if file is not None]
    window, counts = window_of(config.shape.seq_length, prompt), [len(each) for each in lengths]
    if len(lengths) < len(chosen) or not sum(counts):
        return  # reported elsewhere
    shortest = min(int(each.min()) for each in lengths if len(each))
    if shortest > window:
        what = "allow_chopped: false leaves no training data: every document is longer than a sample "
        what += f"({window:,} tokens); the shortest one has {shortest:,} tokens"
        # A sample has seq_length + 1 tokens (inputs and labels are shifted), of which a soft prompt takes some.
        hint = f"remove allow_chopped to truncate long documents, or set seq_length to at least {shortest - 1 + prompt}"
        yield Problem(what, config.place("allow_chopped"), hint, id="data-part-empty", about=("allow_chopped",))


def _skipped(what: str, about: Sequence[str]) -> Problem:
    hint = "run pip install numpy"
    what += ", because numpy is not installed"
    return Problem(what, hint=hint, severity="warning", id="check-skipped", about=tuple(about))


def _pairs(config: Config) -> dict[tuple[str, str], str]:
    """Return token file and label file -> the first split that names them."""
    found: dict[tuple[str, str], str] = {}
    for split in SPLITS:
        for pair in label_pairs(config.get(f"{split}_data_paths"), config.get(f"{split}_label_data_paths")):
            found.setdefault(pair, split)
    return found
