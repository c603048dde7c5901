"""Reading DeepSpeed's checkpoint files without executing code from them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.zero.config import ZeroStageEnum

from neoxargs.base.problems import Problems
from neoxargs.train.deepspeed import checkpoint_io


class Got:
    """Pickled as a call of getattr."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return getattr, self.arguments


def test_a_zero_stage_is_read_as_early_python_3_11_pickles_it(tmp_path: Path) -> None:
    torch.save({"zero_stage": Got(ZeroStageEnum, "gradients")}, tmp_path / "file.pt")
    assert checkpoint_io.read(tmp_path / "file.pt") == {"zero_stage": ZeroStageEnum.gradients}


@pytest.mark.parametrize("arguments", [(ZeroStageEnum, "mro"), (torch.Tensor, "__init__")])
def test_no_other_attribute_is_read(tmp_path: Path, arguments: tuple[Any, ...]) -> None:
    torch.save(Got(*arguments), tmp_path / "file.pt")
    with pytest.raises(Problems, match=r"refers to builtins\.getattr, which does not belong in a checkpoint"):
        checkpoint_io.read(tmp_path / "file.pt")


def test_what_deepspeed_logs_is_not_on_stdout(tmp_path: Path) -> None:
    """As in `deepy diff --json`, where the first read imports DeepSpeed."""
    torch.save({}, tmp_path / "file.pt")
    program = (
        "import logging; from neoxargs.train.deepspeed import checkpoint_io; checkpoint_io.read('file.pt');"
        "logging.getLogger('DeepSpeed').warning('a warning')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, text=True, capture_output=True, check=True)
    assert done.stdout == "" and "a warning" in done.stderr
