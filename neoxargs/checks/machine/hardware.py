"""Checks of the hardware: fp16 on a CPU, DeepSpeed ops that must be compiled, features that need a GPU."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from math import gcd
from pathlib import Path

from neoxargs.base.files import why_unwritable
from neoxargs.base.problems import Problem, listed
from neoxargs.config.config import Config
from neoxargs.facts.layout import tensor_ranks_together
from neoxargs.facts.trained import is_frozen
from neoxargs.hosts.devices import Device, gpu_models
from neoxargs.hosts.hosts import Resources

CPU = Path("/proc/cpuinfo")
#: CPU flags of Linux for the instruction sets, one of which DeepSpeed needs to compute fp16 on a CPU.
FP16 = ("avx512_fp16", "avx_ne_convert")
#: NVIDIA's GPUs with bf16 in matrix products, from the Ampere generation (2020) on.
BF16 = re.compile(r"\b(?:A\d{1,4}|H\d{2,3}|G?[BH]\d{3}|L\d{1,2}S?|RTX (?:A\d|PRO|[3-9]0[5-9]0|\d000 Ada))\b", re.I)
#: optimizer.type -> the op it uses with its states on the device, and with its states offloaded to the CPU.
#: (Adam on the device is PyTorch's; Lion and Lamb need no op.)
OPS = {"adam": ("", "cpu_adam"), "adamw": ("", "cpu_adam"), "cpu_adam": ("cpu_adam", "cpu_adam"),
        "adagrad": ("", "cpu_adagrad")}  # fmt: skip
#: Device -> the kind of compiler that torch.compile calls, the environment variable that names it, usual names.
COMPILERS: dict[Device, tuple[str, str, tuple[str, ...]]] = {
    "cpu": ("C++", "CXX", ("g++",)), "cuda": ("C", "CC", ("gcc", "clang")),
}  # fmt: skip
#: Parameters that DeepSpeed implements for GPUs only. Below ZeRO stage 3 it does not read them.
GPUS_ONLY = (
    "zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_nontrainable_weights",
    "zero_optimization.zero_quantized_gradients", "zero_optimization.offload_optimizer.super_offload",
)  # fmt: skip


def fp16_without_support(config: Config, resources: Resources) -> Iterator[Problem]:
    """fp16 on a CPU without the instructions for it."""
    if config.precision.precision == "fp16" and resources.device == "cpu" and not resources.remote and _lacks_fp16():
        place = config.place("precision") or config.place("fp16.enabled")
        section = " (and fp16: {enabled: false})" if config.is_set("fp16.enabled") else ""
        hint = f"set precision: fp32 or bfloat16{section}; if the run is for GPUs, check it with deepy check --gpus N"
        what, about = "this machine's CPU does not support fp16", ("precision", "fp16.enabled")
        yield Problem(what, place, hint, id="cpu-without-fp16", about=about)


def fp16_on_this_machine(config: Config, resources: Resources) -> Iterator[Problem]:
    """Warn of pretraining in fp16 on GPUs of this machine that have bf16."""
    models = gpu_models() if resources.device == "cuda" and not resources.remote else ()
    if models and all(map(BF16.search, models)):
        yield from fp16_beside_bf16(config, models)


def fp16_beside_bf16(config: Config, models: Collection[str]) -> Iterator[Problem]:
    """Warn of pretraining in fp16 on these models of GPUs, which compute as fast in bf16."""
    if config.precision.precision == "fp16" and not config.checkpoint.finetune and not is_frozen(config):
        place = config.place("precision") or config.place("fp16.enabled")
        what = f"precision (fp16) on {listed(sorted(models), 'and')}: bf16 is as fast, and cannot overflow as fp16 does"
        hint, about = "set precision: bfloat16, unless the run continues one in fp16", ("precision",)
        yield Problem(what, place, hint, severity="warning", id="fp16-beside-bf16", about=about)


def groups_across_hosts(config: Config, resources: Resources) -> Iterator[Problem]:
    """Warn of tensor parallel groups, which communicate in every layer, with ranks on several hosts."""
    size, name = config.parallel.model_parallel_size, "model_parallel_size"
    hosts = resources.assumed or resources.hosts
    if len(hosts) > 1 and size > 1 and tensor_ranks_together(size, map(len, hosts.values())) < size:
        slots = sorted({len(devices) for devices in hosts.values()})
        have = f"{'are assumed to have' if resources.assumed else 'have'} {listed(map(str, slots))}"
        what = f"{name} ({size}): tensor parallel ranks on different hosts, which {have} devices, communicate over the "
        what += "network in every layer"
        # While the heads and the size do not fit together, no size is advised: one of them will change.
        on_a_host = gcd(size, config.shape.num_attention_heads, *slots)
        hint = f"set {name} to {on_a_host} and pipe_parallel_size to a larger number, unless NVLink connects "
        hint += "these hosts"
        place, about = config.place(name), (name,)
        yield Problem(what, place, hint, severity="warning", id="tensor-parallel-across-hosts", about=about)


def fp32_without_tf32(config: Config, device: Device) -> Iterator[Problem]:
    """Warn of fp32 on GPUs without TF32 in matrix multiplications, unless `float32_matmul_precision` is set."""
    name = "float32_matmul_precision"
    if device == "cuda" and config.precision.precision == "fp32" and not config.is_set(name):
        what = "precision (fp32): matrix multiplications take about 8 times as long as in TF32, "
        what += "and 16 times as long as in bf16"
        hint = f"set precision: bfloat16, or {name}: high (TF32), or {name}: highest to keep fp32 without this warning"
        place = config.place("precision")
        yield Problem(what, place, hint, severity="warning", id="fp32-without-tf32", about=("precision", name))


def backend_of_gpus(config: Config, device: Device) -> Iterator[Problem]:
    """Warn of nccl where the ranks run on CPUs: train.py replaces it."""
    name = "distributed_backend"
    if device == "cpu" and config.is_set(name) and config.get(name) == "nccl":
        what = f"{name} (nccl) has no effect: the ranks run on CPUs, which communicate by gloo"
        yield Problem(what, config.place(name), f"remove {name}", severity="warning", id="no-effect", about=(name,))


def _lacks_fp16() -> bool:
    """Return whether the CPU has no instructions for fp16; False if that is not known."""
    try:
        flags = CPU.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return not any(name in flags for name in FP16)


def ops_to_compile(config: Config, device: Device) -> list[str]:
    """Return the C++ ops of DeepSpeed that training with this configuration loads."""
    offload = config.offload_optimizer.device
    on_device, on_cpu = OPS.get((config.optimizer.type or "adam").lower(), ("", ""))
    optimizer = on_cpu if offload in ("cpu", "nvme") and not config.optimizer_params.torch_adam else on_device
    nvme = "async_io" if "nvme" in (offload, config.offload_param.device) else ""
    # DeepSpeed has no other op of these for CPUs (ops/op_builder/cpu).
    exists = ("cpu_adam", "async_io") if device == "cpu" else (optimizer, nvme)
    return [op for op in (optimizer, nvme) if op and op in exists]


def ops_that_cannot_compile(config: Config, device: Device) -> list[Problem]:
    """Return a problem for each op whose compiler or library is missing."""
    needed = ops_to_compile(config, device)
    if not needed:
        return []
    from neoxargs.hosts import compiled_ops

    return list(compiled_ops.uncompilable(needed, os.environ))


def layers_that_cannot_compile(config: Config, device: Device) -> Iterator[Problem]:
    """`compile_layers` without the compiler that torch.compile calls for this kind of device."""
    kind, variable, usual = COMPILERS[device]
    # CXX may have arguments: "ccache g++".
    names = os.environ.get(variable, "").split()[:1] or usual
    if config.fusion.compile_layers and not any(map(shutil.which, names)):
        what = f"compile_layers needs a {kind} compiler, which is not installed on this machine"
        hint = f"install {usual[0]}, set {variable} in the environment to a compiler, or remove compile_layers"
        yield Problem(what, config.place("compile_layers"), hint, id="layers-cannot-compile", about=("compile_layers",))


def unwritable_nvme(config: Config) -> Iterator[Problem]:
    """Folders for NVMe offloading that cannot be written to."""
    for section, options in (("offload_param", config.offload_param), ("offload_optimizer", config.offload_optimizer)):
        name = f"zero_optimization.{section}.nvme_path"
        if options.device == "nvme" and options.nvme_path and (why := why_unwritable(Path(options.nvme_path))):
            what, hint = f"{name} ({options.nvme_path}): {why}", "set nvme_path to a writable folder on the NVMe drive"
            yield Problem(what, config.place(name), hint, id="folder-not-writable", about=(name,))


def gds_without_gpus(config: Config, device: Device) -> Iterator[Problem]:
    """GPUDirect Storage without GPUs."""
    if config.aio.use_gds and device == "cpu":
        what = "aio.use_gds (true) needs GPUs, but the ranks run on CPUs"
        yield Problem(what, config.place("aio.use_gds"), "remove use_gds", id="gpu-only", about=("aio.use_gds",))


def gpu_only_kernels(config: Config, device: Device) -> Iterator[Problem]:
    """Features of ZeRO stage 3 that DeepSpeed implements for GPUs only."""
    if device == "cuda" or config.zero_optimization.stage != 3:  # a list of stages is for the autotuner
        return
    for name in GPUS_ONLY:
        if config.knows(name) and config.get(name):
            what = f"{name} (true) needs GPUs, but the ranks run on CPUs"
            hint = f"remove {name.rpartition('.')[2]}"
            yield Problem(what, config.place(name), hint, id="gpu-only", about=(name,))
