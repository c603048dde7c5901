"""Program that runs trials one after the other on ranks of this machine: `python -m ...trials.main FILE N PID`.

FILE has a trial per line (`Trial`); N is the number of ranks, which are forked from one process; PID is the parent,
with which the program ends. What is observed is appended to FILE.observed, one line of JSON per trial. The program ends
at the first trial that fails with something other than Problems, because ranks may then wait for each other; its caller
starts the rest again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence

import torch

from neoxargs.base.problems import Problems, sentence
from neoxargs.hosts.rendezvous import unused_port
from neoxargs.processes.exit_at_once import exit_at_once
from neoxargs.processes.process_tree import signal_when_parent_ends
from neoxargs.targets.trial import Trial
from neoxargs.targets.wire_format import parse_rank_arguments
from neoxargs.train.local_ranks import Ranks, import_once
from neoxargs.train.process import mesh, setup


def main(file: str, ranks: int) -> int:
    """Run all trials of a file on that many ranks, and return the exit code."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks),
        "LOCAL_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port()),
    }  # fmt: skip
    with open(file, encoding="utf-8") as lines:
        trials = list(map(Trial.of, lines))
    import_once("train", parse_rank_arguments(trials[0].arguments).config)
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
    exit_at_once(main(sys.argv[1], int(sys.argv[2])) if os.getppid() == int(sys.argv[3]) else 1)
