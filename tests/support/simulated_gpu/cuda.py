"""The functions of `torch.cuda` for simulated GPUs."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from neoxargs.hosts.devices import visible_devices
from tests.support.simulated_gpu.start import LISTENER, device

#: The properties of an H100.
PROPERTIES = SimpleNamespace(
    name="Simulated H100", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132, warp_size=32,
    regs_per_multiprocessor=65536, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10,
    L2_cache_size=50 << 20, max_threads_per_multi_processor=2048, gcnArchName="", is_integrated=False,
)  # fmt: skip
CAPABILITY = PROPERTIES.major, PROPERTIES.minor
OPERATORS = torch.library.Library("aten", "IMPL")


def _nothing(*_: Any, **__: Any) -> None:
    pass


class Stream(torch.Stream):
    """The only stream of a device, whichever stream is requested: work is complete as soon as it is queued."""

    cuda_stream = 0

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> Stream:
        return super().__new__(cls, device=f"cuda:{_number(device)}")

    def synchronize(self) -> None:
        report("stream.synchronize")

    def query(self) -> bool:
        return True

    wait_stream = wait_event = _nothing

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Event:
    """An event on the only stream; it has always completed."""

    cuda_event = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    record = wait = _nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 1.0

    def synchronize(self) -> None:
        report("event.synchronize")


class OnDevice:
    """`with torch.cuda.device(number):`"""

    def __init__(self, number: Any) -> None:
        self.number = _number(number)

    def __enter__(self) -> None:
        self.before = device().simulated_current()
        device().simulated_set_current(self.number)

    def __exit__(self, *_: object) -> None:
        device().simulated_set_current(self.before)


def _warn(what: bytes) -> None:
    """Warn of an operation that makes the host wait, as torch's sync debug mode does."""
    warnings.warn(f"called a synchronizing CUDA operation ({what.decode()})", stacklevel=2)


_LISTENER = LISTENER(_warn)


def report(what: str) -> None:
    """Report an operation that makes the host wait."""
    device().simulated_report(what.encode())


def install() -> None:
    """Replace functions of `torch.cuda` and, where they call C++, of `torch._C`."""
    visible = visible_devices(os.environ)
    count = device().simulated_devices() if visible is None else len(visible)
    make_generator = torch.ops.simulated_gpu.default_generator
    history = {"_record_memory_history": _nothing, "_dump_snapshot": lambda filename: Path(filename).touch()}
    answers = {torch.cuda: _answers(count), torch._C: _native_answers(count), torch.cuda.memory: history}
    for module, named in answers.items():
        for name, value in named.items():
            setattr(module, name, value)
    torch.cuda._initialized = True
    torch.cuda.default_generators = tuple(make_generator(number) for number in range(count))
    sys.modules["torch.cuda.nvtx"] = torch.cuda.nvtx
    # Of torch's operators that only GPUs have, those that are called.
    OPERATORS.impl("addmm.dtype_out", _addmm_with_type, "CPU")
    torch.version.cuda = "12.8"


def _addmm_with_type(
    total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, *, out: torch.Tensor, **scales: float
) -> torch.Tensor:
    return torch.addmm(total, a.to(dtype), b.to(dtype), out=out, **scales)


def _answers(count: int) -> dict[str, Any]:
    simulated = device()
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _nothing,
        "_lazy_init": _nothing,
        "device_count": lambda: count,
        "current_device": lambda: simulated.simulated_current(),
        # Two functions, because Dynamo has a handler for each.
        "_exchange_device": lambda number: _exchange(number),
        "_maybe_exchange_device": lambda number: _exchange(number),
        "set_device": lambda number: simulated.simulated_set_current(_number(number)),
        "device": OnDevice,
        "synchronize": lambda device=None: report("synchronize"),
        "Stream": Stream,
        "Event": Event,
        "current_stream": Stream,
        "default_stream": Stream,
        "stream": nullcontext,
        "set_stream": _nothing,
        "nvtx": SimpleNamespace(range_push=_nothing, range_pop=_nothing, mark=_nothing),
        "can_device_access_peer": lambda *_: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_name": lambda device=None: PROPERTIES.name,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_arch_list": lambda: ["sm_90"],
        **_memory(simulated),
    }


def _memory(simulated: Any) -> dict[str, Any]:
    def now(device: Any = None) -> int:
        return int(simulated.simulated_allocated(_number(device)))

    def most(device: Any = None) -> int:
        return int(simulated.simulated_peak(_number(device)))

    def reset(device: Any = None) -> None:
        simulated.simulated_reset_peak(_number(device))

    def statistics(device: Any = None) -> dict[str, int]:
        return {"allocated_bytes.all.current": now(device), "allocated_bytes.all.peak": most(device)}

    return {
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), now),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), most),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated"), reset),
        "memory_stats": statistics,
        "mem_get_info": lambda device=None: (PROPERTIES.total_memory - now(device), PROPERTIES.total_memory),
        "empty_cache": _nothing,
        "ipc_collect": _nothing,
    }


def _exchange(number: int) -> int:
    """Make this device the current one, unless the number is negative, and return the one before."""
    before = int(device().simulated_current())
    if number >= 0:
        device().simulated_set_current(number)
    return before


def _native_answers(count: int) -> dict[str, Any]:
    simulated = device()
    return {
        "_cuda_getDeviceCount": lambda: count,
        "_cuda_getDevice": lambda: int(simulated.simulated_current()),
        "_cuda_setDevice": lambda number: simulated.simulated_set_current(number),  # Dynamo wants to hash it
        "_cuda_exchangeDevice": _exchange,
        "_cuda_maybeExchangeDevice": _exchange,
        "_cuda_getCurrentRawStream": lambda number: 0,
        "_cuda_set_sync_debug_mode": lambda mode: simulated.simulated_listen(_LISTENER if mode else None),
        "_nccl_version": lambda: 2 << 32 | 27 << 16,
        "_nccl_version_suffix": lambda: b"",
    }


def _number(device_or_number: Any) -> int:
    """The number of a device, however it is given; the current one if it has none."""
    if isinstance(device_or_number, int):
        return device_or_number
    index = None if device_or_number is None else torch.device(device_or_number).index
    return int(device().simulated_current()) if index is None else index
