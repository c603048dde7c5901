"""Program that runs trials on ranks of this machine: `python -m ...trials.main PID`.

Each line of its standard input names a file, which has a trial per line (`Trial`), and a number of ranks. The ranks are
forked from this process, which has imported all that they need, and run the trials of the file one after the other.
What is observed is appended to FILE.observed, one line of JSON per trial. What the ranks print is in FILE.log, and an
empty FILE.ended says that all have run. The program ends at the first trial that fails with something other than
Problems, because ranks may then wait for each other; its caller starts the rest again. PID is the parent, with which it
ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from neoxargs.base.problems import Problems, sentence
from neoxargs.hosts.rendezvous import unused_port
from neoxargs.processes.exit_at_once import exit_at_once
from neoxargs.processes.process_tree import signal_when_parent_ends
from neoxargs.targets.trial import Trial
from neoxargs.targets.wire_format import parse_rank_arguments
from neoxargs.train.local_ranks import Ranks, import_once
from neoxargs.train.process import mesh, setup


def main() -> int:
    """Run the trials of each file that standard input names, and return the exit code."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "MASTER_ADDR": "127.0.0.1"}
    is_first = True
    for line in sys.stdin:
        file, ranks = json.loads(line)
        with open(f"{file}.log", "a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        with open(file, encoding="utf-8") as lines:
            trials = list(map(Trial.of, lines))
        if is_first:
            import_once("train", parse_rank_arguments(trials[0].arguments).config)
        is_first = False
        if code := _run_on(ranks, file, trials):
            return code
        Path(f"{file}.ended").touch()
    return 0


def _run_on(ranks: int, file: str, trials: Sequence[Trial]) -> int:
    """Run the trials on that many ranks, and return the exit code of the first that failed, or 0."""
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks), "MASTER_PORT": str(unused_port())}
    pids = set()
    for rank in range(ranks):
        if pid := os.fork():
            pids.add(pid)
            continue
        signal_when_parent_ends(signal.SIGKILL)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        exit_at_once(_run(file, trials))
    return Ranks(pids).wait()


def _run(file: str, trials: Sequence[Trial]) -> int:
    """Run the trials on this rank."""
    from deepspeed.accelerator import get_accelerator

    from neoxargs.train.trials.observe import observe

    # torch emulates fp16 on CPUs without instructions for it, which DeepSpeed refuses as too slow.
    get_accelerator().is_fp16_supported = lambda: True
    process = setup.start("gloo", seed=0)
    matmul = torch.get_float32_matmul_precision()
    for trial in trials:
        setup.set_numerics(parse_rank_arguments(trial.arguments).config)
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                found = observe(trial, process)
        except Problems as refused:
            found = {"refused": [sentence(problem) for problem in refused.problems]}
        mesh.destroy_groups()
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(matmul)
        if process.main:
            line = {"name": trial.name, **found, "lines": said.getvalue().splitlines()}
            with open(f"{file}.observed", "a", encoding="utf-8") as output:
                output.write(json.dumps(line) + "\n")
    setup.stop()
    return 0


if __name__ == "__main__":
    signal_when_parent_ends(signal.SIGKILL)
    # The parent may have ended while this process imported modules.
    exit_at_once(main() if os.getppid() == int(sys.argv[1]) else 1)
