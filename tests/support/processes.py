"""Runs `train.py` on ranks forked from a process with all imports done: as processes that can be killed
(`start_ranks`), or within `run_ranks` (`on_a_rank`)."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from neoxargs.base.programs import Program
from neoxargs.files import metrics as run_metrics
from neoxargs.files.token_files import writer as indexed
from neoxargs.resolve import resolve
from neoxargs.targets.wire_format import script_arguments
from neoxargs.train.process import setup
from neoxargs.train.rank import run_program
from tests.support.ports import free_port
from tests.support.ranks import CPU, Machine, forked_from

TINY = {
    "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32, "max_position_embeddings": 32,
    "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "train_iters": 12, "eval_interval": 0, "eval_iters": 1,
    "checkpoint_factor": 4, "log_interval": 4, "hidden_dropout": 0.1, "attention_dropout": 0.1,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "tokenizer_type": "ByteLevelTokenizer", "split": "8,1,1",
}  # fmt: skip


class Ranks:
    """The processes of a started run."""

    def __init__(self, processes: list[ForkServerProcess], logs: list[Path]) -> None:
        self.processes, self.logs = processes, logs

    def wait(self, timeout: float = 120) -> tuple[list[int], str, str]:
        """Return the exit codes, rank 0's stdout and the stderr of all ranks; fails after `timeout` seconds."""
        end = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.1, end - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        assert None not in codes, f"exit codes after {timeout} s: {codes}"
        errors = "".join(log.with_suffix(".err").read_text() for log in self.logs)
        return codes, self.logs[0].with_suffix(".out").read_text(), errors  # type: ignore[return-value]

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        for process in self.processes:
            os.kill(process.pid or 0, number)


@contextmanager
def start_ranks(
    folder: Path, world: int, on: Machine = CPU, program: Program = "train", pause_after: int = 0, **changes: Any
) -> Iterator[Ranks]:
    """Start `world` ranks with the TINY configuration and these changes, and kill them when the block ends.

    program: what they run. pause_after: the step after which they do nothing more.
    """
    on.prepare()
    arguments = rank_arguments(folder, world, **changes)
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    inherited = {name: value for name, value in os.environ.items() if name not in CPU.environment}
    everywhere = {**inherited, **rendezvous, **on.environment, "OMP_NUM_THREADS": "1"}
    logs = [folder / f"rank{rank}" for rank in range(world)]
    processes = []
    for rank, log in enumerate(logs):
        own = everywhere | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        call = program, arguments, own, log, pause_after
        processes.append(multiprocessing.get_context("forkserver").Process(target=_run, args=call))
        with forked_from(on.preload):
            processes[-1].start()
    try:
        yield Ranks(processes, logs)
    finally:
        for process in processes:
            process.kill()
            process.join()


def readers(rank: ForkServerProcess) -> list[int]:
    """Return the process ids of a rank's loader workers."""
    children = Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split()
    return [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "pt_data_worker\n"]


def is_running(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _run(program: Program, arguments: list[str], environment: dict[str, str], log: Path, pause_after: int) -> None:
    """train.py, or another of our scripts, in a forked process, which leads a process group of its own."""
    os.setpgrp()
    os.environ.update(environment)
    for stream, suffix in ((1, ".out"), (2, ".err")):
        with log.with_suffix(suffix).open("w") as file:
            os.dup2(file.fileno(), stream)
    multiprocessing.set_start_method("fork", force=True)  # as in train.py: a child of the fork server inherits its own

    if pause_after:
        _pause_after(pause_after)
    sys.exit(run_program(program, arguments))


def _pause_after(last: int) -> None:
    from neoxargs.train.loop import Loop

    read = Loop._read

    def read_and_pause(self: Loop, unread: int = 0) -> None:
        read(self, unread)
        while self.position.iteration == last:
            signal.pause()

    Loop._read = read_and_pause  # type: ignore[method-assign]


def rank_arguments(folder: Path, world: int, **changes: Any) -> list[str]:
    """Return the arguments of `train.py` for the TINY configuration with these changes."""
    file = folder / "run.yml"
    run = {**TINY, "run_dir": str(folder / "out"), "data_path": str(write_tokens(folder)), **changes}
    file.write_text(json.dumps({name: value for name, value in run.items() if value is not None}))
    return script_arguments(resolve([file], gpus=world))


def train_on_rank(arguments: list[str]) -> tuple[int, str, str]:
    """Run train.py and return its exit code, stdout and stderr; for `run_ranks`."""
    with (
        redirect_stdout(io.StringIO()) as output,
        redirect_stderr(io.StringIO()) as errors,
        patch.object(setup, "stop"),  # `run_ranks` ends the process group itself
    ):
        code = run_program("train", arguments)
    return code, output.getvalue(), errors.getvalue()


def step_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of steps in a run's metrics so far."""
    return [row for row in run_metrics.read(folder / "out" / run_metrics.FILE) if row["event"] == "step"]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 60, often: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(often)


def wait_for_step(folder: Path, step: int) -> None:
    wait_until(lambda: any(row["step"] >= step for row in step_rows(folder)), f"step {step}", 120, often=0.01)


def wait_for_end(processes: list[int]) -> None:
    wait_until(lambda: not any(map(is_running, processes)), f"the processes {processes} have ended", often=0.01)


def write_tokens(folder: Path) -> Path:
    """Write random tokens as a token file unless it exists, and return its prefix."""
    prefix = folder / "tokens"
    if not indexed.exists(prefix):
        with indexed.new_file(prefix, np.uint16) as writer:
            ids = np.random.default_rng(0).integers(0, 256, 20_000).astype(np.uint16)
            writer.add(ids, [200] * 100, [True] * 100)
    return prefix
