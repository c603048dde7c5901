"""`deepy data TEXT --mask-before-token IDS`: labels for text with a delimiter, such as `Answer:`.

The rule is that of GPT-NeoX's preprocess_data_with_mask.py: in each document, no token is trained up to the end of the
first occurrence of the delimiter; a document without the delimiter is trained completely.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from neoxargs.base.problems import Problem, Problems
from neoxargs.data.tokenizer import Ids
from neoxargs.files.token_files import index
from neoxargs.files.token_files import writer as indexed
from neoxargs.files.token_files.made_from import label_prefix, sidecar, write_json


def parse(text: str) -> tuple[int, ...]:
    """Return the token ids in `10,11,12`; raise Problems if it is no list of ids."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        what = f"--mask-before-token ({text}) must be the token ids of a delimiter, with commas between them"
        raise Problems(
            Problem(what, hint="for example --mask-before-token 33706,25", id="mask-token-not-ids")
        ) from None


def write(prefix: Path, delimiter: tuple[int, ...], fingerprint: str) -> None:
    """Write `<prefix>_label` for a token file. fingerprint: of the token file, which the labels repeat."""
    tokens = index.read(str(prefix))
    assert tokens is not None
    with indexed.new_file(label_prefix(prefix), np.int32) as writer:
        for first, last in pairwise(index.ends(str(prefix)).tolist()):
            # A document may be several sequences, across which the delimiter is searched.
            labels = masked(np.array(tokens.ids[tokens.begins[first] : tokens.begins[last]], dtype=np.int32), delimiter)
            lengths = tokens.lengths[first:last].tolist()
            writer.add(labels, lengths, [False] * (len(lengths) - 1) + [True])
        sidecar(label_prefix(prefix)).unlink(missing_ok=True)
    write_json(sidecar(label_prefix(prefix)), _made_from(delimiter, fingerprint))


def is_up_to_date(prefix: Path, delimiter: tuple[int, ...], fingerprint: str) -> bool:
    """Whether the labels are those of the delimiter in the token file with this fingerprint."""
    try:
        made_from = json.loads(sidecar(label_prefix(prefix)).read_text())
    except (OSError, ValueError):
        return False
    return indexed.exists(label_prefix(prefix)) and made_from == _made_from(delimiter, fingerprint)


def masked(ids: Ids, delimiter: tuple[int, ...]) -> Ids:
    """Return the labels of a document."""
    size = len(delimiter)
    if len(ids) < size:
        return ids
    found = np.flatnonzero((sliding_window_view(ids, size) == np.array(delimiter)).all(axis=1))
    labels: Ids = ids.copy()
    if len(found):
        labels[: found[0] + size] = index.IGNORED
    return labels


def _made_from(delimiter: tuple[int, ...], fingerprint: str) -> dict[str, object]:
    return {"mask_before_token": list(delimiter), "fingerprint": fingerprint}
