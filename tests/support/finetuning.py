"""Token files for tests, with labels: documents of numbers, and which of their tokens are trained; their loader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neoxargs.config.config import Config
from neoxargs.config.value import DEFAULT, Value
from neoxargs.data.tokenizer import ByteTokenizer
from neoxargs.files.token_files import writer as indexed

IGNORED = -100
TOKENIZER = ByteTokenizer(257, 256)


def data_config(run_dir: Path, **changes: Any) -> Config:
    """Return the configuration of a run of six batches of four samples."""
    values = {
        "run_dir": str(run_dir), "seq_length": 8, "train_iters": 6, "eval_iters": 2, "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2, "num_workers": 0, "split": "80,10,10",
    } | changes  # fmt: skip
    return Config({name: Value(value, DEFAULT) for name, value in values.items()})


def token_file(prefix: Path, documents: Sequence[Sequence[float]], stored: type[np.generic] = np.int32) -> str:
    """Write documents to a token file and return its prefix."""
    with indexed.new_file(prefix, stored) as writer:
        for ids in documents:
            writer.add(np.array(ids, stored), [len(ids)], [True])
    return str(prefix)


def drawn(count: int, longest: int, seed: int = 0, shortest: int = 2) -> list[list[int]]:
    """Return documents of `shortest` to `longest` random bytes."""
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, random.integers(shortest, longest + 1)).tolist() for _ in range(count)]


def labelled(documents: Sequence[Sequence[int]], seed: int = 0) -> list[list[int]]:
    """Return labels of documents: a first part of random length, the prompt, is not trained."""
    random = np.random.default_rng(seed)
    prompts = [int(random.integers(1, len(document))) for document in documents]
    return [[IGNORED] * prompt + list(document[prompt:]) for prompt, document in zip(prompts, documents, strict=True)]


def pair(folder: Path, documents: Sequence[Sequence[int]], labels: Sequence[Sequence[int]]) -> tuple[str, str]:
    """Write a token file and its label file; return their prefixes."""
    return token_file(folder / "text", documents, np.uint16), token_file(folder / "labels", labels)


def lengths(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)
