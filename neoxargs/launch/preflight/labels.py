"""Check that label files belong to their token files: the same documents, and each label -100 or the token itself."""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.problems import Problem
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.data import SPLITS, label_pairs
from neoxargs.token_files import index

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
        # It needs numpy, which a machine that only checks may lack, and whose import takes as long as a whole check.
        from neoxargs.token_files import labels
    except ImportError:
        return
    for (prefix, own), split in pairs.items():
        text, label = index.read(prefix), index.read(own)
        if text and label and (found := labels.mismatch(text, label)):
            name = f"{split}_label_data_paths"
            what, about = f"{name}: {own} {found.text}", (name, f"{split}_data_paths")
            yield Problem(what, config.place(name), HINTS[found.kind], id="labels-do-not-match", about=about)


def _pairs(config: Config) -> dict[tuple[str, str], str]:
    """Return token file and label file -> the first split that names them."""
    found: dict[tuple[str, str], str] = {}
    for split in SPLITS:
        for pair in label_pairs(config.get(f"{split}_data_paths"), config.get(f"{split}_label_data_paths")):
            found.setdefault(pair, split)
    return found
