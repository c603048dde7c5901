"""An import that is interrupted leaves the checkpoints of its folder as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from neoxargs.convert import imported
from tests.support.configure import configure


def test_ctrl_c_leaves_no_partial_checkpoint(tmp_path: Path) -> None:
    def tensor(name: str) -> Tensor:
        if name == "layers.1.weight":
            raise KeyboardInterrupt
        return torch.zeros(2)

    source = imported.Imported({"iteration": 3}, torch.float32, ["layers.0.weight", "layers.1.weight"], tensor)
    with pytest.raises(KeyboardInterrupt):
        imported.write(source, configure(""), tmp_path, lambda _: None)
    assert not list(tmp_path.iterdir())
