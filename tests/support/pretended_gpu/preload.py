"""What a fork server of ranks with pretended GPUs imports first: the device, then all that a rank needs."""

from tests.support.pretended_gpu.start import start

start()

import tests.support.warm  # noqa: E402, F401
