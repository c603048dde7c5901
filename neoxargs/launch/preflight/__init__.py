"""What our scripts need from this machine before a run may start: files, checkpoints, a compiler, a device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from neoxargs.launch.cluster.devices import Device
from neoxargs.launch.preflight import disk_space
from neoxargs.launch.preflight.checkpoints import absent, overwritten, unreadable
from neoxargs.launch.preflight.data_files import missing_files, unnamed_files
from neoxargs.launch.preflight.disk_space import unwritable
from neoxargs.launch.preflight.resumed_schedule import other_schedule
from neoxargs.launch.run_spec import RunSpec
from neoxargs.launch.script import Program
from neoxargs.problems import Place, Problem
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.synonyms import yaml_form
from neoxargs.resolve.trainer_support import unsupported as trainer_support

CPU = Path("/proc/cpuinfo")
#: Instruction sets, as Linux names them, with one of which DeepSpeed computes fp16 on a CPU.
FP16 = ("avx512_fp16", "avx_ne_convert")

#: optimizer.type -> the op it runs on when its states stay on the device, and when they are offloaded to the CPU.
#: (Adam on the device is PyTorch's own; Lion and Lamb are plain torch.)
_OPS = {"adam": ("", "cpu_adam"), "adamw": ("", "cpu_adam"), "cpu_adam": ("cpu_adam", "cpu_adam"),
        "adagrad": ("", "cpu_adagrad")}  # fmt: skip

#: Parameters that, turned on, make rank 0 import a package: train.py's trackers and DeepSpeed's own.
PACKAGES = {
    "use_wandb": "wandb", "wandb.enabled": "wandb", "use_comet": "comet_ml", "comet.enabled": "comet_ml",
    "tensorboard_dir": "tensorboard", "tensorboard.enabled": "tensorboard",
}  # fmt: skip
#: tokenizer_type -> the package that every rank imports for it.
TOKENIZERS = {"SPMTokenizer": "sentencepiece", "TiktokenTokenizer": "tiktoken"}
#: What DeepSpeed does on GPUs only. Below stage 3 it reads none of these.
ON_GPUS = (
    "zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_nontrainable_weights",
    "zero_optimization.zero_quantized_gradients", "zero_optimization.offload_optimizer.super_offload",
)  # fmt: skip

#: distributed_backend -> what to do where the installed torch does not have it.
BACKENDS = {
    "nccl": "write distributed_backend: gloo, or install a torch that is built for CUDA",
    "gloo": "write distributed_backend: nccl",
    "mpi": "leave distributed_backend out; deepspeed_mpi: true starts the ranks with mpirun and needs no such torch",
}


def files(spec: RunSpec) -> list[Problem]:
    """What is missing on this machine; another one may have it."""
    config = spec.config
    found = [*missing_files(config), *unnamed_files(config), *absent(config), *other_schedule(config)]
    found += _precision(spec)
    if not spec.resources.remote:
        found += [*_packages(config), *_backend(spec), *_ops(spec), *_nvme(spec), *_kernels(spec)]
    return found


def all_needs(spec: RunSpec) -> list[Problem]:
    """The same, what a start would destroy, and whether there is room for what it would write."""
    return [*files(spec), *overwritten(spec.config), *disk_space.problems(spec.config)]


def needs(program: Program | None, spec: RunSpec) -> list[Problem]:
    """Of our own programs all needs are known; sampling, and another script, may do without the data that is named."""
    if program == "train":
        return all_needs(spec)
    config, logs = spec.config, disk_space.refused(spec.config, "run_dir")
    if program == "eval":
        return [*missing_files(config), *unreadable(config), *harness(config), *logs]
    checkpoint = unreadable(config) if program == "generate" else ()
    return [*map(Problem.as_warning, missing_files(config)), *checkpoint, *logs]


def unsupported(program: Program | None, config: Config) -> list[Problem]:
    """What a program of ours cannot do with this configuration; nothing is known of another script."""
    if program is None:
        return []
    return [
        *trainer_support.unsupported(config, training=program == "train"),
        *trainer_support.plugin_value_problems(config),
    ]


def harness(config: Config) -> Iterator[Problem]:
    """What eval.py's tasks need; not imported here, because that takes seconds."""
    if config.generation.eval_tasks and _lacks("lm_eval"):
        yield no_harness("No module named 'lm_eval'", config.place("eval_tasks"))


def no_harness(why: str, where: Place | None = None) -> Problem:
    what = f"eval_tasks needs the Python package lm_eval, which cannot be imported: {why}"
    return Problem(what, where, "pip install -c constraints.txt lm_eval")


