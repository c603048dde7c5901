"""What only some machines can compute: fp16 on a CPU, ops of DeepSpeed that must be compiled or that need a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from neoxargs.launch.cluster.devices import Device
from neoxargs.launch.cluster.hosts import Resources
from neoxargs.launch.preflight.disk_space import why_unwritable
from neoxargs.problems import Problem
from neoxargs.resolve.config import Config

CPU = Path("/proc/cpuinfo")
#: Instruction sets, as Linux names them, with one of which DeepSpeed computes fp16 on a CPU.
FP16 = ("avx512_fp16", "avx_ne_convert")
#: optimizer.type -> the op it runs on when its states stay on the device, and when they are offloaded to the CPU.
#: (Adam on the device is PyTorch's own; Lion and Lamb are plain torch.)
OPS = {"adam": ("", "cpu_adam"), "adamw": ("", "cpu_adam"), "cpu_adam": ("cpu_adam", "cpu_adam"),
        "adagrad": ("", "cpu_adagrad")}  # fmt: skip
#: What DeepSpeed does on GPUs only. Below stage 3 it reads none of these.
GPUS_ONLY = (
    "zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_nontrainable_weights",
    "zero_optimization.zero_quantized_gradients", "zero_optimization.offload_optimizer.super_offload",
)  # fmt: skip


def fp16_without_support(config: Config, resources: Resources) -> Iterator[Problem]:
    """Few CPUs compute in fp16."""
    if config.precision.precision == "fp16" and resources.device == "cpu" and not resources.remote and _lacks_fp16():
        place = config.place("precision") or config.place("fp16.enabled")
        section = " and fp16: {enabled: false}" if config.written("fp16.enabled") else ""
        hint = f"write precision: fp32 or bfloat16{section}; for a machine with GPUs: deepy check --gpus N"
        what, about = "this machine's CPU does not compute in fp16", ("precision", "fp16.enabled")
        yield Problem(what, place, hint, id="cpu-without-fp16", about=about)


def _lacks_fp16() -> bool:
    """False where that is not known."""
    try:
        flags = CPU.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return not any(name in flags for name in FP16)


def ops_to_compile(config: Config, device: Device) -> list[str]:
    """The C++ of DeepSpeed that training with this configuration loads."""
    offload = config.offload_optimizer.device
    on_device, on_cpu = OPS.get((config.optimizer.type or "adam").lower(), ("", ""))
    optimizer = on_cpu if offload in ("cpu", "nvme") and not config.optimizer_params.torch_adam else on_device
    nvme = "async_io" if "nvme" in (offload, config.offload_param.device) else ""
    exists = ("cpu_adam", "async_io") if device == "cpu" else (optimizer, nvme)
    return [op for op in (optimizer, nvme) if op and op in exists]


def ops_that_cannot_compile(config: Config, device: Device) -> list[Problem]:
    """Those without a compiler or a library."""
    needed = ops_to_compile(config, device)
    if not needed:
        return []
    from neoxargs.launch import compiled_ops

    return list(compiled_ops.uncompilable(needed, os.environ))


def nvme_problems(config: Config, device: Device) -> Iterator[Problem]:
    """Folders that ranks would fail to make, and what only a GPU can do."""
    for section, options in (("offload_param", config.offload_param), ("offload_optimizer", config.offload_optimizer)):
        name = f"zero_optimization.{section}.nvme_path"
        if options.device == "nvme" and options.nvme_path and (why := why_unwritable(Path(options.nvme_path))):
            hint = "write a folder on the drive in which this user may write"
            what = f"{name} ({options.nvme_path}): {why}"
            yield Problem(what, config.place(name), hint, id="folder-not-writable", about=(name,))
    if config.aio.use_gds and device == "cpu":
        what = "aio.use_gds moves data between drive and GPU, and the ranks run on CPUs"
        yield Problem(what, config.place("aio.use_gds"), "leave use_gds out", id="gpu-only", about=("aio.use_gds",))


def gpu_only_kernels(config: Config, device: Device) -> Iterator[Problem]:
    """Those of ZeRO stage 3."""
    if device == "cuda" or config.zero_optimization.stage < 3:
        return
    for name in GPUS_ONLY:
        if config.get(name):
            what = f"{name} (true) works on GPUs only, and the ranks run on CPUs"
            hint = f"leave {name.rpartition('.')[2]} out"
            yield Problem(what, config.place(name), hint, id="gpu-only", about=(name,))
