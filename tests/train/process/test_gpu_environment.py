"""The variables that torch, CUDA and NCCL read when a run has GPUs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.processes import flight_records
from neoxargs.train.process import gpu_environment
from tests.support.small_gpt import small


def environment(environ: dict[str, str] | None = None, version: str = "2.12.1", **values: Any) -> dict[str, str]:
    return gpu_environment.environment(small(**values), environ or {}, version)


def test_segments_of_the_allocator_grow() -> None:
    assert environment() == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def test_large_pinned_memory_is_not_rounded() -> None:
    """torch 2.13's own parser reads the setting, and refuses a size that is none."""
    text = environment(version=torch.__version__)["PYTORCH_ALLOC_CONF"]
    assert text == "expandable_segments:True,pinned_max_round_threshold_mb:64"
    torch._C._accelerator_setAllocatorSettings(text)
    with pytest.raises((RuntimeError, ValueError)):
        torch._C._accelerator_setAllocatorSettings(text.replace(":64", ":large"))


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_user_configures_the_allocator(name: str) -> None:
    assert environment({name: "max_split_size_mb:512"}) == {}


def test_kernels_of_tensor_parallel_layers_start_in_order() -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    assert environment(model_parallel_size=2)[name] == "1"
    assert name not in environment({name: "8"}, model_parallel_size=2)
    assert name not in environment(**{"model_parallel_size": 2, "zero_optimization.stage": 3})


def test_deterministic() -> None:
    added = environment(deterministic=True).items() - environment().items()
    assert dict(added) == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_NVLS_ENABLE": "0"}


def test_nccl_writes_what_it_has_recorded_beside_the_logs() -> None:
    """Under the name that the report reads, to which torch adds the rank."""
    logs = Path("logs/1")
    added = gpu_environment.environment(small(), {}, "2.12.1", logs).items() - environment().items()
    assert dict(added) == {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": "logs/1/flight-"}
    assert str(flight_records.record_file(logs, 3)) == "logs/1/flight-" + "3"
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in gpu_environment.environment(
        small(), {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, "2.12.1", logs
    )


def test_it_is_set_on_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"DS_ACCELERATOR": "cpu"})
    gpu_environment.set_environment(small())
    assert os.environ == {"DS_ACCELERATOR": "cpu"}
    monkeypatch.setattr(os, "environ", {"DS_ACCELERATOR": "cuda"})
    gpu_environment.set_environment(small())
    assert os.environ["PYTORCH_ALLOC_CONF"].startswith("expandable_segments:True")
