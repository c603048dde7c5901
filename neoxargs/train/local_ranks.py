"""Program that starts the ranks of this machine: `python -m neoxargs.train.local_ranks --devices=0,1 ... SCRIPT ...`.

It replaces DeepSpeed's runner and launcher: each rank gets the same environment and arguments from it, and when a
rank fails, all others are ended. With `fork_ranks`, it imports torch, DeepSpeed and the program once and forks the
ranks, which share the memory of the imported modules; otherwise, it starts a Python process for each rank.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from neoxargs.base.programs import Program, program_of
from neoxargs.config.config import Config
from neoxargs.hosts.devices import device
from neoxargs.processes.exit_at_once import end_by_signal, exit_at_once
from neoxargs.processes.interrupts import delayed, heeded
from neoxargs.processes.process_tree import send_signal, signal_when_parent_ends
from neoxargs.processes.supervisor import AFTER_LAUNCHER_KILLED, FORWARDED
from neoxargs.targets.wire_format import LOCAL_RANK, parse_rank_arguments
from neoxargs.train.process import gpu_environment
from neoxargs.train.rank import imported, run_program

#: Seconds that the other ranks have to end after one has failed, as in DeepSpeed's launcher.
AFTER_A_FAILURE = 30


def main(argv: Sequence[str]) -> int:
    """Start the ranks, wait for them, and return the exit code of the first that failed (negative: its signal)."""
    parser = argparse.ArgumentParser(prog="local_ranks", allow_abbrev=False)
    for option in ("--devices", "--master_addr", "--master_port"):
        parser.add_argument(option, required=True)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    devices = options.devices.split(",")
    program, size = _imported_program(options.script, options.arguments), str(len(devices))
    # The variables that DeepSpeed's launcher sets. All devices for every rank, which takes the one with the number
    # LOCAL_RANK (process/setup.py).
    variables = {
        "CUDA_VISIBLE_DEVICES": options.devices, "MASTER_ADDR": options.master_addr, "MASTER_PORT": options.master_port,
        "WORLD_SIZE": size, "LOCAL_SIZE": size, "CROSS_RANK": "0", "CROSS_SIZE": "1",
    }  # fmt: skip
    with delayed(FORWARDED) as mask:  # until they are passed on to all ranks
        pids = set()
        for rank in range(len(devices)):
            words = [options.script, f"{LOCAL_RANK}={rank}", *options.arguments]
            pids.add(_start(program, words, variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, mask))
        ranks = Ranks(pids)
    return ranks.wait()


def _start(program: Program | None, words: list[str], variables: dict[str, str], mask: set[int]) -> int:
    """Run a program in a fork of this process, or a script in a new one; return the number of that process."""
    if not program:
        # -u: a rank's lines appear when they are printed, although its output is no terminal.
        script = [sys.executable, "-u", *words]
        return os.posix_spawn(sys.executable, script, os.environ | variables, setsigmask=mask)
    if pid := os.fork():
        return pid
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.environ.update(variables)
    sys.argv = words
    exit_at_once(run_program(program, words[1:]))


def _imported_program(script: str, arguments: Sequence[str]) -> Program | None:
    """Import the program that a script runs and return it, if the ranks are to be forked and can be.

    Errors here are ignored: the ranks meet the same errors, and log and report them.
    """
    program = program_of(Path(script))
    try:
        config = parse_rank_arguments(arguments).config
        if not program or not _is_to_fork(config):
            return None
        import_once(program, config)
    except Exception:
        return None
    if obstacles := _fork_obstacles():
        print(f"deepy: the ranks are not forked, because this process has {obstacles}", file=sys.stderr, flush=True)
        return None
    return program


def _is_to_fork(config: Config) -> bool:
    forks = config.runner_extras.fork_ranks
    return device(os.environ) == "cpu" if forks is None else forks


def import_once(program: Program, config: Config) -> None:
    """Import what every rank of a program needs, in the environment of the ranks."""
    gpu_environment.set_environment(config)
    if device(os.environ) == "cuda":  # torch would otherwise create a device context to look for GPUs
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    with _one_blas_thread():
        from neoxargs.train.deepspeed import lean_import

        lean_import.import_packages(config.fusion.compile_layers)
        imported(program)
    # A garbage collection in a rank would otherwise visit, and so copy, the pages of all these modules.
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Keep numpy's BLAS from starting its threads when it is imported; ranks compute with torch."""
    name = "OPENBLAS_NUM_THREADS"
    previous = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if previous is not None:
            os.environ[name] = previous


def _fork_obstacles() -> str:
    """Return what a forked process would lose or share with its parent: threads, a device context, process groups."""
    from torch import cuda, distributed

    obstacles = {
        "threads": len(os.listdir("/proc/self/task")) > 1,
        "a device context": cuda.is_initialized(),
        "a process group": distributed.is_initialized(),
    }
    return " and ".join(name for name, exists in obstacles.items() if exists)


class Ranks:
    """The processes of the ranks, of which the first that fails ends all."""

    def __init__(self, pids: set[int]) -> None:
        self.pids, self.parent, self.asked_to_stop = pids, os.getppid(), False
        for number in heeded(FORWARDED):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGALRM, lambda *_: self._send(signal.SIGKILL))

    def wait(self) -> int:
        """Return 0, or the exit code of the first rank that failed (negative: the signal that ended it)."""
        failed = 0
        while self.pids:
            pid, status = os.wait()
            self.pids.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code and not failed:
                failed = code
                # Not after a request to stop, which the others are following: they may be saving a checkpoint.
                if not self.asked_to_stop:
                    self._send(signal.SIGTERM)
                    signal.alarm(AFTER_A_FAILURE)
        return failed

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a request to stop, or the end of this process's parent, after which nothing else ends the ranks."""
        self.asked_to_stop = True
        self._send(signal.SIGTERM)
        if os.getppid() != self.parent:
            signal.alarm(int(AFTER_LAUNCHER_KILLED))

    def _send(self, number: int) -> None:
        for pid in tuple(self.pids):
            send_signal(pid, number)


if __name__ == "__main__":
    signal_when_parent_ends(signal.SIGTERM)
    if (code := main(sys.argv[1:])) < 0:
        end_by_signal(-code)
    exit_at_once(code)
