"""What the launches of a run have read of each dataset: the samples are computed as the ranks computed them, and their
tokens are counted one by one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.facts.layout import Layout
from neoxargs.files.token_files import index
from neoxargs.files.token_files.sources import sources
from neoxargs.train.batches.datasets import index_folder, is_limited, training_samples
from neoxargs.train.batches.loader import usable_length
from neoxargs.train.batches.samples.spans import spans

#: Samples that are looked up together.
TOGETHER = 1 << 18
Integers = NDArray[np.int64]


class Launch(NamedTuple):
    """A part of a run: the samples that were read with the same values."""

    config: Config
    files: Mapping[str, str]
    """Prefix -> digest of the token file at that time (files/token_files/index.py)."""
    ranges: Sequence[range]
    """The numbers of the samples that its steps have read, in their order."""


class Account(NamedTuple):
    """What was read of a dataset."""

    dataset: str
    tokens: int
    """Inputs of the model, or for samples of whole documents, their tokens."""
    size: int
    """Tokens of the dataset."""
    times: Mapping[int, int]
    """How often tokens were read -> how many; without those that were not read."""
    in_passes: bool
    """Whether no pass over joined documents began before the one before had ended."""

    @property
    def passes(self) -> float:
        return self.tokens / self.size


def accounts(launches: Sequence[Launch]) -> list[Account]:
    """Return what the launches of a run have read together. Raises Problems if a token file is another one by now."""
    _refuse_other_files(launches)
    read: dict[str, list[Integers]] = {}
    for launch in launches:
        with index_files(launch.config) as folder:
            for prefix, ranges in _read_by(launch, folder):
                read.setdefault(prefix, []).append(ranges)
    return [_account(prefix, ranges, launches) for prefix, ranges in read.items()]


@contextmanager
def index_files(config: Config) -> Iterator[Path]:
    """Yield a folder for index files: that of the run if there is one, so that they are not computed again."""
    own = index_folder(config)
    if os.access(own, os.W_OK):
        yield own
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _refuse_other_files(launches: Sequence[Launch]) -> None:
    """Raise Problems if a token file is not the one that a launch has read."""
    known = {prefix: digest for launch in launches for prefix, digest in launch.files.items()}
    changed = [prefix for prefix, digest in known.items() if digest != index.digest(prefix)]
    changed += [prefix for launch in launches for prefix in launch.files if launch.files[prefix] != known[prefix]]
    what = "is not the token file that the run has read: its size or its beginning has changed"
    hint = "restore the file that the run has read"
    if changed:
        raise Problems(
            [Problem(f"{prefix} {what}", hint=hint, id="ledger-other-files") for prefix in dict.fromkeys(changed)]
        )


def _read_by(launch: Launch, folder: Path) -> Iterator[tuple[str, Integers]]:
    """Yield the tokens that a launch has read: a prefix, and first token and end of ranges in its file, (ranges, 2)."""
    config, last = launch.config, max(each.stop for each in launch.ranges)
    together = config.batch.train_micro_batch_size_per_gpu * Layout.of(config).data
    samples = training_samples(config, folder, reach=last + -last % together)
    drops_last = config.data.sample_order == "gpt-neox" and not is_limited(config)
    length = usable_length(len(samples), together if drops_last else 1)
    offsets: dict[str, Integers] = {}
    read = (each[first : first + TOGETHER] for each in launch.ranges for first in range(0, len(each), TOGETHER))
    for numbers in read:
        for part in spans(samples, np.arange(numbers.start, numbers.stop) % length):
            prefix = part.file.path_prefix
            if prefix not in offsets:
                offsets[prefix] = np.cumsum([0, *part.file.sequence_lengths], dtype=np.int64)
            begins = offsets[prefix][part.sequence]
            yield prefix, np.stack([begins + part.begin, begins + part.end], 1)


def _account(prefix: str, read: Sequence[Integers], launches: Sequence[Launch]) -> Account:
    ranges, data = np.concatenate(read), launches[-1].config.data
    times = _times(ranges)
    size, most = _size(prefix, launches), max(times)
    # Of joined documents, a pass leaves out the last sample and what follows it.
    in_a_pass = size - 2 * launches[-1].config.shape.seq_length
    before = sum(tokens for count, tokens in times.items() if count >= most - 1)
    in_passes = data.pack_impl == "packed" and (most == 1 or before >= in_a_pass)
    return Account(prefix, int((ranges[:, 1] - ranges[:, 0]).sum()), size, times, in_passes)


def _size(prefix: str, launches: Sequence[Launch]) -> int:
    """Return the tokens of a dataset that belong to the training data."""
    train = [
        source for launch in launches for source in sources(launch.config.data, launch.config.post_training)["train"]
    ]
    both = [each for source in train for each in (source, source.rejected) if each]
    share = next(source.share for source in reversed(both) if source.prefix == prefix)
    file = index.read(prefix)
    assert file is not None  # it has been read
    return int(file.lengths[share.sequences(len(file.lengths))].sum(dtype=np.int64))


def _times(ranges: Integers) -> dict[int, int]:
    """Return how often tokens are in ranges, (ranges, 2) -> how many of them."""
    ends = ranges.T.reshape(-1)
    order = np.argsort(ends, kind="stable")
    depth = np.cumsum(np.repeat([1, -1], len(ranges))[order])
    counts = np.bincount(depth[:-1], weights=np.diff(ends[order]))
    return {times: int(tokens) for times, tokens in enumerate(counts) if times and tokens}
