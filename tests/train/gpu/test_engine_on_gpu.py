"""What the engine does only on GPUs: weights created on the device, collectives of one tensor, overlapping copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support import simulated_gpu
from tests.support.ranks import CPU, Machine, all_ranks, run_ranks
from tests.support.trials import Training, Trial

pytestmark = pytest.mark.compiler


def born(trials: dict[str, Trial]) -> dict[str, set[tuple[str, str]]]:
    """Return the devices and types that matrices have before DeepSpeed sees the model."""
    from neoxargs.train.engine import build as engine
    from neoxargs.train.model.gpt import GPT
    from neoxargs.train.process import mesh, setup

    setup.start("nccl", seed=1)
    models: list[set[tuple[str, str]]] = []

    class Seen(GPT):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            matrices = [weight for weight in self.parameters() if weight.dim() > 1]
            models.append({(weight.device.type, str(weight.dtype)) for weight in matrices})

    engine.GPT = Seen
    for trial in trials.values():
        Training(trial)
        mesh.destroy_groups()
    return dict(zip(trials, models, strict=True))


BORN = {
    "fp32": Trial(),
    "bf16": Trial({}, {"bf16": {"enabled": True}}),
    "bf16, drawn on the host": Trial({"use_cpu_initialization": True}, {"bf16": {"enabled": True}}),
}


@pytest.mark.parametrize(("machine", "device"), [(CPU, "cpu"), (simulated_gpu.MACHINE, "cuda")])
def test_weights_are_created_on_the_device_in_their_final_type(machine: Machine, device: str) -> None:
    assert run_ranks(born, 1, BORN, on=machine)[0] == {
        "fp32": {(device, "torch.float32")},
        "bf16": {(device, "torch.bfloat16")},
        "bf16, drawn on the host": {("cpu", "torch.float32")},
    }


def summed_over_slices() -> float:
    """Return how far the cross entropy's fp32 sum of a bf16 weight's gradients is from the exact one, relatively."""
    from neoxargs.train.losses import cross_entropy
    from neoxargs.train.losses.cross_entropy import Loss, Vocabulary

    cross_entropy.LOGITS_AT_ONCE["cuda"] = 256 * 64
    hidden, weight = (torch.randn(rows, 32, device="cuda", dtype=torch.bfloat16) for rows in (16384, 64))
    labels = torch.randint(64, (16384,), device="cuda")

    def gradient(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        slices = cross_entropy._Slices(hidden, weight, labels, Loss(Vocabulary(64, 64)))
        for part in slices.parts():
            slices.add(part, train=True)
        assert slices.gradient_VD is not None and slices.gradient_VD.dtype == torch.float32
        return slices.gradient_VD

    found, exact = gradient(hidden, weight), gradient(hidden.float(), weight.float())
    return float((found - exact).norm() / exact.norm())


def test_a_weights_gradients_are_summed_over_slices_in_fp32() -> None:
    # A sum of these 64 slices in bf16 is 8e-3 off.
    assert run_ranks(summed_over_slices, 1, on=simulated_gpu.MACHINE)[0] < 2e-3


def gathered_and_scattered() -> tuple[list[str], bool]:
    """Return the collectives of a region of sequence parallelism, and whether their results are right."""
    from neoxargs.train.parallel.communicate import gather_sequence, reduce_scatter_sequence

    device = "cuda" if torch.cuda.is_available() else "cpu"
    axis, called = all_ranks(), []
    for name in ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"):
        setattr(dist, name, _noting(name, getattr(dist, name), called))
    whole = torch.arange(2 * 4 * 3, dtype=torch.float32, device=device).view(2, 4, 3)  # (batch, seq, hidden)
    shard = whole.chunk(2, dim=1)[axis.rank]
    scattered = reduce_scatter_sequence(whole, axis)
    right = torch.equal(gather_sequence(shard, axis), whole) and torch.equal(scattered, 2 * shard)
    return called, right


def _noting(name: str, call: Any, called: list[str]) -> Any:
    def noted(*arguments: Any, **options: Any) -> Any:
        called.append(name)
        return call(*arguments, **options)

    return noted


def test_shards_are_gathered_and_scattered_in_one_tensor() -> None:
    for found in run_ranks(gathered_and_scattered, 2, on=simulated_gpu.MACHINE):
        assert found == (["reduce_scatter_tensor", "all_gather_into_tensor"], True)
    for found in run_ranks(gathered_and_scattered, 2):
        assert found == (["reduce_scatter", "all_gather"], True)


def loaded() -> tuple[list[bool], list[float], list[str]]:
    """Store three tensors and load them in reverse; return whether each copy had started, their values, and waits."""
    from neoxargs.train.engine.offloaded_activations import OffloadedActivations
    from tests.support.simulated_gpu import waits

    copies = OffloadedActivations(torch.device("cuda", 0))
    tensors = [torch.full((4,), float(number), device="cuda") for number in range(3)]
    on_their_way, values = [], []
    with waits.recorded() as waited:
        stored = [copies.store(tensor, torch.empty(4, pin_memory=True)) for tensor in tensors]
        for copy in reversed(stored):
            on_their_way.append(copy.on_gpu is not None)
            values.append(copies.load(copy))
    return on_their_way, [float(value[-1]) for value in values], [wait.what for wait in waited]


def test_the_previous_layer_is_copied_back_while_a_layer_is_computed() -> None:
    assert run_ranks(loaded, 1, on=simulated_gpu.MACHINE) == [([False, True, True], [2.0, 1.0, 0.0], [])]