def _precision(spec: RunSpec) -> Iterator[Problem]:
    config, resources = spec.config, spec.resources
    if config.precision.precision == "fp16" and resources.device == "cpu" and not resources.remote and _lacks_fp16():
        place = config.place("precision") or config.place("fp16.enabled")
        section = " and fp16: {enabled: false}" if config.written("fp16.enabled") else ""
        hint = f"write precision: fp32 or bfloat16{section}; for a machine with GPUs: deepy check --gpus N"
        yield Problem("this machine's CPU does not compute in fp16", place, hint)


def _packages(config: Config) -> Iterator[Problem]:
    """What would be missed only after text is tokenised and all ranks have started."""
    asked = {name: package for name, package in PACKAGES.items() if config.get(name)}
    if package := TOKENIZERS.get(config.tokenizer.tokenizer_type or ""):
        asked["tokenizer_type"] = package
    for name, package in asked.items():
        if _lacks(package):
            value = config.get(name)
            off = f"write {name}: false" if name in ("use_wandb", "use_comet") else f"leave {name} out"
            what = f"{name} ({yaml_form(value)}) needs the Python package {package}, which is not installed"
            yield Problem(what, config.place(name), f"pip install {package}" + f", or {off}" * (name in PACKAGES))


def _lacks(package: str) -> bool:
    """Is it not installed? A mere folder of that name, such as wandb's own for its runs, is no package."""
    from importlib.util import find_spec

    found = find_spec(package)
    return found is None or found.origin is None


def _backend(spec: RunSpec) -> Iterator[Problem]:
    """pip's torch knows nothing of MPI."""
    if spec.config.training.distributed_backend == "mpi" and _torch_lacks("ProcessGroupMPI"):
        what = "distributed_backend (mpi): the installed torch is built without it"
        yield Problem(what, spec.config.place("distributed_backend"), BACKENDS["mpi"])


def _torch_lacks(name: str) -> bool:
    """Does no such class stand in torch's library? It takes seconds to load; False where there is none to look into."""
    from importlib.util import find_spec
    from mmap import ACCESS_READ, mmap

    torch = find_spec("torch")
    library = Path(torch.origin).parent / "lib" / "libtorch_python.so" if torch and torch.origin else None
    if library is None or not library.is_file():
        return False
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(name.encode()) < 0


def ops_to_compile(config: Config, device: Device) -> list[str]:
    """The C++ of DeepSpeed that training with this configuration loads."""
    offload = config.offload_optimizer.device
    on_device, on_cpu = _OPS.get((config.optimizer.type or "adam").lower(), ("", ""))
    optimizer = on_cpu if offload in ("cpu", "nvme") and not config.optimizer_params.torch_adam else on_device
    nvme = "async_io" if "nvme" in (offload, config.offload_param.device) else ""
    exists = ("cpu_adam", "async_io") if device == "cpu" else (optimizer, nvme)
    return [op for op in (optimizer, nvme) if op and op in exists]


def _ops(spec: RunSpec) -> list[Problem]:
    needed = ops_to_compile(spec.config, spec.resources.device)
    if not needed:
        return []
    from neoxargs.launch import compiled_ops

    return list(compiled_ops.missing(needed, os.environ))


def _nvme(spec: RunSpec) -> Iterator[Problem]:
    """Folders that ranks would fail to make, and what only a GPU can do."""
    config = spec.config
    for section, options in (("offload_param", config.offload_param), ("offload_optimizer", config.offload_optimizer)):
        name = f"zero_optimization.{section}.nvme_path"
        if options.device == "nvme" and options.nvme_path and (why := unwritable(Path(options.nvme_path))):
            hint = "write a folder on the drive in which this user may write"
            yield Problem(f"{name} ({options.nvme_path}): {why}", config.place(name), hint)
    if config.aio.use_gds and spec.resources.device == "cpu":
        what = "aio.use_gds moves data between drive and GPU, and the ranks run on CPUs"
        yield Problem(what, config.place("aio.use_gds"), "leave use_gds out")


def _kernels(spec: RunSpec) -> Iterator[Problem]:
    config = spec.config
    if spec.resources.device == "cuda" or config.zero_optimization.stage < 3:
        return
    for name in ON_GPUS:
        if config.get(name):
            what = f"{name} (true) works on GPUs only, and the ranks run on CPUs"
            yield Problem(what, config.place(name), f"leave {name.rpartition('.')[2]} out")


def _lacks_fp16() -> bool:
    """False where that is not known."""
    try:
        flags = CPU.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return not any(name in flags for name in FP16)
