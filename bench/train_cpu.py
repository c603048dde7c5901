"""Measure the training throughput of each layout on this machine's CPU, in runs of `deepy.py train.py`.

    python bench/train_cpu.py [--vocabulary 512 50304] [--layouts "1 process" pp2] [--steps 30] [--profile]

cpu_runs.py has the model and the layouts. Each result is compared with that of a 100-line prototype that uses the same
libraries. Because the prototype ran on a machine with 280 GFLOP/s in fp32 matrix multiplications, its result is scaled
by the rate of this machine. `--profile` profiles the slowest layout.
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

import torch
from cpu_runs import LAYOUTS, ROOT, configuration_file, prepare

REFERENCE_GFLOPS = 280
#: Layout -> the prototype's tokens/s for each size of vocabulary.
PROTOTYPE: dict[str, dict[int, int]] = {
    "1 process": {512: 6086, 50304: 1425},
    "tp2": {512: 5123, 50304: 1302},
    "pp2": {512: 5002, 50304: 803},
    "tp2 x pp2": {512: 3688, 50304: 1130},
    "dp2": {512: 5818},
}


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
    prototype = PROTOTYPE.get(name, {})
    before = matrix_product_gflops()
    speed = run({**config, **LAYOUTS[name]})
    gflops = (before + matrix_product_gflops()) / 2  # before and after, because the machine's speed varies
    row = f"{name:26}{vocabulary:11}{speed:10,.0f}{gflops:9.0f}"
    if vocabulary in prototype:
        scaled = prototype[vocabulary] * gflops / REFERENCE_GFLOPS
        row += f"{scaled:19,.0f}{speed / scaled:7.2f}"
    print(row, flush=True)
    return speed


def _profile(name: str, config: dict[str, Any]) -> None:
    """Print a profile of rank 0; `gloo:` and `c10d::` include waiting for other ranks."""
    run({**config, **LAYOUTS[name], "profile": True})
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
