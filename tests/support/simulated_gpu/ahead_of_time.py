"""Compiles kernels for a GPU that is not there: torch.compile and Triton do what they do on a GPU, except to run them.

Triton from PyPI brings NVIDIA's assembler, so kernels are compiled to the GPU's own code. Call one of two functions
once, in a process with a simulated GPU. `start`: a kernel that is called writes nothing, results are whatever the
memory held. `interpret`: Triton's interpreter runs the kernels, slowly, in the simulated GPU's memory.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from tests.support.simulated_gpu import cuda

#: Compute capability, such as (9, 0).
Capability = tuple[int, int]
#: Bytes of shared memory that one block of threads can have (CUDA C++ Programming Guide, "Compute Capabilities").
SHARED_MEMORY: dict[Capability, int] = {(8, 0): 163 << 10, (9, 0): 227 << 10}


class Kernel(NamedTuple):
    """A compiled kernel."""

    name: str
    shared: int
    """Bytes of shared memory per block of threads."""
    code: int
    """Bytes of the GPU's own code."""

    def fits(self, capability: Capability) -> bool:
        """Whether a GPU has the shared memory to start it."""
        return self.shared <= SHARED_MEMORY[capability]


def driver(capability: Capability) -> SimpleNamespace:
    """Return what Triton asks of a GPU's driver in order to compile."""
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    properties = {"max_shared_mem": SHARED_MEMORY[capability]}
    return SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=lambda device: properties, load_binary=_refuse),
        launcher_cls=_refuse,
        is_active=lambda: True,
        get_current_target=lambda: target,
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_device_interface=lambda: torch.cuda,
        get_benchmarker=lambda: lambda *_, **__: [1.0, 1.0, 1.0],
        map_python_to_cpp_type=lambda kind: "int",
    )


def start(capability: Capability) -> list[Kernel]:
    """Simulate a GPU of this capability, and return the list to which every kernel is added that is compiled."""
    import triton
    from torch._inductor.runtime import triton_heuristics

    _simulate(capability)
    autotuner = triton_heuristics.CachingAutotuner
    _set(autotuner, _make_launchers=lambda self: setattr(self, "launchers", [None]))
    for kind in (autotuner, *_subclasses(autotuner)):
        _set(kind, run=lambda self, *_, **__: None)
    return _record(triton)


def interpret(capability: Capability) -> None:
    """Simulate a GPU of this capability that runs kernels; needs TRITON_INTERPRET=1 when Triton is imported."""
    import triton.language as tl
    from torch._inductor.runtime import triton_helpers

    _simulate(capability)
    # CUDA's library of mathematical functions is machine code, which the interpreter skips. Looked up at each call,
    # because the interpreter exchanges Triton's functions while a kernel runs.
    names = ("exp", "exp2", "log", "log2", "sqrt", "abs", "sin", "cos", "erf")
    library: dict[str, Any] = {name: lambda x, name=name: getattr(tl, name)(x) for name in names}
    library |= {"rsqrt": lambda x: 1 / tl.sqrt(x), "tanh": lambda x: 1 - 2 / (tl.exp(2 * x) + 1)}
    library |= {"add_rn": lambda x, y: x + y, "mul_rn": lambda x, y: x * y, "div_rn": lambda x, y: x / y}
    _set(triton_helpers, libdevice=SimpleNamespace(**library))


def _simulate(capability: Capability) -> None:
    import triton
    from torch._inductor import config
    from torch._inductor.runtime import triton_helpers
    from torch.utils._triton import has_triton

    properties = SimpleNamespace(**{**vars(cuda.PROPERTIES), "major": capability[0], "minor": capability[1]})
    _set(torch.cuda, get_device_properties=lambda device=None: properties)
    _set(torch.cuda, get_device_capability=lambda device=None: capability)
    _set(torch._C._dynamo.guards, _empty_strided_cuda=_empty_strided)
    triton.runtime.driver.set_active(driver(capability))
    _set(triton_helpers, set_driver_to_gpu=lambda: None)
    # In this process, where they are recorded, and not taken from the cache of an earlier test.
    config.compile_threads, config.force_disable_caches = 1, True
    config.triton_disable_device_detection = False  # the simulated GPU has set it
    has_triton.cache_clear()


def _record(triton: Any) -> list[Kernel]:
    kernels: list[Kernel] = []
    compile_kernel = triton.compile

    def recorded(source: Any, *arguments: Any, **options: Any) -> Any:
        compiled = compile_kernel(source, *arguments, **options)
        kernels.append(Kernel(source.fn.__name__, compiled.metadata.shared, len(compiled.asm.get("cubin", b""))))
        return compiled

    _set(triton, compile=recorded)
    return kernels


def _subclasses(kind: type) -> list[type]:
    direct: list[type] = kind.__subclasses__()
    return direct + [each for subclass in direct for each in _subclasses(subclass)]


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _set(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a kernel was about to be loaded on a GPU that is not there")
