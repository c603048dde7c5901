"""The runs that train_cpu.py and startup.py measure: `deepy.py train.py` of a small GPT on CPUs, in each layout.

The model has 4 layers, hidden size 256, 8 heads and sequence length 256. Each step has 2048 tokens, in fp32, with Adam
and without dropout. The file has only keys that GPT-NeoX knows too; deepy gets its own with --set.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.files.token_files import writer as indexed  # noqa: E402
from neoxargs.hosts.rendezvous import unused_port  # noqa: E402

MODEL = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "seq_length": 256, "max_position_embeddings": 256,
    "train_batch_size": 8, "eval_interval": 1000000, "eval_iters": 0, "log_interval": 1, "gradient_clipping": 1.0,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "tokenizer_type": "HFTokenizer", "num_gpus": 1,
    "attention_dropout": 0.0, "hidden_dropout": 0.0, "distributed_backend": "gloo", "data_impl": "mmap",
}  # fmt: skip
TOKENS_PER_STEP = 8 * 256
#: A Mixtral.
EXPERTS = {
    "pipe_parallel_size": 1, "moe_num_experts": 8, "moe_top_k": 2, "moe_router_type": "topk", "moe_expert_interval": 1,
    "moe_normalize_expert_weights": True, "pos_emb": "rotary", "norm": "rmsnorm", "activation": "swiglu",
    "intermediate_size": 3 * 512, "use_bias_in_mlp": False, "use_bias_in_attn_linear": False,
}  # fmt: skip
#: Name -> changes of the configuration.
LAYOUTS: dict[str, dict[str, Any]] = {
    "1 process": {"pipe_parallel_size": 1},
    "dp2": {"pipe_parallel_size": 1, "num_gpus": 2},
    "tp2": {"pipe_parallel_size": 1, "model_parallel_size": 2, "num_gpus": 2},
    "pp2": {
        "pipe_parallel_size": 2,
        "num_gpus": 2,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 8,
    },
    "tp2 x pp2": {
        "pipe_parallel_size": 2,
        "model_parallel_size": 2,
        "num_gpus": 4,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
    },
    "1 process, plain engine": {"pipe_parallel_size": 0},
    "1 process, experts": EXPERTS,
    "dp2, experts": {**EXPERTS, "num_gpus": 2},
    "dp2, experts divided": {**EXPERTS, "num_gpus": 2, "moe_expert_parallel_size": 2},
    "tp2, experts": {**EXPERTS, "num_gpus": 2, "model_parallel_size": 2},
}  # fmt: skip


def prepare(folder: Path, vocabulary: int, steps: int) -> dict[str, Any]:
    """Write a tokenizer and a token file, and return the configuration. Small token ids are frequent, as in text."""
    # A tokenizer is needed only for its size: both trainers derive the vocabulary from it.
    words = {"<|endoftext|>": 0} | {f"w{i}": i for i in range(1, vocabulary)}
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "<|endoftext|>"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    rng = np.random.default_rng(0)
    # Log-uniform, which is close to the frequencies of words (Zipf's law).
    tokens = (vocabulary ** rng.random(2_000_000)).astype(np.uint16)
    with indexed.new_file(folder / "data", np.uint16) as writer:
        lengths = [1000] * (len(tokens) // 1000)
        writer.add(tokens, lengths, [True] * len(lengths))
    paths = {"data_path": str(folder / "data"), "vocab_file": str(folder / "tokenizer.json")}
    return {**MODEL, **paths, "train_iters": steps, "make_vocab_size_divisible_by": 64}


def configuration_file(config: Mapping[str, Any], folder: Path) -> Path:
    """Write a configuration with a port of its own into the folder of a run, which is made if needed."""
    folder.mkdir(exist_ok=True)
    file = folder / "run.yml"
    file.write_text(json.dumps({**config, "master_port": unused_port()}))  # YAML reads JSON
    return file


def command(trainer: Path, file: Path) -> list[str]:
    """Return the command that trains with `deepy.py` of a checkout, deepy's or that of a trainer with the same keys."""
    words = [sys.executable, str(trainer / "deepy.py"), "train.py", str(file)]
    if (trainer / "neoxargs").is_dir():
        words += ["--set", f"run_dir={file.parent}", "--set", "dialect=neox-2026"]
    return words


def environment(ranks: int, trainer: Path = ROOT) -> dict[str, str]:
    """Return the environment of a run on CPUs, whose ranks share the cores.

    It has no PYTHONDONTWRITEBYTECODE, which would make every start compile the sources, unlike an installed package.
    Another trainer than deepy gets stand-ins for torch.cuda, in case it requires CUDA.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    if not (trainer / "neoxargs").is_dir():
        path = f"{ROOT / 'bench' / 'cuda_stand_ins'}:{kept.get('PYTHONPATH', '')}"
        kept |= {"PYTHONPATH": path, "CUDA_STAND_INS": str(ranks)}
    return kept | {"DS_ACCELERATOR": "cpu", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
