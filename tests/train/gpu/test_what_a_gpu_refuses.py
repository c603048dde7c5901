"""The simulated GPU reports faults that a real GPU would have: tensors left on the host, operations that wait."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train import local_ranks
from neoxargs.train.micro_batch import MicroBatch
from tests.support import simulated_gpu
from tests.support.ranks import run_ranks
from tests.support.simulated_gpu.waits import Wait, listed

pytestmark = pytest.mark.compiler

HERE = "tests/train/gpu/test_what_a_gpu_refuses.py"


@contextmanager
def refused(text: str) -> Iterator[None]:
    with pytest.raises((RuntimeError, ValueError), match=text):
        yield


def refuse() -> None:
    """Assert that a GPU rejects operands and tensors of collectives that are in the wrong place."""
    here, there = torch.ones(2, device="cuda"), torch.ones(2)
    with refused("found at least two devices, cuda:0 and cpu"):
        here + there
    with refused("found at least two devices, cuda:0 and cpu"):
        torch.where(there > 0, here, here)
    with refused("found at least two devices, cuda:0 and cuda:1"):
        here + torch.ones(2, device="cuda:1")
    with refused("found at least two devices"):
        torch.nn.functional.embedding(torch.tensor([0]), here.view(1, 2))
    with refused("Expected a 'cuda' device type for generator but found 'cpu'"):
        here.normal_(generator=torch.Generator())
    with refused("No backend type associated with device type cpu"):
        dist.all_reduce(there)
    with refused("No backend type associated with device type cpu"):
        dist.all_gather_into_tensor(torch.empty(4), here)
    with refused("must be contiguous"):
        dist.all_reduce(torch.ones(2, 2, device="cuda").t())
    group = dist.new_group([0])
    dist.all_reduce(here, group=group)
    dist.destroy_process_group(group)
    assert (here * torch.tensor(2.0)).tolist() == [2, 2]  # a number may come from the host
    assert here[torch.tensor([1])].tolist() == [1]  # and so may indices


def test_operands_and_collectives_must_be_on_the_device() -> None:
    run_ranks(refuse, 1, on=simulated_gpu.MACHINE)


def wait() -> dict[str, list[Wait]]:
    """Return the waits of each kind of operation."""
    from tests.support.simulated_gpu.waits import recorded

    device, host, pinned = torch.ones(2, device="cuda"), torch.ones(2), torch.ones(2).pin_memory()
    assert pinned.is_pinned() and not host.is_pinned() and pinned[1:].is_pinned()
    calls = {
        "item": lambda: device.sum().item(),
        "bool": lambda: bool(device[0] > 0),
        "nonzero": lambda: device.nonzero(),
        "mask": lambda: device[device > 0],
        "mask, put": lambda: operator.setitem(device, device > 0, device),
        "mask, put a number": lambda: operator.setitem(device, device > 0, 1.0),
        "synchronize": lambda: torch.cuda.synchronize(),
        "up": lambda: host.cuda(),
        "up, pageable": lambda: host.to("cuda", non_blocking=True),
        "up, pinned": lambda: pinned.to("cuda", non_blocking=True),
        "up, pinned, blocking": lambda: pinned.to("cuda"),
        "a number": lambda: torch.tensor(1.0, device="cuda"),
        "down": lambda: device.cpu(),
        "down, pinned": lambda: device.to("cpu", non_blocking=True),
        "down, pageable": lambda: host.copy_(device, non_blocking=True),
        "on the device": lambda: device.add_(device).clone().fill_(2.0),
        "collective": lambda: dist.all_reduce(device),
    }
    found = {}
    for name, call in calls.items():
        with recorded() as waits:
            call()  # type: ignore[no-untyped-call]
        found[name] = list(waits)
    return found


def test_what_makes_the_host_wait_is_named() -> None:
    [found] = run_ranks(wait, 1, on=simulated_gpu.MACHINE)
    assert {name: [wait.what for wait in waits] for name, waits in found.items()} == {
        "item": ["item"],
        "bool": ["item"],
        "nonzero": ["aten::nonzero"],
        "mask": ["aten::nonzero", "index by a mask"],
        "mask, put": ["index by a mask"],
        "mask, put a number": [],
        "synchronize": ["synchronize"],
        "up": ["blocking copy to device"],
        "up, pageable": ["copy to device from pageable memory"],
        "up, pinned": [],
        "up, pinned, blocking": ["blocking copy to device"],
        "a number": ["blocking copy to device"],
        "down": ["blocking copy to host"],
        "down, pinned": [],
        "down, pageable": ["copy to host into pageable memory"],
        "on the device": [],
        "collective": [],
    }
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "device.sum().item()" in text)
    assert found["item"] == [Wait("item", f"{HERE}:{line}")]


#: Operators whose result's size or value the host must know, as torch says by tags; each in a call that waits.
TAGGED = {
    "_ctc_loss": lambda x, n: torch.ops.aten._ctc_loss(x.view(2, 1, 1), n.view(1, 2) * 0 + 1, n[:1] + 1, n[:1]),
    "_local_scalar_dense": lambda x, n: torch.ops.aten._local_scalar_dense(x[0]),
    "_unique": lambda x, n: torch.ops.aten._unique(x),
    "_unique2": lambda x, n: torch.ops.aten._unique2(x),
    "allclose": lambda x, n: torch.allclose(x, x),
    "argwhere": lambda x, n: torch.argwhere(x),
    "bincount": lambda x, n: torch.bincount(n),
    "equal": lambda x, n: torch.equal(x, x),
    "index": lambda x, n: x[x > 0],
    "item": lambda x, n: x[0].item(),
    "linalg_lstsq": lambda x, n: torch.linalg.lstsq(x.view(2, 1), x.view(2, 1)),
    "masked_select": lambda x, n: x.masked_select(x > 0),
    "nonzero": lambda x, n: x.nonzero(),
    "one_hot": lambda x, n: torch.nn.functional.one_hot(n),
    "repeat_interleave": lambda x, n: x.repeat_interleave(n),
    "unique_consecutive": lambda x, n: torch.unique_consecutive(x),
    "unique_dim": lambda x, n: torch.unique(x.view(2, 1), dim=0),
    "unique_dim_consecutive": lambda x, n: torch.unique_consecutive(x.view(2, 1), dim=0),
}
#: The same operators, where the host knows enough.
KNOWN = {
    "index": lambda x, n: x[n - 1],
    "one_hot": lambda x, n: torch.nn.functional.one_hot(n, 3),
    "repeat_interleave": lambda x, n: x.repeat_interleave(n, output_size=2),
}


def tagged() -> set[str]:
    """Return the operators that torch tags so."""
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    names = (name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    overloads = (name.partition(".") for name in names)
    packets = ((base, getattr(torch.ops.aten, base, None), overload or "default") for base, _, overload in overloads)
    found = ((base, getattr(packet, overload, None)) for base, packet, overload in packets)
    return {base for base, operator_ in found if operator_ and tags & {*operator_.tags}}


def wait_for_tagged() -> dict[str, tuple[list[Wait], list[Wait]]]:
    """Return the waits of each of these operators, also where the host knows enough."""
    from tests.support.simulated_gpu.waits import recorded

    x, n = torch.ones(2, device="cuda"), torch.ones(2, dtype=torch.long, device="cuda")
    found = {}
    for name, call in TAGGED.items():
        with recorded() as waits:
            call(x, n)
        with recorded() as known:
            KNOWN.get(name, lambda x, n: None)(x, n)
        found[name] = (list(waits), list(known))
    return found


def test_every_operator_waits_that_torch_says_depends_on_values() -> None:
    assert tagged() == set(TAGGED)
    [found] = run_ranks(wait_for_tagged, 1, on=simulated_gpu.MACHINE)
    assert [name for name, (waits, _) in found.items() if not waits] == []
    assert {name: known for name, (_, known) in found.items() if known} == {}


def train_wrongly() -> dict[str, Any]:
    """Return what is reported about faults in the middle of a training step."""
    from neoxargs.train.model.blocks.sequential import TransformerBlock
    from tests.support.simulated_gpu.measure import measure
    from tests.support.trials import Trial

    forward = TransformerBlock.forward

    def reads(block: Any, x: Tensor, *rest: Any) -> Any:
        assert x.abs().max().item() < 1e6
        return forward(block, x, *rest)

    def moves(block: Any, x: Tensor, *rest: Any) -> Any:
        return forward(block, x.cpu().cuda(), *rest)

    def left_on_host(batch: Any, device: Any) -> Any:
        return batch

    found = {"none": measure({"none": Trial()})["none"]}
    for fault in (reads, moves):
        with patch.object(TransformerBlock, "forward", fault):
            found[fault.__name__] = measure({"": Trial()})[""]
    with patch.object(MicroBatch, "to", left_on_host):
        found["left_on_host"] = measure({"": Trial()})[""]
    return found


def test_faults_in_a_step_are_found() -> None:
    [found] = run_ranks(train_wrongly, 1, on=simulated_gpu.MACHINE)
    expected = len(found["none"].waits)
    layers_and_micro_batches = 2 * 4
    assert found["none"].losses
    assert len(found["reads"].waits) == expected + layers_and_micro_batches
    assert f"8 x item at {HERE}:" in listed(found["reads"].waits)
    assert len(found["moves"].waits) == expected + 4 * layers_and_micro_batches  # back again in backward
    assert f"8 x blocking copy to host at {HERE}:" in listed(found["moves"].waits)
    assert f"8 x blocking copy to device at {HERE}:" in listed(found["moves"].waits)
    assert "found at least two devices" in found["left_on_host"].error


def fork_obstacles() -> str:
    torch.ones(1, device="cuda")
    return local_ranks._fork_obstacles()


def test_a_process_that_has_used_its_gpu_is_not_forked() -> None:
    [obstacles] = run_ranks(fork_obstacles, 1, on=simulated_gpu.MACHINE)
    assert "a device context" in obstacles
    assert "a process group" in obstacles
