"""A simulated GPU: torch's CPU build with a CUDA device whose operators run on the CPU, to test CUDA's code paths.

Tensors have `device='cuda'` and CUDA's dispatch key, but are in host memory, and every operator falls through to the
CPU's kernel: the numbers are real. As on a GPU, operands on different devices raise, "NCCL" (gloo underneath) refuses
CPU tensors, and each operation that makes the host wait is reported with file and line (waits.py). What it cannot show:
the numerics of GPU kernels, races between streams, NCCL itself, speed.

    run_ranks(function, 2, on=simulated_gpu.MACHINE)

runs `function` on ranks with a GPU each. Mark the test `compiler`; it is skipped where the simulated GPU is not
available.

csrc/ implements the device in C++ and is compiled by compiling.py. start.py loads it into a process; cuda.py and
nccl.py are its Python part. ahead_of_time.py compiles the kernels of torch.compile for such a GPU, without running
them.
"""

from importlib.util import find_spec

import pytest

from tests.support.ranks import Machine
from tests.support.simulated_gpu import compiling


def _require() -> None:
    """Compile the device, or skip the test that needs it."""
    try:
        compiling.library()
    except compiling.Unavailable as missing:
        pytest.skip(str(missing))


MACHINE = Machine("nccl", "tests.support.simulated_gpu.preload", {}, prepare=_require)
#: Marks of tests that compile kernels.
NEEDS_TRITON = [
    pytest.mark.compiler,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_spec("triton") is None, reason="Triton is not installed: pip install -c constraints.txt -e '.[kernels]'"
    ),
]
