"""Small configurations: resolved, with changes given as YAML; or of some values, without any rule."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Place
from neoxargs.config.config import Config
from neoxargs.config.value import DEFAULT, Source, Value
from neoxargs.resolve import File, complete, draft
from tests.support import smallest

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


#: The place of the values in `written`.
HERE = Place("my.yml", 3, 1)


def config_of(source: Source = DEFAULT, /, **values: object) -> Config:
    """Return a configuration with these values; no rule has derived others."""
    return Config({name: Value(value, source) for name, value in values.items()})


def written(**values: object) -> Config:
    """Return a configuration with these values as if a file set them, all in one place, and with a tokenizer."""
    return config_of(Source("file", HERE), **{"tokenizer_type": "ByteLevelTokenizer", **values})


def smallest_run(text: str = "", yaml: str = smallest.YAML) -> Config:
    """Resolve the smallest run with this text, on one GPU. Raises Problems."""
    return complete(draft([File("my.yml", yaml + text)]), 1)


def recorded(folder: Path, values: Mapping[str, Any], iteration: int = 10) -> Path:
    """Make a checkpoint of a run with these values; return its path."""
    checkpoint = folder / f"global_step{iteration}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "config.json").write_text(json.dumps(values))
    return checkpoint


def _has(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w\"]){name}:", text) is not None
