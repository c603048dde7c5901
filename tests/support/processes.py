"""Runs `train.py` on several ranks: in separate processes, as a launcher does, or within `run_ranks`.

Separate processes can be killed; `run_ranks` is several seconds faster per rank, because torch is already imported.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from neoxargs.launch.targets.wire_format import script_arguments
from neoxargs.resolve import resolve
from neoxargs.train.data import indexed
from tests.support.paths import ROOT

TINY = {
    "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32, "max_position_embeddings": 32,
    "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "train_iters": 12, "eval_interval": 0, "eval_iters": 1,
    "checkpoint_factor": 4, "log_interval": 4, "hidden_dropout": 0.1, "attention_dropout": 0.1,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "tokenizer_type": "ByteLevelTokenizer", "split": "8,1,1",
}  # fmt: skip


class Ranks:
    """The processes of a started run."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes

    def wait(self, timeout: float = 120) -> tuple[list[int], str, str]:
        """Return the exit codes, rank 0's stdout and the stderr of all ranks; fails after `timeout` seconds."""
        end = time.monotonic() + timeout
        outputs = [process.communicate(timeout=max(0.1, end - time.monotonic())) for process in self.processes]
        return (
            [process.returncode for process in self.processes],
            outputs[0][0],
            "".join(errors for _, errors in outputs),
        )

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        for process in self.processes:
            process.send_signal(number)


@contextmanager
def start_ranks(folder: Path, world: int, **changes: Any) -> Iterator[Ranks]:
    """Start `world` ranks with the TINY configuration and these changes, and kill them when the block ends."""
    arguments = rank_arguments(folder, world, **changes)
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    everywhere = {**os.environ, **rendezvous, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *arguments],
            env={**everywhere, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        yield Ranks(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def rank_arguments(folder: Path, world: int, **changes: Any) -> list[str]:
    """Return the arguments of `train.py` for the TINY configuration with these changes."""
    file = folder / "run.yml"
    run = {**TINY, "run_dir": str(folder / "out"), "data_path": str(write_tokens(folder)), **changes}
    file.write_text(json.dumps({name: value for name, value in run.items() if value is not None}))
    return script_arguments(resolve([file], gpus=world))


def train_on_rank(arguments: list[str]) -> tuple[int, str, str]:
    """Run train.py and return its exit code, stdout and stderr; for `run_ranks`."""
    from neoxargs.train import main
    from neoxargs.train.process import setup

    with (
        redirect_stdout(io.StringIO()) as output,
        redirect_stderr(io.StringIO()) as errors,
        patch.object(setup, "stop"),  # `run_ranks` ends the process group itself
    ):
        code = main(arguments)
    return code, output.getvalue(), errors.getvalue()


def step_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of steps in a run's metrics so far."""
    path = folder / "out" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if row["event"] == "step"]


def wait_for_step(folder: Path, step: int, timeout: float = 120) -> None:
    end = time.monotonic() + timeout
    while not any(row["step"] >= step for row in step_rows(folder)):
        assert time.monotonic() < end, f"no step {step} within {timeout} s"
        time.sleep(0.01)


def write_tokens(folder: Path) -> Path:
    """Write random tokens as a token file unless it exists, and return its prefix."""
    prefix = folder / "tokens"
    if not indexed.exists(prefix):
        writer = indexed.Writer(prefix, np.uint16)
        ids = np.random.default_rng(0).integers(0, 256, 20_000).astype(np.uint16)
        writer.add(ids, [200] * 100, [True] * 100)
        writer.finish()
    return prefix


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
