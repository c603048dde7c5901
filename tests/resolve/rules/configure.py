"""A small configuration to vary: what the rules make of some lines of YAML."""

from __future__ import annotations

import re

from neoxargs.resolve import Text, complete, draft
from neoxargs.resolve.config import Config

SHAPE = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "max_position_embeddings": 32,
    "train_iters": 100,
    "train_micro_batch_size_per_gpu": 2,
}


def configure(text: str = "", gpus: int = 8, without: str = "") -> Config:
    """The shape above, unless the text says otherwise or it is taken away, completed; raises Problems."""
    shape = {name: value for name, value in SHAPE.items() if name != without and not _has(text, name)}
    texts = [Text("my.yml", text), Text("shape.yml", "\n".join(f"{name}: {value}" for name, value in shape.items()))]
    return complete(draft([given for given in texts if given.text]), gpus)


def _has(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){name}:", text) is not None
