"""Whole programs on simulated GPUs: train with loader workers, save, resume, relayout, generate, eval, export."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from torch import Tensor

from neoxargs.base.programs import Program
from neoxargs.convert.huggingface import exporting
from neoxargs.resolve import resolve
from neoxargs.targets.planned import Planned
from neoxargs.targets.wire_format import script_arguments
from tests.support import simulated_gpu
from tests.support.processes import rank_arguments, start_ranks, step_rows, train_on_rank
from tests.support.ranks import CPU, Machine, run_ranks
from tests.support.simulated_gpu.waits import Wait, listed

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

GPU = simulated_gpu.MACHINE
RUN: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "num_workers": 2, "train_iters": 4,
                       "checkpoint_factor": 2, "log_interval": 1, "pos_emb": "rotary"}  # fmt: skip


def run(folder: Path, world: int, on: Machine = GPU, program: Program = "train", **changes: Any) -> str:
    """Wait until a program has finished, and return its output."""
    save = {"save": str(folder / "saved")}
    with start_ranks(folder, world, on, program, **RUN | save | changes) as ranks:
        codes, output, errors = ranks.wait()
    assert codes == [0] * world, errors[-4000:]
    return output


def losses(folder: Path) -> dict[int, float]:
    """Return the loss of each step; of a repeated step, the last one."""
    return {row["step"]: row["loss"] for row in step_rows(folder)}


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Return the losses of four steps on two CPUs."""
    folder = tmp_path_factory.mktemp("cpu")
    run(folder, 2, CPU)
    return losses(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on two GPUs that has stopped after two of its four steps, with a checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    profilers = {"profile": True, "profile_step_start": 1, "profile_step_stop": 2, "memory_profiling": True}
    run(folder, 2, exit_interval=2, **profilers)
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """Return the folder of a copy of that run, to continue from."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_the_profilers_write_their_files(trained: Path) -> None:
    written = {path.name for path in (trained / "out").rglob("*")}
    assert {"profile.txt", "profile.json", "mem_snapshot.pickle"} <= written


@pytest.mark.parametrize(
    "layout",
    [{}, {"model_parallel_size": 2}, {"pipe_parallel_size": 2},
     {"pipe_parallel_size": 0, "zero_optimization": {"stage": 2}},
     {"pipe_parallel_size": 0, "zero_optimization": {"stage": 3}}],
    ids=str,
)  # fmt: skip
def test_a_run_continues_on_any_layout(on_cpu: dict[int, float], copy: Path, layout: dict[str, Any]) -> None:
    run(copy, 2, load=str(copy / "saved"), save=str(copy / "new"), **layout)
    assert list(on_cpu) == [1, 2, 3, 4]
    assert losses(copy) == pytest.approx(on_cpu, abs=1e-4)


def iterations(arguments: list[str]) -> list[list[Wait]]:
    """Run train.py; return what makes the host wait from the start of an iteration to the start of the next."""
    from neoxargs.train.process.stop_request import StopRequest
    from tests.support.simulated_gpu.waits import recorded

    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # a daemon may not start workers
    starts, tell = [], StopRequest.tell

    def begin(request: StopRequest, *arguments: Any, **options: Any) -> tuple[int, int]:
        """The first operation of an iteration."""
        starts.append(len(waits))
        return tell(request, *arguments, **options)

    with recorded() as waits, patch.object(StopRequest, "tell", begin):
        code, _, errors = train_on_rank(arguments)
    assert code == 0, errors
    return [waits[a:b] for a, b in pairwise(starts)]


#: What the host waits for at the end of an iteration: the result of a step, which it has once copied and then reads.
READS = "event.synchronize"


def waits_of(folder: Path, function: Any = iterations) -> list[list[Wait]]:
    nothing_follows = {"save": None, "eval_interval": 100, "log_interval": 100}
    rank_arguments(folder, 1, **RUN | nothing_follows | {"pipe_parallel_size": 0})
    # Comparing the steps with a plan needs no wait either.
    planned = Planned("H100-80GB", 4 * 32, 1.5, {"compute": 1.0})
    arguments = script_arguments(resolve([folder / "run.yml"], gpus=1), planned=planned)
    [found] = run_ranks(function, 1, arguments, on=GPU)
    assert len(found) == 3
    return found[1:]  # type: ignore[no-any-return]


def test_an_iteration_only_waits_for_the_step_before(tmp_path: Path) -> None:
    """Loss, gradient norm and request to stop are read together; loader workers pin their batches."""
    for waits in waits_of(tmp_path):
        assert [wait.what for wait in waits] == [READS], listed(waits)


def iterations_that_read(arguments: list[str]) -> list[list[Wait]]:
    """The same, with a loop that reads the loss of each step itself."""
    from neoxargs.train.engine.steps import Plain

    update = Plain.update

    def reads(trainer: Plain, batches: Any) -> Tensor:
        loss = update(trainer, batches)
        assert loss.item() > 0
        return loss

    with patch.object(Plain, "update", reads):
        return iterations(arguments)


def test_a_number_that_is_read_in_every_step_is_found(tmp_path: Path) -> None:
    for waits in waits_of(tmp_path, iterations_that_read):
        assert [wait.what for wait in waits] == ["item", READS], listed(waits)


def test_text_is_that_of_the_cpu(trained: Path, copy: Path) -> None:
    texts = {}
    for machine in (GPU, CPU):
        output = copy / f"{machine.backend}.jsonl"
        run(copy, 2, machine, "generate", text_gen_type="unconditional", num_samples=2, maximum_tokens=8,
            sample_output_file=str(output))  # fmt: skip
        texts[machine.backend] = [json.loads(line)["text"] for line in output.read_text().splitlines()]
    assert texts["nccl"] == texts["gloo"]
    assert len(texts["nccl"]) == 2


def test_the_perplexity_is_that_of_the_cpu(copy: Path) -> None:
    found = {}
    for machine in (GPU, CPU):
        run(copy, 2, machine, "eval", eval_results_prefix=str(copy / machine.backend))
        [results] = copy.glob(f"{machine.backend}_eval_results_*.json")
        found[machine.backend] = json.loads(results.read_text())["validation"]
    assert found["nccl"] == pytest.approx(found["gloo"], rel=1e-5)


def test_its_checkpoint_can_be_exported(copy: Path) -> None:
    assert exporting.main([str(copy / "run.yml"), "--to", str(copy / "exported")]) == 0
    assert (copy / "exported" / "model.safetensors").is_file()
