"""A pretended GPU: torch's CPU build made to believe in CUDA devices, so that all of CUDA's code paths run without one.

Tensors carry `device='cuda'` and CUDA's dispatch key, but lie in host memory, and every operator falls through to the
CPU's kernel: the numbers are real. As on a GPU, operands on different devices raise, "NCCL" (gloo underneath) refuses
tensors of the host, and whatever makes the host wait is reported with file and line (waits.py). What it cannot show:
the numerics of GPU kernels, races between streams, NCCL itself, speed.

    run_ranks(function, 2, on=pretended_gpu.MACHINE)

runs `function` on ranks with a GPU each; the test is marked `compiler`, and skips where the GPU cannot be had.

csrc/ is the device, compiled by compiling.py; start.py loads it into a process, cuda.py and nccl.py are what torch's
Python finds of it.
"""

from tests.support.pretended_gpu.machine import MACHINE

__all__ = ["MACHINE"]
