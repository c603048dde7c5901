"""megatron-core's data sets, for `sample_order: megatron-core`.

megatron-core is imported inside functions, because importing it warns about packages that this trainer does not use.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray

from neoxargs.files.token_files.sources import Part, part_of
from neoxargs.registry.data import Data


def gpt_dataset(file: Any, prefix: str, sequences: slice, samples: int, part: Part, settings: Any) -> Any:
    """Return the data set of some sequences of an open token file."""
    from megatron.core.datasets.gpt_dataset import GPTDataset
    from megatron.core.datasets.utils import Split

    indices: NDArray[np.int32] = np.arange(sequences.start, sequences.stop, dtype=np.int32)
    split = {"train": Split.train, "validation": Split.valid, "test": Split.test}[part_of(part)]
    return GPTDataset(file, prefix, indices, samples, split, settings)


def blended(built: Sequence[Any], weights: Sequence[float], samples: int, settings: Any) -> Any:
    """Return the blend of data sets. weights: add up to 1."""
    from megatron.core.datasets.blended_dataset import BlendedDataset

    return BlendedDataset(built, weights, samples, settings)


def settings(data: Data, seed: int, seq_length: int, tokenizer: SimpleNamespace, cache: Path) -> Any:
    """Return megatron-core's configuration of a data set.

    megatron-core hashes `tokenizer` into the names of the index files. It therefore carries everything they depend on
    that megatron-core does not hash itself: the share of each source, and size and time of its token file.
    """
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

    return GPTDatasetConfig(
        random_seed=seed,
        sequence_length=seq_length,
        # Not read here, but without blends megatron-core takes this for the configuration of mock data.
        blend_per_split=[(list(tokenizer.unique_identifiers), None)] * 3,
        path_to_cache=str(cache),
        mmap_bin_files=data.data_impl in ("infer", "mmap"),
        tokenizer=tokenizer,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
        eod_mask_loss=data.eod_mask_loss,
        create_attention_mask=False,  # the model makes its masks itself, on the device
    )


@contextmanager
def as_only_rank() -> Iterator[None]:
    """Within this, megatron-core takes this process for the only rank, so that it writes index files.

    megatron-core 0.16 writes them on global rank 0 only, and calls `torch.distributed.get_rank` even without a process
    group. Only its two data set modules see the replaced `torch`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import blended_dataset, gpt_dataset
    for module in (blended_dataset, gpt_dataset):
        module.torch = _TorchOfOneRank()
    try:
        yield
    finally:
        for module in (blended_dataset, gpt_dataset):
            module.torch = torch


class _TorchOfOneRank:
    """The torch module, except that torch.distributed reports no process group and rank 0."""

    distributed = SimpleNamespace(is_initialized=lambda: False, get_rank=lambda: 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
