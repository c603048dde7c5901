"""Checkpoints that an earlier deepy wrote, each resumed by this one with the same losses as if it had not stopped.

    python -m tests.support.old_checkpoints COMMIT [--keep FILE]

This trains each of RUNS with the deepy of COMMIT, resumes the middle checkpoint with the deepy of this checkout, and
compares losses, learning rates and gradient norms bit for bit. --keep writes the old runs as FILE, which is how
tests/reference/old_checkpoints.tar.xz was made. The runs take a few minutes, on one or two CPU processes.
COMMIT needs its own packages: 9dfd0285 draws loss.png with matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neoxargs.files import metrics
from tests.support.paths import REFERENCE, ROOT

ARCHIVE = REFERENCE / "old_checkpoints.tar.xz"
SAVED, LAST = 3, 6
TEXTS = ["".join(f"{a} + {b} = {a + b}. {a} x {b} = {a * b}.\n" for b in range(6)) for a in range(30)]
COMMON = {
    "dialect": "neox-2026", "num_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "seq_length": 16,
    "max_position_embeddings": 16, "make_vocab_size_divisible_by": 1, "tokenizer_type": "ByteLevelTokenizer",
    "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "train_iters": LAST, "checkpoint_factor": SAVED,
    "eval_interval": 0, "eval_iters": 1, "hidden_dropout": 0.1, "attention_dropout": 0.1, "seed": 1, "split": "8,1,1",
    "optimizer": {"type": "Adam", "params": {"lr": 1e-2}}, "data_path": "../tokens", "run_dir": "run", "save": "saved",
    "num_gpus": 1,
}  # fmt: skip
#: Name -> changes of COMMON. The adapters are trained on the checkpoint of `plain`.
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zero1": {"num_gpus": 2, "zero_optimization": {"stage": 1}},
    "zero3": {"num_gpus": 2, "zero_optimization": {"stage": 3}},
    "pipeline": {"num_gpus": 2, "pipe_parallel_size": 2},
    "experts": {"num_gpus": 2, "moe_num_experts": 2, "moe_top_k": 1, "moe_router_type": "topk",
                "moe_expert_interval": 1, "moe_expert_parallel_size": 2},
    "lora": {"lora": {"rank": 2}, "base_checkpoint": "../plain/saved"},
}  # fmt: skip

Steps = list[dict[str, float]]


def write_old_runs(trainer: Path, folder: Path) -> None:
    """Train every run with the deepy in `trainer`; keep its middle checkpoint, and the steps after it."""
    folder.mkdir()
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    tokenizer = ["--tokenizer-type", "ByteLevelTokenizer"]
    _deepy(trainer, folder, "data", "text.jsonl", "--output-prefix", "tokens", *tokenizer)
    for name, changes in RUNS.items():
        run = folder / name
        run.mkdir()
        (run / "run.yml").write_text(json.dumps(COMMON | changes))
        _deepy(trainer, run, "train.py", "run.yml")
        (run / "steps.json").write_text(json.dumps(_steps(run), indent=1))
        shutil.rmtree(run / "run")
        shutil.rmtree(run / "saved" / f"global_step{LAST}")
        (run / "saved" / "zero_to_fp32.py").unlink(missing_ok=True)  # DeepSpeed's, beside the checkpoints
        (run / "saved" / "latest").write_text(f"global_step{SAVED}")


def uninterrupted(folder: Path, name: str) -> Steps:
    """Return the steps after the checkpoint, of the run that wrote it."""
    found: Steps = json.loads((folder / name / "steps.json").read_text())
    return found


def resumed(folder: Path, name: str, *words: str) -> Steps:
    """Return the steps of a copy of the run that continues from the checkpoint with the deepy of this checkout.

    words: added to the command line.
    """
    copy = shutil.copytree(folder / name, folder / f"{name}-resumed")
    _deepy(ROOT, copy, "train.py", "run.yml", "--set", "load=saved", *words)
    return _steps(copy)


def _steps(run: Path) -> Steps:
    rows = [row for row in metrics.read(run / "run" / metrics.FILE) if row["event"] == "step" and row["step"] > SAVED]
    return [{name: row[name] for name in ("step", "loss", "lr", "grad_norm", "samples")} for row in rows]


def _deepy(trainer: Path, folder: Path, *words: str) -> None:
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(trainer)}
    command = [sys.executable, str(trainer / "deepy.py"), *words]
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def unpack(folder: Path) -> Path:
    """Unpack the old runs of the repository into a folder, and return it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "old"


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yield a folder with the files of a commit, without adding anything to the repository."""
    with tempfile.TemporaryDirectory(prefix="deepy_old_") as folder:
        tree = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=tree, check=True)
        yield Path(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the commit whose deepy writes the checkpoints")
    parser.add_argument("--keep", metavar="FILE", type=Path, help="write the old runs to FILE")
    options = parser.parse_args()
    different = 0
    with checked_out(options.commit) as trainer, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "old")
        write_old_runs(trainer, folder)
        if options.keep:
            with tarfile.open(options.keep, "w:xz") as archive:
                archive.add(folder, "old", filter=_without_owner)
        for name in RUNS:
            now, then = resumed(folder, name), uninterrupted(folder, name)
            different += now != then
            print(f"{name:10}", "bit-equal" if now == then else f"DIFFERENT\n  {then}\n  {now}", flush=True)
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
