"""Continuing on another layout: every rank takes its share of every weight and of its optimizer states by name.

Any sizes of tensor, pipeline and data parallelism, ZeRO stages and precisions go into any others. What is equal on
all layouts (fp32 weights, Adam's moments, the schedule, the sample's number) continues exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from neoxargs.problems import Problem, Problems
from neoxargs.train.checkpoint.inventory import Inventory
from neoxargs.train.checkpoint.weights_by_name import COMPARE_CONFIG, Saved, cannot_divide, share
from neoxargs.train.deepspeed import swap
from neoxargs.train.deepspeed.optimizer_layout import OptimizerLayout, Piece, optimizer_layout
from neoxargs.train.parallel.pipeline import named_weights

#: Padded so that tensor parallel ranks share their rows equally; the rows beyond the vocabulary are zeros.
VOCABULARY = ("embedding.word_embeddings.weight", "output.weight")
#: What fp16 remembers of its loss scale.
LOSS_SCALE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def load(engine: Any, folder: Path, inventories: list[Inventory], everything: bool) -> dict[str, Any]:
    """Fill a DeepSpeed engine from a checkpoint of any layout; every rank calls it. Raises Problems.

    everything: the optimizer and schedule too. Returns what DeepSpeed's `load_checkpoint` returns as client state.
    """
    saved = Saved(folder, inventories)
    mine = optimizer_layout(engine)
    _refuse(engine, saved, mine, everything)
    assert mine is not None
    weights = named_weights(engine.module)
    with torch.no_grad():
        if mine.kind == "zero3":
            _fill_partitions(engine.optimizer, weights, saved, mine, everything)
        else:
            for name, weight in weights.items():
                pieces = [piece for piece in mine.pieces if piece.name == name]
                _Loader(saved, mine, weight, pieces).load(name, everything)
    if everything:
        _continue(engine, saved, mine)
    return saved.common


def _fill_partitions(
    zero: Any, weights: dict[str, nn.Parameter], saved: Saved, mine: OptimizerLayout, everything: bool
) -> None:
    """ZeRO-3, whose partitions in fp32 say what the weights are; one group of them at a time need be in memory."""
    zero.checkpoint_event_prologue()
    for group in range(len(mine.tensors)):
        pieces = [piece for piece in mine.pieces if piece.tensor == group]
        with swap.in_memory(zero, group):
            for name in dict.fromkeys(piece.name for piece in pieces):
                parts = [piece for piece in pieces if piece.name == name]
                _Loader(saved, mine, weights[name], parts).load(name, everything)
    zero.checkpoint_event_epilogue()


class _Loader:
    """Fills one weight and its states."""

    def __init__(self, saved: Saved, layout: OptimizerLayout, weight: nn.Parameter, pieces: list[Piece]) -> None:
        self.saved, self.layout, self.weight, self.pieces = saved, layout, weight, pieces
        self.cut = getattr(weight, "tensor_shard", None)
        self.shape = list(getattr(weight, "ds_shape", weight.shape))

    def load(self, name: str, everything: bool) -> None:
        slice_ = self._slice(name, self.saved.whole(name, master=everything))
        if self.layout.kind != "zero3":
            self.weight.data.copy_(slice_)
        for piece in self.pieces:
            _span(self.layout.tensors[piece.tensor].data, piece).copy_(_part(slice_, piece))
        if everything and self.pieces:
            for state, number in self.saved.states(name).items():
                self._load_state(name, state, number)

    def _load_state(self, name: str, state: str, number: Any) -> None:
        whole = self._slice(name, self.saved.whole(name, state)) if number is None else None
        if isinstance(number, list | dict | tuple):
            raise cannot_divide(self.saved.folder, state)
        for piece in self.pieces:
            tensor = self.layout.tensors[piece.tensor]
            states = self.layout.optimizer.state[tensor]
            if whole is None:
                states[state] = _like(states.get(state), number, tensor, self.layout)
                continue
            if not isinstance(states.get(state), Tensor):
                states[state] = torch.zeros_like(tensor, dtype=whole.dtype)
            _span(states[state], piece).copy_(_part(whole, piece))

    def _slice(self, name: str, whole: Tensor) -> Tensor:
        """This rank's, of the vocabulary's with as many rows as this run's."""
        wanted = list(self.shape)
        if self.cut:
            wanted[self.cut.dimension] *= self.cut.size
        if name in VOCABULARY and whole.shape[0] != wanted[0]:
            rows = whole.new_zeros(wanted)
            rows[: min(len(whole), wanted[0])] = whole[: wanted[0]]
            whole = rows
        if list(whole.shape) != wanted:
            shapes = f"shape {_size(whole.shape)} in the checkpoint; this run expects {_size(wanted)}"
            what = f"load ({self.saved.folder}): {name} has {shapes}"
            raise Problems(Problem(what, hint=COMPARE_CONFIG, id="checkpoint-weight-shape", about=("load",)))
        return share(whole, self.cut) if self.cut else whole


