"""Environment variables of torch, CUDA, cuBLAS and NCCL for runs on GPUs.

They are read only once, when torch is imported or a GPU is first used, so they are set before that. A user overrides
any of them in the environment of the run (docs/many-machines.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from neoxargs.config.config import Config
from neoxargs.hosts.devices import device
from neoxargs.processes import flight_records
from neoxargs.registry.receivers import numbers

#: torch's present and former name of the variable for its allocator.
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
#: The first torch that is known to take the size above which pinned memory is not rounded; others refuse the key.
PINNED_SIZES = (2, 13)
#: Larger pinned buffers keep their size. Smaller ones, such as those of batches, are reused if they are rounded.
ROUNDED_MB = 64


def set_environment(config: Config, logs: Path | None = None) -> None:
    """Set the variables for this run, if it has GPUs. Call this before torch is imported. logs: of this attempt."""
    if device(os.environ) == "cuda":
        os.environ.update(environment(config, os.environ, version("torch"), logs))


def environment(config: Config, environ: Mapping[str, str], torch: str, logs: Path | None = None) -> dict[str, str]:
    """Return the variables for this run, without those that `environ` sets already. torch: its version."""
    wanted: dict[str, str] = {}
    if logs:  # torch adds the rank to the name
        wanted = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": str(logs / flight_records.PREFIX)}
    if not any(name in environ for name in ALLOCATOR):
        # Segments that grow leave no gaps of unused memory between activations of different sizes.
        wanted[ALLOCATOR[0]] = "expandable_segments:True"
        if numbers(torch) >= PINNED_SIZES:
            # torch rounds pinned memory up to a power of two, up to twice what offloaded states and copies need.
            wanted[ALLOCATOR[0]] += f",pinned_max_round_threshold_mb:{ROUNDED_MB}"
    if _overlaps_tensor_parallel_communication(config):
        wanted["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if config.training.deterministic:
        # cuBLAS needs workspaces of a fixed size; sums inside NVLink switches have no fixed order.
        wanted |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_NVLS_ENABLE": "0"}
    return {name: value for name, value in wanted.items() if name not in environ}


def _overlaps_tensor_parallel_communication(config: Config) -> bool:
    """Whether kernels must start in the order of their calls.

    Backward passes of tensor parallel layers call the all-reduce of a gradient before the matrix product that hides it.
    With several hardware queues the product may start first and occupy the GPU, and the all-reduce runs alone after it.
    megatron-core's layers make the same calls, and Megatron-LM requires the variable for them. ZeRO-3 gathers weights
    while layers compute, for which Megatron-LM refuses it (with FSDP): a queue would delay one stream behind another.
    """
    return config.parallel.model_parallel_size > 1 and config.zero_optimization.stage < 3
