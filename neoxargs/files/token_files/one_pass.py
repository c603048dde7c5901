"""The samples of one pass over a source, counted without torch."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from neoxargs.config.config import Config
from neoxargs.facts.trained import prompt_length
from neoxargs.files.token_files.sources import Source
from neoxargs.registry.architectures import SoftPrompt
from neoxargs.registry.data import Data
from neoxargs.registry.model import Shape
from neoxargs.registry.training import Training

if TYPE_CHECKING:
    from neoxargs.files.token_files.packing import How
    from neoxargs.resolve.derive import Partial


class Cut(NamedTuple):
    """What determines the samples of a source, apart from its files."""

    pack_impl: How | str
    seq_length: int
    prompt: int
    allow_chopped: bool
    seed: int


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
