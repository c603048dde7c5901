"""Imported once by the process from which ranks with simulated GPUs fork: the device, then everything else."""

from tests.support.simulated_gpu.start import start

start()

import tests.support.warm  # noqa: E402, F401
