"""Set up a process as a rank: device, process group, threads, seeds."""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import random
import resource
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.hosts.devices import visible_devices
from neoxargs.hosts.packages import BACKENDS
from neoxargs.hosts.rank_env import number
from neoxargs.hosts.rendezvous import unused_port
from neoxargs.hosts.slurm import in_step
from neoxargs.train.process import deepspeed_ops, loopback
from neoxargs.train.process.mesh import TIMEOUT, Mesh

#: Parameters of mallopt(3): maximum number of blocks allocated with mmap, and amount of free memory kept by malloc.
_M_MMAP_MAX, _M_TRIM_THRESHOLD = -4, -1


#: Whether to show everything that torch and DeepSpeed print, as `log_level: info` and `debug` ask for.
show_all = False


@dataclass(frozen=True)
class Process:
    """The rank of this process, the number of ranks, and its device."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @property
    def main(self) -> bool:
        """Whether this rank prints and writes files. Every rank has the loss, so rank 0 is used."""
        return self.rank == 0


#: Warnings of torch caused by DeepSpeed's code, on every rank, about which users can do nothing: deprecated function
#: names, receive buffers that require a gradient (the pipeline engine uses their contents as new leaves), and the
#: argument order of torch 1.
DEEPSPEED_WARNINGS = (
    r".*_into_tensor` is deprecated",
    r".*_scatter_tensor` is deprecated",
    "c10d::.*autograd kernel was not registered",
    r"This overload of add(cmul)?_ is deprecated",
)


def start(backend: str, seed: int, local_rank: int | None = None) -> Process:
    """Set up this process as a rank of the run. backend: `distributed_backend`; nccl is replaced by gloo on CPUs.

    Raises Problems if the machine has no GPU for this rank, torch lacks the backend, or the rendezvous fails.
    """
    for message in () if show_all else DEEPSPEED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    deepspeed_ops.add_ninja_to_path()
    _default_to_single_process()
    rank, size = number("RANK", os.environ), number("WORLD_SIZE", os.environ)
    local = number("LOCAL_RANK", os.environ) if local_rank is None else local_rank
    device = _device(local)
    if device.type == "cpu":
        _configure_cpu()
    init_distributed("gloo" if backend == "nccl" and device.type == "cpu" else backend)
    set_seeds(seed)
    return Process(rank, local, size, device)


def set_seeds(seed: int, stream: int = 0) -> None:
    """Seed the generators of random, numpy and torch; different streams draw different numbers."""
    # A large stride, so that stream 1 of one run's seed is not stream 0 of the next seed.
    seed = seed + 1_000_003 * stream
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_by_place(seed: int, mesh: Mesh) -> None:
    """Seed what dropout draws: alike on tensor parallel ranks, which have the same tokens, else differently."""
    set_seeds(seed, stream=mesh.pipe.rank * mesh.data.size + mesh.data.rank)


def set_numerics(config: Config) -> None:
    """Set how torch computes: deterministically or not, and fp32 matrix products in fp32 or TF32."""
    if config.precision.float32_matmul_precision != torch.get_float32_matmul_precision():
        torch.set_float32_matmul_precision(config.precision.float32_matmul_precision)
    if config.training.deterministic:  # not always: the call imports torch's compiler
        torch.use_deterministic_algorithms(True)


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Suppress what DeepSpeed prints to standard output, and deprecation warnings; its logger's warnings remain."""
    if show_all:
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def stop() -> None:
    """Leave the process group; without this torch warns when the rank exits."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _default_to_single_process() -> None:
    """Set the environment for a run of one process if no launcher has set it (`python train.py ...`)."""
    if "RANK" in os.environ:
        return
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (alone | {"MASTER_PORT": str(unused_port())}).items():
        os.environ.setdefault(name, value)


def on_gpu() -> bool:
    """Whether this process computes on a GPU; DS_ACCELERATOR=cpu disables GPUs."""
    return os.environ.get("DS_ACCELERATOR") != "cpu" and torch.cuda.is_available()


def gpu_name() -> str:
    """Return the name of this process's GPU, such as `NVIDIA A100-SXM4-80GB`; empty without one."""
    return torch.cuda.get_device_name() if on_gpu() else ""


