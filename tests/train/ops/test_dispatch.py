"""Which GPUs compute the products of experts in one kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neoxargs.train.ops.dispatch import _has_grouped_kernel


class OnGpu:
    """What the decision reads of a tensor on a GPU."""

    is_cuda, dtype, device = True, torch.bfloat16, torch.device("cuda")

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]


@pytest.mark.parametrize(("capability", "has"), [((8, 0), False), ((9, 0), True), ((10, 0), False), ((12, 0), False)])
def test_only_hopper_has_the_kernel(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], has: bool) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    rows: Any = OnGpu(32, 16)
    matrices: Any = OnGpu(4, 16, 16)
    assert _has_grouped_kernel(rows, matrices) is has
