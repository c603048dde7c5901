"""DeepSpeed's checkpoint files: written by our own function, and read without executing code from them.

A pickle can name any function, and `torch.load` without `weights_only` calls it. With `weights_only`, torch makes plain
data and tensors only; the classes below are the ones that DeepSpeed's optimizers store in addition.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neoxargs.base.problems import Problem, Problems
from neoxargs.train.deepspeed import interface

#: Writes an object to a file.
Write = Callable[[Any, Path], None]


def replace_io(engine: interface.Engine, write: Write, copies: bool = False) -> None:
    """Let a DeepSpeed engine write its files with `write`, and read them with `read`.

    copies: whether `write` copies tensors, which DeepSpeed then need not do before.
    An engine with another writer than torch's (section `checkpoint.writer`, nebula, DataStates) keeps it.
    """
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    # Assigned to the engine's own object, not to its class: other engines of this process keep theirs.
    files = engine.checkpoint_engine
    files.load = lambda path, map_location=None: read(path, map_location=map_location)
    if type(files) is TorchCheckpointEngine:
        files.save = lambda state_dict, path: write(state_dict, Path(path))
        # If true, DeepSpeed clones each tensor first: torch.save would write the whole storage of a small view.
        files.preserves_storage_sharing = lambda: not copies


def in_zip_format(engine: interface.Engine) -> bool:
    """Whether files are in torch's zip format: `checkpoint.checkpoint_serialization`."""
    return bool(getattr(engine.checkpoint_engine, "zipfile_serialization", True))


def read(
    path: Path | str, mmap: bool = False, map_location: Any = "cpu", load: Callable[..., Any] | None = None
) -> Any:
    """Return what torch.save wrote to a file; raise Problems if it contains other objects than a checkpoint has.

    load: `torch.load`, where that name stands for something else.
    """
    try:
        with torch.serialization.safe_globals(_classes()):
            return (load or torch.load)(path, map_location=map_location, mmap=mmap, weights_only=True)
    # EOFError: the file is empty or cut off. Errors of reading, such as OSError, pass through.
    except (pickle.UnpicklingError, EOFError) as error:
        raise _refusal(path, str(error)) from None


@contextmanager
def safe_reads() -> Iterator[None]:
    """Within this, DeepSpeed reads every file with `read`.

    It reads the files of universal checkpoints, and those of ZeRO-3 without their optimizer states, with calls of
    `torch.load(weights_only=False)` that do not go through the engine's `checkpoint_engine`.
    """
    load = torch.load
    # `read` is given the original, because `torch.load` is now this function.
    with interface.replaced(
        torch, load=lambda path, map_location=None, **_: read(path, map_location=map_location, load=load)
    ):
        yield


@contextmanager
def left_out(module: nn.Module, is_left_out: Callable[[nn.Parameter], bool]) -> Iterator[None]:
    """Within this, DeepSpeed's files lack the weights for which `is_left_out` is true."""

    def leave_out(child: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name, weight in child.named_parameters(recurse=False):
            if is_left_out(weight):
                state.pop(prefix + name, None)

    # On the modules that own the weights: DeepSpeed's pipeline calls `state_dict` of each layer, not of the whole
    # model.
    hooks = [
        child.register_state_dict_post_hook(leave_out)
        for child in module.modules()
        if any(is_left_out(weight) for weight in child.parameters(recurse=False))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _classes() -> list[Any]:
    # DeepSpeed's logger writes to what is stdout now; that of `deepy diff --json` is for the report alone.
    with redirect_stdout(sys.stderr):
        from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
        from deepspeed.runtime.zero.config import ZeroStageEnum
        from deepspeed.utils.tensor_fragment import fragment_address

    def stage(enum: Any, name: str) -> Any:
        """Stand in for `getattr`, to which early releases of Python 3.11 pickle a reference for a member of an enum."""
        if enum is not ZeroStageEnum or name not in ZeroStageEnum.__members__:
            raise pickle.UnpicklingError("GLOBAL builtins.getattr")
        return ZeroStageEnum[name]

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address, (stage, "builtins.getattr")]


def _refusal(path: Path | str, reason: str) -> Problems:
    # torch words a refusal differently for a global it does not know and for one it was not allowed to call.
    named = re.search(r"GLOBAL ([\w.]+)|(?:class|function) `?([\w.]+[.][\w.]+)", reason)
    name = named and (named[1] or named[2])
    refers = f"refers to {name}, which does not belong in a checkpoint" if name else "was not written by torch.save"
    what = f"load ({path}): the file {refers}; no code in the file was executed"
    hint = "do not load this file with other programs either, unless you trust whoever wrote it"
    return Problems(Problem(what, hint=hint, id="checkpoint-file-refused", about=("load",)))
