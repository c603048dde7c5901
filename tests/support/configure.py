"""Resolves a small configuration with changes given as YAML."""

from __future__ import annotations

import re

from neoxargs.config.config import Config
from neoxargs.resolve import File, complete, draft

SHAPE = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "max_position_embeddings": 32,
         "train_iters": 100, "train_micro_batch_size_per_gpu": 2}  # fmt: skip


def configure(*texts: str, gpus: int = 8, without: str = "", samples: int = 0) -> Config:
    """Resolve SHAPE with these texts, which may replace its values. Raises Problems.

    without: a key of SHAPE to leave out. samples: training samples of an epoch.
    """
    shape = {name: value for name, value in SHAPE.items() if name != without and not _has(" ".join(texts), name)}
    lines = "\n".join(f"{name}: {value}" for name, value in shape.items())
    given = [("my.yml", texts[0] if texts else ""), *(("more.yml", text) for text in texts[1:]), ("shape.yml", lines)]
    config = complete(draft([File(name, text) for name, text in given if text]), gpus, samples_per_epoch=samples)
    config.warnings = [warning for warning in config.warnings if warning.id != "dialect-guessed"]
    return config


def _has(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w\"]){name}:", text) is not None
