"""The runs that train_cpu.py and startup.py measure: `deepy.py train.py` of a small GPT on CPUs, in each layout.

The model has 4 layers, hidden size 256, 8 heads and sequence length 256. Each step has 2048 tokens, in fp32, with Adam
and without dropout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.launch.cluster.rendezvous import unused_port  # noqa: E402
from neoxargs.train.data import indexed  # noqa: E402

MODEL = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "seq_length": 256, "max_position_embeddings": 256,
    "train_batch_size": 8, "eval_interval": 0, "eval_iters": 0, "log_interval": 10, "gradient_clipping": 1.0,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "tokenizer_type": "HFTokenizer", "dialect": "neox-2026",
    "attention_dropout": 0.0, "hidden_dropout": 0.0,
}  # fmt: skip
#: Name -> changes of the configuration.
LAYOUTS: dict[str, dict[str, Any]] = {
    "1 process": {"pipe_parallel_size": 1},
    "tp2": {"pipe_parallel_size": 1, "model_parallel_size": 2},
    "pp2": {"pipe_parallel_size": 2, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8},
    "tp2 x pp2": {
        "pipe_parallel_size": 2,
        "model_parallel_size": 2,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
    },
    "dp2": {"pipe_parallel_size": 1, "num_gpus": 2},
    "1 process, plain engine": {"pipe_parallel_size": 0},
}


def prepare(folder: Path, vocabulary: int, steps: int) -> dict[str, Any]:
    """Write a tokenizer and a token file, and return the configuration. Small token ids are frequent, as in text."""
    words = {"<|endoftext|>": 0} | {f"w{i}": i for i in range(1, vocabulary)}
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "<|endoftext|>"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    rng = np.random.default_rng(0)
    tokens = (vocabulary ** rng.random(2_000_000)).astype(np.uint16)
    writer = indexed.Writer(folder / "data", np.uint16)
    lengths = [1000] * (len(tokens) // 1000)
    writer.add(tokens, lengths, [True] * len(lengths))
    writer.finish()
    paths = {"run_dir": str(folder), "data_path": str(folder / "data"), "vocab_file": str(folder / "tokenizer.json")}
    return {**MODEL, **paths, "train_iters": steps, "make_vocab_size_divisible_by": 64}


def configuration_file(config: dict[str, Any]) -> Path:
    """Write a configuration with a port of its own into its `run_dir`."""
    file = Path(config["run_dir"]) / "run.yml"
    file.write_text(json.dumps({**config, "master_port": unused_port()}))  # YAML reads JSON
    return file