def peak_memory() -> int:
    """Return the peak memory of this process in bytes: of tensors on a GPU; on a CPU of the whole process."""
    if on_gpu():
        return torch.cuda.max_memory_allocated()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return resident if sys.platform == "darwin" else resident * 1024


def _device(local_rank: int) -> torch.device:
    if not on_gpu():
        return torch.device("cpu")
    number = _gpu(local_rank, torch.cuda.device_count(), os.environ)
    torch.cuda.set_device(number)
    # DeepSpeed uses LOCAL_RANK as the index of the GPU, and fails if Open MPI's local rank differs from it.
    os.environ |= {name: str(number) for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK") if name in os.environ}
    return torch.device("cuda", number)


def _gpu(local_rank: int, present: int, environ: Mapping[str, str]) -> int:
    """Return the index of the rank's GPU among the `present` visible ones; raise Problems if there are too few."""
    if local_rank < present:
        return local_rank
    if present == 1 and (len(visible_devices(environ) or ()) == 1 or in_step(environ)):
        return 0  # Slurm and wrapper scripts make only its own GPU visible to each rank
    found = f"{present} {'GPU' if present == 1 else 'GPUs'}"
    what = f"{socket.gethostname()} has no GPU for local rank {local_rank} (torch finds {found})"
    hint = "lower num_gpus, or this machine's slots in the hostfile, to its number of GPUs"
    raise Problems(Problem(what, hint=hint, id="rank-without-gpu", about=("hostfile", "num_gpus")))


def _configure_cpu() -> None:
    """Configure threads, malloc and denormals for training on a CPU.

    The ranks of a machine share its cores equally. DeepSpeed's launcher sets LOCAL_SIZE, torchrun LOCAL_WORLD_SIZE.
    """
    # DeepSpeed then takes the CPU without looking for other accelerators, if it has not chosen one yet.
    os.environ["DS_ACCELERATOR"] = "cpu"
    local_size = os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or os.environ["WORLD_SIZE"]
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(local_size)))
    _keep_freed_memory()
    # Adam's moments of rare tokens decay to denormal numbers, with which a CPU computes a hundred times slower.
    torch.set_flush_denormal(True)


def _keep_freed_memory() -> None:
    """Make malloc reuse large blocks instead of returning each to the system, which zeroes every page of a new block.

    Logits and the gradients of logits and embedding are such blocks. This saves a tenth of the time of a step with a
    vocabulary of 50,304.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt:
        # No block with mmap: all come from the heap, whose memory malloc can reuse.
        mallopt(_M_MMAP_MAX, 0)
        # Never return the end of the heap to the system.
        mallopt(_M_TRIM_THRESHOLD, -1)


def init_distributed(backend: str) -> None:
    """Initialize DeepSpeed's communication layer, and torch.distributed unless it is already initialized.

    Raises Problems if torch lacks the backend or the rendezvous fails.
    """
    if not torch.distributed.is_backend_available(backend):
        what = f"distributed_backend ({backend}): the installed torch was built without this backend"
        raise Problems(Problem(what, hint=BACKENDS[backend], id="backend-missing", about=("distributed_backend",)))
    if not show_all:
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    with suppress_output():
        import deepspeed

        # On a CPU deepspeed.init_distributed compiles a shared-memory all-reduce that only inference uses. It takes a
        # minute, and a run killed meanwhile leaves a lock that blocks every later one.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        try:
            method = loopback.init_method()
            deepspeed.init_distributed(backend, timeout=timedelta(minutes=TIMEOUT), verbose=False, init_method=method)
        except (torch.distributed.DistNetworkError, OSError) as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            hint = "if another run uses this port, set master_port to a free port"
            what = f"the rendezvous at {where} failed: {error}"
            about = "master_addr", "master_port"
            raise Problems(Problem(what, hint=hint, id="rendezvous-failed", about=about)) from error