def _span(tensor: Tensor, piece: Piece) -> Tensor:
    return tensor.view(-1)[piece.start : piece.start + piece.length]


def _part(slice_: Tensor, piece: Piece) -> Tensor:
    return slice_.flatten()[piece.begin : piece.begin + piece.length]


def _like(before: Any, number: Any, tensor: Tensor, layout: OptimizerLayout) -> Any:
    """A count as this optimizer keeps it: torch's in a tensor, on the GPU for its fused kernels; DeepSpeed's as int."""
    if not type(layout.optimizer).__module__.startswith("torch."):
        return number if isinstance(before, Tensor) or before is None else type(before)(number)
    fused = any(group.get("fused") or group.get("capturable") for group in layout.optimizer.param_groups)
    return torch.as_tensor(number, dtype=torch.float32, device=tensor.device if fused else "cpu").clone()


def _refuse(engine: Any, saved: Saved, mine: OptimizerLayout | None, everything: bool) -> None:
    problems = list(_problems(engine, saved, mine, everything))
    if problems:
        raise Problems(problems)


def _problems(engine: Any, saved: Saved, mine: OptimizerLayout | None, everything: bool) -> Iterator[Problem]:
    here = f"load ({saved.folder})"
    if mine is None:
        kind = type(engine.optimizer).__name__
        what = (
            f"{here}: it was written on another layout, but DeepSpeed's {kind} loads only checkpoints of its own layout"
        )
        hint = "continue on the layout that wrote it"
        yield Problem(what, hint=hint, id="checkpoint-layout-not-convertible", about=("load",))
    if everything and not saved.complete:
        hint = "set no_load_optim: true to start with a fresh optimizer state"
        what = f"{here}: it has no optimizer state (saved with no_save_optim, or imported)"
        yield Problem(what, hint=hint, id="checkpoint-without-optimizer", about=("load", "no_load_optim"))
    wanted = _of_all_ranks(set(named_weights(engine.module)))
    for missing in sorted(wanted - set(saved.slices))[:3]:
        what = f"{here}: it does not fit this model: it has no weight {missing}"
        yield Problem(what, hint=COMPARE_CONFIG, id="checkpoint-other-weights", about=("load",))
    for surplus in sorted(set(saved.slices) - wanted)[:3]:
        what = f"{here}: it does not fit this model, which has no weight {surplus}"
        yield Problem(what, hint=COMPARE_CONFIG, id="checkpoint-other-weights", about=("load",))


def _of_all_ranks(names: set[str]) -> set[str]:
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, names)
    return set().union(*found)


def _continue(engine: Any, saved: Saved, mine: OptimizerLayout) -> None:
    """What DeepSpeed restores beside tensors: schedule, counters, the groups' rates, the loss scale."""
    common, optim = saved.common, saved.optim(saved.inventories[0])
    if engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(common["lr_scheduler"])
    for name in ("global_steps", "global_samples", "skipped_steps"):
        setattr(engine, name, common[name])
    for group, theirs in zip(mine.optimizer.param_groups, optim.groups, strict=False):
        group |= {key: value for key, value in theirs.items() if key == "step" or (key in RATES and key in group)}
    scaler = optim.rest.get("loss_scaler")
    before = vars(scaler) if scaler else optim.rest
    after = getattr(engine.optimizer, "loss_scale_config", None) or getattr(engine.optimizer, "loss_scaler", None)
    if after is not None and before.get("last_overflow_iter") is not None and hasattr(after, "last_overflow_iter"):
        for name in LOSS_SCALE:
            if name in before and hasattr(after, name):
                setattr(after, name, before[name])


#: What a schedule moves in the optimizer's groups.
RATES = ("lr", "betas", "momentum")


def _size(shape: Any) -> str:
    return " x ".join(map(str, shape))
