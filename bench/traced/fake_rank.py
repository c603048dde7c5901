"""A rank of a run on GPUs, in one process of a machine without any.

Process groups are torch's fake ones, which send nothing. Tensors are on torch's meta device: operators return tensors
with a shape and no values, as fast for a model of 175 billion parameters as for a small one. Where torch or the model
computes differently on a GPU, a stand-in calls what a GPU would run, and torch's own autograd formula of that operator
says what it keeps:

- attention: the flash kernel in 16 bits without a mask, else the memory-efficient one, as torch chooses on an A100 or
  H100. flex_attention, which keeps the same tensors (inputs, output, logarithm of the softmax's sum), counts as flash;
- dropout keeps a mask of one byte per number, and RMSNorm is one operator, with the kernels of LayerNorm.

More stand-ins replace what does not exist: initial weights, the seeds of dropout, which differ between tensor parallel
ranks, and addresses, by which selective recomputation recognises tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.accelerator import real_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from neoxargs.config.config import Config
from neoxargs.facts.attention_kernels import Place
from neoxargs.train.model import attention, embedding, scores
from neoxargs.train.ops import chunks, fused, rotary, sdpa
from neoxargs.train.parallel import layers
from neoxargs.train.process import setup
from neoxargs.train.process.mesh import Mesh, build_mesh

DEVICE = torch.device("meta")


@contextmanager
def fake_rank(rank: int, config: Config) -> Iterator[Mesh]:
    """Make this process a rank of `world_size` ranks on GPUs. Only once in a process: caches keep its tensors."""
    world = config.parallel.world_size
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world), "DS_ACCELERATOR": "cpu"}
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    setup.init_distributed("fake")
    mesh = build_mesh(config)
    with ExitStack() as stack:
        for context in (setup.suppress_output(), *_stand_ins(), DEVICE, NoValues()):
            stack.enter_context(context)
        yield mesh
    dist.destroy_process_group()


class Accelerator(CPU_Accelerator):  # type: ignore[misc]
    """DeepSpeed's accelerator object of a CPU, with tensors on the meta device."""

    def device_name(self, device_index: int | None = None) -> str:
        return str(DEVICE)

    def current_device_name(self) -> str:
        return str(DEVICE)


class NoValues(TorchDispatchMode):
    """Run what the meta device has no operators for: messages, and copies to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            # What all ranks exchange is divided among them, and may be nothing.
            size = 0 if func._overloadpacket.__name__ == "alltoall_base_" else 1
            return func(*_as_small_as_possible(args, size), **kwargs)
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device="cpu")
        return func(*args, **kwargs)


def _as_small_as_possible(args: Any, size: int) -> Any:
    """Replace the tensors of a message, which nobody reads; of a reduce-scatter torch checks how many fit in one."""
    least = max(1, min((x.numel() for x in tree_leaves(args) if isinstance(x, Tensor)), default=1))
    return tree_map_only(Tensor, lambda x: torch.empty(size * x.numel() // least, device="cpu"), args)


def _stand_ins() -> Iterator[Any]:
    yield patch.object(real_accelerator, "ds_accelerator", Accelerator())
    yield patch.object(F, "scaled_dot_product_attention", fused_attention)
    yield patch.object(F, "rms_norm", rms_norm)
    yield patch.object(rotary, "should_compile", lambda device: True)
    yield patch.object(rotary, "_compiled", lambda: one_kernel)
    yield patch.object(F, "dropout", dropout)
    yield patch.object(
        scores.Scores, "in_flex", lambda _self, query, key, value, *_: fused_attention(query, key, value)
    )
    yield patch.object(
        chunks.Chunks, "attend", lambda _self, query, key, value, *_: FlexOfChunks.apply(query, key, value)
    )
    yield patch.object(dist, "batch_isend_irecv", one_by_one)
    yield patch.object(attention, "place", lambda device: Place())
    yield patch.object(sdpa, "has_gqa_kernel", lambda query, masked: not masked and query.dtype != torch.float32)
    for module in (fused, scores, embedding):
        yield patch.object(module, "different_on_each_rank", lambda axis, device: nullcontext())
    yield patch.object(layers, "initial_values", lambda shape, *_, **__: torch.empty(shape, dtype=torch.float32))
    yield patch.object(torch, "is_autocast_enabled", lambda *_: False)
    yield patch.object(Tensor, "tolist", lambda tensor: [0] * tensor.numel())
    yield patch.object(Tensor, "data_ptr", address)


def address(tensor: Tensor) -> int:
    """Return a number that only tensors of the same memory share; the meta device has address 0 for all."""
    return int(tensor.untyped_storage()._cdata) + tensor.storage_offset() * tensor.element_size()


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Call the kernel that torch would choose on a GPU."""
    aten = torch.ops.aten
    if attn_mask is None and query.dtype != torch.float32:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    mask = None if attn_mask is None else _as_bias(attn_mask, query, key)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )[0]


def _as_bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    return mask.expand(*query.shape[:3], key.shape[2])


class FlexOfChunks(torch.autograd.Function):
    """flex_attention of two chunks in a ring, also differentiable in the log-sum-exp, as the flash kernel is not."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        context, lse = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)[:2]
        ctx.save_for_backward(query, key, value, context, lse)
        return context, lse

    @staticmethod
    def backward(ctx: Any, of_context: Tensor, of_lse: Tensor) -> tuple[Tensor, ...]:
        query, key, value, context, lse = ctx.saved_tensors
        length, seed = query.shape[2], torch.empty(0)
        backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
        return backward(  # type: ignore[no-any-return]
            of_context, query, key, value, context, lse, None, None, length, length, 0.0, False, seed, seed
        )


def one_by_one(operations: list[dist.P2POp]) -> list[dist.Work | None]:
    """Send and receive each message by itself, as torch does where a backend cannot batch; the meta device has none."""
    return [each.op(each.tensor, each.peer, each.group) for each in operations]


def one_kernel(place: Tensor, x: Tensor, *_: Any) -> None:
    """Read x and write to `place`, as the compiled rotation does."""
    place.copy_(x)


def rms_norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    return RmsNorm.apply(x, shape, weight)  # type: ignore[no-any-return]


class RmsNorm(torch.autograd.Function):
    """LayerNorm's kernels, which read and write the same as RMSNorm's but for the mean, which is not kept.

    torch's fused RMSNorm exists for CUDA only; the meta device gets the operations that it replaces.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: list[int], weight: Tensor | None) -> Tensor:
        normed, _, deviation = torch.native_layer_norm(x, shape, weight, None, 0.0)
        ctx.save_for_backward(x, weight, deviation)
        ctx.shape = shape
        return normed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, deviation = ctx.saved_tensors
        wanted = [True, weight is not None, False]
        backward = torch.ops.aten.native_layer_norm_backward
        of_x, of_weight, _ = backward(gradient, x, ctx.shape, deviation, deviation, weight, None, wanted)
        return of_x, None, of_weight


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x
