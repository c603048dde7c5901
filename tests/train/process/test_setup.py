"""Threads, seeds and silence of a rank."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from neoxargs.base.problems import Problems
from neoxargs.train.process import setup
from tests.support.ranks import run_ranks
from tests.support.refused import refused
from tests.support.small_gpt import small
from tests.support.snapshots import pinned

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [({"LOCAL_SIZE": "1"}, CORES), ({"LOCAL_SIZE": str(CORES)}, 1), ({"LOCAL_SIZE": "64"}, 1),
     ({"LOCAL_WORLD_SIZE": str(CORES), "WORLD_SIZE": "1"}, 1), ({"WORLD_SIZE": "1"}, CORES),
     ({"LOCAL_SIZE": "1", "OMP_NUM_THREADS": "3"}, 5)],
)  # fmt: skip
def test_ranks_share_the_cores_unless_told(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: int
) -> None:
    for name in ("LOCAL_SIZE", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    torch.set_num_threads(5)
    setup._configure_cpu()
    assert torch.get_num_threads() == expected


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_seeds() -> None:
    setup.set_seeds(7)
    first = drawn()
    setup.set_seeds(7)
    assert drawn() == first
    setup.set_seeds(7, stream=1)
    assert not set(drawn()) & set(first)


def test_quiet_swallows_what_is_printed_and_restores(capsys: pytest.CaptureFixture[str]) -> None:
    with setup.suppress_output():
        print("chatter")
        warnings.warn("old", FutureWarning, stacklevel=1)
    print("kept")
    assert capsys.readouterr().out == "kept\n"


@pytest.mark.shows("distributed-backend")
@pytest.mark.usefixtures("threads")
def test_the_backend_is_as_chosen_on_gpus_and_gloo_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(backend: str, device: str) -> str:
        chosen: list[str] = []
        monkeypatch.setattr(setup, "_device", lambda _: torch.device(device))
        monkeypatch.setattr(setup, "init_distributed", chosen.append)
        setup.start(backend, seed=1)
        return chosen[0]

    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    assert [joined(backend, "cuda") for backend in ("nccl", "gloo", "mpi")] == ["nccl", "gloo", "mpi"]
    assert [joined(backend, "cpu") for backend in ("nccl", "gloo", "mpi")] == ["gloo", "gloo", "mpi"]


def test_a_rank_that_sees_one_gpu_tells_deepspeed_which(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(setup, "on_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name, value in {"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMPI_COMM_WORLD_LOCAL_RANK", raising=False)
    assert setup._device(3) == torch.device("cuda", 0)
    assert chosen == [0] and os.environ["LOCAL_RANK"] == "0" and "OMPI_COMM_WORLD_LOCAL_RANK" not in os.environ


@pytest.mark.parametrize("environ", [{"CUDA_VISIBLE_DEVICES": "3"}, {"SLURM_STEP_ID": "0"}])
def test_a_rank_may_see_no_gpu_but_its_own(environ: dict[str, str]) -> None:
    assert setup._gpu(1, 1, environ) == 0


@pytest.mark.parametrize(
    "environ", [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"SLURM_JOB_ID": "7"}], ids=["unset", "two", "no step of srun"]
)
def test_two_ranks_do_not_share_the_only_gpu(environ: dict[str, str]) -> None:
    """NCCL would stop with `Duplicate GPU detected`."""
    with pytest.raises(Problems, match=r"no GPU for local rank 1 \(torch finds 1 GPU"):
        setup._gpu(1, 1, environ)


def numerics(**values: str | bool) -> tuple[str, bool]:
    setup.set_numerics(small(**values))
    return torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()


def every_numerics() -> list[tuple[str, bool]]:
    return [numerics(), numerics(float32_matmul_precision="high"), numerics(deterministic=True)]


def test_numerics_are_as_configured() -> None:
    assert run_ranks(every_numerics, 1)[0] == [("highest", False), ("high", False), ("highest", True)]


def test_a_backend_that_torch_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: name != "mpi")
    pinned(refused(setup.init_distributed, "mpi"))


def alone() -> setup.Process:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"):
        del os.environ[name]
    torch.distributed.destroy_process_group()
    process = setup.start("nccl", seed=1)
    assert torch.distributed.get_world_size() == 1
    assert torch.distributed.get_backend() == "gloo"
    return process


def test_without_a_launcher_a_process_is_a_run_of_its_own() -> None:
    assert run_ranks(alone, 1)[0] == setup.Process(0, 0, 1, torch.device("cpu"))


def test_a_process_takes_more_than_its_tensors() -> None:
    assert setup.peak_memory() > 50 * 2**20
