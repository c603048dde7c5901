"""The weights and optimizer states of a GPT-NeoX checkpoint under deepy's names, joined over its tensor parallel ranks.

One full tensor is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial, reduce
from math import prod
from typing import Any

import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.facts.model import GATED
from neoxargs.facts.optimizers import state_type
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.files.neox_checkpoint.evidence import Decision, query_key_value_order
from neoxargs.files.neox_checkpoint.optimizer import (
    COUNTS_STEPS,
    NotUsable,
    OptimizerState,
    Part,
    restorable_state,
    within,
)
from neoxargs.files.neox_checkpoint.weights import Found, locate, used_weights
from neoxargs.train.checkpoint.neox.head_order import join_heads
from neoxargs.train.checkpoint.neox.tensors import read_parts, read_tensor
from neoxargs.train.checkpoint.slices import Slice, put_together, with_rows
from neoxargs.train.checkpoint.weights_by_name import Kind
from neoxargs.train.parallel.layers import TensorShard, join_slices, rank_slice


class NeoxWeights:
    """The interface through which `relayout.load` and `deepy export` read; `SavedWeights` is for deepy's own.

    slices: the weights by name.
    """

    def __init__(self, contents: Contents, config: Config) -> None:
        self.contents, self.folder, self.config = contents, contents.folder, config
        self.located = locate(contents)
        self.slices = used_weights(self.located, config)
        self.order: Decision = query_key_value_order(
            contents, self.located, config.shape, config.checkpoint.load_query_key_value_order
        )

    @property
    def complete(self) -> bool:
        """Whether the optimizer state can be restored."""
        return self.why_incomplete == ""

    @property
    def why_incomplete(self) -> str:
        """The reason why the optimizer state cannot be restored; "" if it can."""
        return self._state[1]

    @property
    def optimizer(self) -> OptimizerState:
        """The optimizer state; empty if it cannot be restored."""
        return self._state[0]

    @cached_property
    def _state(self) -> tuple[OptimizerState, str]:
        try:
            return restorable_state(self.contents, self.config), ""
        except NotUsable as why:
            return OptimizerState(), str(why)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups are not restored: the schedule and the configuration set them."""
        return []

    @property
    def loss_scale(self) -> dict[str, Any]:
        return self.optimizer.loss_scale

    @property
    def common(self) -> dict[str, Any]:
        """The counters of the run, under the names of deepy's checkpoints."""
        state, iteration = self.contents.common, self.contents.iteration
        samples = state.get("global_samples") or iteration * self.config.batch.train_batch_size
        return {
            "iteration": iteration,
            "consumed_samples": samples,
            "global_steps": state.get("global_steps", iteration),
            "global_samples": samples,
            "skipped_steps": state.get("skipped_steps", 0),
            "lr_scheduler": state.get("lr_scheduler"),
        }

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's weights."""
        dtype: torch.dtype = getattr(torch, next(iter(self.slices.values())).tensors[0][0].dtype)
        return dtype

    def shape(self, name: str) -> list[int]:
        """Return the shape of a weight, joined over all tensor parallel ranks."""
        return list(self.slices[name].shape())

    def size(self, name: str) -> int:
        """Return the bytes of a weight, joined over all tensor parallel ranks."""
        return prod(self.shape(name)) * self.dtype.itemsize

    def is_trained(self, norm: str) -> bool:
        """Return whether the weight of a norm differs from its initial values, which are 1."""
        return bool((_mean([read_tensor(ref) for ref in self.located.weights[norm].tensors[0]]) != 1).any())

    def states(self, name: str) -> dict[str, Any]:
        """Return a weight's optimizer states: the step count, and None for tensors, which `full_tensor` returns."""
        found = self.slices[name]
        keys = [(rank, found.layer, part) for part in found.names for rank in range(len(found.tensors[0]))]
        names = [state for state, parts in self.optimizer.states.items() if all(key in parts for key in keys)]
        counts = state_type(self.config.optimizer.type or "Adam") in COUNTS_STEPS
        return {**({"step": self.optimizer.step} if counts else {}), **dict.fromkeys(names)} if names else {}

    def full_tensor(self, name: str, state: str = "", master: bool = False) -> Tensor:
        """Return a weight, or one of its optimizer states, joined over all tensor parallel ranks.

        master: return the optimizer's fp32 weight, if there is one, instead of the model's.
        """
        return self._join(name, self.slices[name], self._parts(state, master), summed=not state)

    def _parts(self, state: str, master: bool) -> dict[Any, list[Part]]:
        """Return where the optimizer's tensors are; empty for the model's weights."""
        return self.optimizer.states[state] if state else self.optimizer.masters if master else {}

    def _shard(self, name: str, found: Found) -> TensorShard | None:
        """Return how tensor parallel ranks divide a weight; None if their tensors are not slices of it."""
        heads, groups = self.config.shape.num_attention_heads, self.config.shape.num_kv_heads
        halves = halves_of(self.config, name)
        as_they_are = {
            "rows": True,
            "columns": True,
            "gate first": halves == 1,
            "heads": heads == groups and self.order.order != "concatenated",
        }
        if len(found.names) > 1 or not as_they_are.get(found.cut):
            return None
        return TensorShard(1 if found.cut == "columns" else 0, halves, 0, len(found.tensors[0]))

    def _read(self, found: Found, rank: int, parts: dict[Any, list[Part]], rows: range) -> Tensor:
        """Return rows of a rank's tensor, and read nothing else."""
        ref = found.tensors[0][rank]
        flat = parts.get((rank, found.layer, found.names[0])) or ([Part(ref, 0, ref.numel)] * ref.is_contiguous)
        if not flat:
            return read_tensor(ref)[rows.start : rows.stop]
        width = prod(ref.shape[1:])
        return read_parts(within(flat, rows.start * width, rows.stop * width)).view(len(rows), *ref.shape[1:])

    def rows(self, name: str, own: Slice, rows: range, kind: Kind) -> Tensor:
        """Return rows of a rank's slice; see `SavedWeights.rows`. Reads the full weight where its rows are in another
        order, or all tensor parallel ranks have it.

        `kind.unless` is not used: a weight that several tensor parallel ranks have may not be the rounded mean.
        """
        found = self.slices[name]
        if shard := self._shard(name, found):
            parts = self._parts(kind.state, kind.master)
            slices = (
                (Slice(self.shape(name), [shard._replace(rank=rank)]), partial(self._read, found, rank, parts))
                for rank in range(shard.size)
            )
            return put_together(slices, own, rows, self.dtype)
        full = with_rows(self.full_tensor(name, kind.state, kind.master), own.full[0])
        return reduce(rank_slice, own.shards, full)[rows.start : rows.stop]

    def _join(self, name: str, found: Found, parts: dict[Any, list[Part]], summed: bool) -> Tensor:
        def read(item: int) -> list[Tensor]:
            tensors = []
            for rank, ref in enumerate(found.tensors[item]):
                flat = parts.get((rank, found.layer, found.names[item]))
                tensors.append(read_parts(flat).view(ref.shape) if flat else read_tensor(ref))
            return tensors

        if found.cut == "heads":
            return torch.cat([self._group_major(tensor) for tensor in read(0)])
        if found.cut == "copies":
            return _mean(read(0))
        if found.cut == "row bias":
            # With the parallel residual every rank adds its own bias to the sum, so the model's bias is their sum; the
            # optimizer's states of all of them are those of one bias.
            return _sum(read(0)) if summed and self.config.attention.gpt_j_residual else _mean(read(0))
        dimension = 1 if found.cut == "columns" else 0
        halves = halves_of(self.config, name) if len(found.names) == 1 else 1
        joined = [
            join_slices(read(item), TensorShard(dimension, halves, 0, len(found.tensors[item])))
            for item in range(len(found.names))
        ]
        if found.cut == "gate first" and halves == 2:
            return swapped_halves(joined[0])
        return joined[0] if len(joined) == 1 else torch.cat(joined)

    def _group_major(self, rows: Tensor) -> Tensor:
        """Return a rank's rows of queries, keys and values in deepy's order: by group of heads that share a key."""
        shape = self.config.shape
        ranks = self.contents.files.tensor_ranks
        heads, groups = shape.num_attention_heads // ranks, shape.num_kv_heads // ranks
        width = rows.shape[0] // (heads + 2 * groups)
        if self.order.order == "concatenated":
            parts = list(torch.split(rows, [heads * width, groups * width, groups * width]))
        elif heads == groups:
            return rows
        else:
            # In this order, the rows of each key and value head are spread over the query heads that share it.
            share = width * groups // heads  # of each query head, in the keys and in the values
            by_head = rows.reshape(heads, width + 2 * share, *rows.shape[1:])
            parts = [part.flatten(0, 1) for part in torch.split(by_head, [width, share, share], dim=1)]
        return join_heads(parts, groups, heads // groups)


def halves_of(config: Config, name: str) -> int:
    """Return the number of parts of a weight that are divided among the ranks separately: 2 for a value and a gate."""
    return 2 if ".mlp.dense_h_to_4h." in name and config.mlp.activation in GATED else 1


def swapped_halves(rows: Tensor) -> Tensor:
    """(rows, ...): return the second half of the rows, then the first: gate and value in the other order."""
    return torch.cat(rows.chunk(2)[::-1])


def _mean(copies: Sequence[Tensor]) -> Tensor:
    """Return the mean of the ranks' copies, exactly the first one if they are equal, as they should be."""
    if all(torch.equal(copies[0], copy) for copy in copies[1:]):
        return copies[0]
    return torch.stack([copy.float() for copy in copies]).mean(0).to(copies[0].dtype)


def _sum(biases: Sequence[Tensor]) -> Tensor:
    return biases[0] if len(biases) == 1 else torch.stack([bias.float() for bias in biases]).sum(0).to(biases[0].dtype)
