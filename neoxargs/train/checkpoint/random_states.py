"""The states of a rank's random generators, as a checkpoint stores them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from neoxargs.train.process.setup import on_gpu


def random_file(rank: int) -> str:
    """Return the name of the file with a rank's random states."""
    return f"random-rank{rank:05d}.pt"


def random_state() -> dict[str, Any]:
    """Return the states of this rank's random generators, in types that `torch.load(weights_only=True)` reads."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(),
        # torch has no full support of numpy's uint32.
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if on_gpu():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Set this rank's random generators to the states that `random_state` returned; a CPU run ignores that of a GPU."""
    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and on_gpu():
        torch.cuda.set_rng_state(state["cuda"])
