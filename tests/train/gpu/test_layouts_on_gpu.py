"""Every layout on pretended GPUs: CUDA's code paths run, and fp32 gives the losses of the CPU."""

from __future__ import annotations

import pytest

from tests.support import pretended_gpu
from tests.support.ranks import CPU, run_ranks
from tests.support.trials import Losses, Trial, train

pytestmark = pytest.mark.compiler

STEPS = 2


def on_both(world: int, trials: dict[str, Trial]) -> tuple[dict[str, Losses], dict[str, Losses]]:
    """What rank 0 reports from GPUs and from CPUs."""
    on_gpu, on_cpu = (
        run_ranks(train, world, trials, STEPS, timeout=400, on=machine) for machine in (pretended_gpu.MACHINE, CPU)
    )
    return on_gpu[0], on_cpu[0]


def test_fp32() -> None:
    on_gpu, on_cpu = on_both(1, {"plain": Trial()})
    for name, losses in on_gpu.items():
        assert losses.train == pytest.approx(on_cpu[name].train, abs=1e-5), name
        assert losses.norms == pytest.approx(on_cpu[name].norms, rel=1e-5), name
        assert losses.held_out == pytest.approx(on_cpu[name].held_out, abs=1e-5), name
