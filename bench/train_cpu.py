"""Measure the training throughput of each layout on this machine's CPU, in runs of `deepy.py train.py`.

    python bench/train_cpu.py [--vocabulary 512 50304] [--layouts "1 process" pp2] [--steps 30] [--profile]

The model has 4 layers, hidden size 256, 8 heads and sequence length 256. Each step has 2048 tokens, in fp32, with Adam
and without dropout. Each result is compared with that of a 100-line prototype that uses the same libraries. Because the
prototype ran on a machine with 280 GFLOP/s in fp32 matrix multiplications, its result is scaled by the rate of this
machine. `--profile` profiles the slowest layout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.launch.cluster.rendezvous import unused_port  # noqa: E402
from neoxargs.train.data import indexed  # noqa: E402

REFERENCE_GFLOPS = 280
#: Layout -> its configuration, and the prototype's tokens/s for each size of vocabulary.
LAYOUTS: dict[str, tuple[dict[str, Any], dict[int, int]]] = {
    "1 process": ({"pipe_parallel_size": 1}, {512: 6086, 50304: 1425}),
    "tp2": ({"pipe_parallel_size": 1, "model_parallel_size": 2}, {512: 5123, 50304: 1302}),
    "pp2": (
        {"pipe_parallel_size": 2, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8},
        {512: 5002, 50304: 803},
    ),
    "tp2 x pp2": (
        {
            "pipe_parallel_size": 2,
            "model_parallel_size": 2,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 4,
        },
        {512: 3688, 50304: 1130},
    ),
    "dp2": ({"pipe_parallel_size": 1, "num_gpus": 2}, {512: 5818}),
    "1 process, plain engine": ({"pipe_parallel_size": 0}, {}),
}
MODEL = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "seq_length": 256, "max_position_embeddings": 256,
    "train_batch_size": 8, "eval_interval": 0, "eval_iters": 0, "log_interval": 10, "gradient_clipping": 1.0,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "tokenizer_type": "HFTokenizer", "dialect": "neox-2026",
    "attention_dropout": 0.0, "hidden_dropout": 0.0,
}  # fmt: skip


def main() -> None:
    options = _options()
    print(f"{'layout':26}{'vocabulary':>11}{'tokens/s':>10}{'GFLOP/s':>9}{'prototype, scaled':>19}{'ratio':>7}")
    for vocabulary in options.vocabulary:
        with tempfile.TemporaryDirectory() as folder:
            config = prepare(Path(folder), vocabulary, options.steps)
            speeds = {name: _measure(name, config, vocabulary) for name in options.layouts}
            if options.profile:
                _profile(min(speeds, key=speeds.__getitem__), config)


def _measure(name: str, config: dict[str, Any], vocabulary: int) -> float:
    changes, prototype = LAYOUTS[name]
    before = matrix_product_gflops()
    speed = run({**config, **changes})
    gflops = (before + matrix_product_gflops()) / 2  # before and after, because the machine's speed varies
    row = f"{name:26}{vocabulary:11}{speed:10,.0f}{gflops:9.0f}"
    if vocabulary in prototype:
        scaled = prototype[vocabulary] * gflops / REFERENCE_GFLOPS
        row += f"{scaled:19,.0f}{speed / scaled:7.2f}"
    print(row, flush=True)
    return speed


def _profile(name: str, config: dict[str, Any]) -> None:
    """Print a profile of rank 0; `gloo:` and `c10d::` include waiting for other ranks."""
    run({**config, **LAYOUTS[name][0], "profile": True})
    table = (Path(config["run_dir"]) / "profile.txt").read_text().splitlines()
    print(f"\nprofile of {name}: two steps of rank 0")
    for line in table[:20]:
        print(line[:60] + line[60:].replace("  ", " ")[:90])


def run(config: dict[str, Any]) -> float:
    """Return the median tokens/s of the second half of a run."""
    folder, file = Path(config["run_dir"]), configuration_file(config)
    command = [sys.executable, str(ROOT / "deepy.py"), "train.py", str(file)]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    speeds = [row["tokens_per_second"] for row in rows if row["event"] == "step"]
    return statistics.median(speeds[len(speeds) // 2 :])


def configuration_file(config: dict[str, Any]) -> Path:
    """Write a configuration with a port of its own into its `run_dir`."""
    file = Path(config["run_dir"]) / "run.yml"
    file.write_text(json.dumps({**config, "master_port": unused_port()}))  # YAML reads JSON
    return file


def matrix_product_gflops(size: int = 1024, seconds: float = 1.0) -> float:
    """Return the highest GFLOP/s of several fp32 matrix multiplications on all cores."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    a, b = torch.randn(size, size), torch.randn(size, size)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best / 1e9


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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--vocabulary", type=int, nargs="+", default=[512, 50304], help="sizes of the vocabulary (default: %(default)s)"
    )
    parser.add_argument(
        "--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS), help="layouts to measure (default: all)"
    )
    parser.add_argument("--steps", type=int, default=30, help="training steps per run (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="profile the slowest layout")
    return parser.parse_args()


if __name__ == "__main__":
    main()
