"""What torch.compile makes of our modules is compiled for the A100 and the H100: no graph break, kernels that fit.

Nothing of this package is written in Triton itself, so there are no kernels of ours to run in its interpreter. Causal
attention is torch's own kernel on a GPU; the simulated GPU has none, and torch.compile takes it apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.support import simulated_gpu
from tests.support.ranks import run_ranks

pytestmark = simulated_gpu.NEEDS_TRITON

A100, H100 = (8, 0), (9, 0)
SEQ = 256
SHAPE: dict[str, Any] = {"num_attention_heads": 4, "num_kv_heads": 4, "hidden_size": 256, "seq_length": SEQ}
BLOCKS: dict[str, dict[str, Any]] = {
    "GPT-3, dropout": {"hidden_dropout": 0.1, "bias_dropout_fusion": True},
    "Pythia": {"pos_emb": "rotary", "rotary_pct": 0.25, "gpt_j_residual": True, "bias_gelu_fusion": True},
    "Llama 3": {"pos_emb": "rotary", "norm": "rmsnorm", "activation": "swiglu", "num_kv_heads": 2,
                "use_bias_in_mlp": False, "use_bias_in_attn_linear": False},
}  # fmt: skip
DIVIDED = {
    "tp2": BLOCKS["Llama 3"] | {"model_parallel_size": 2},
    "sequence_parallel": BLOCKS["Llama 3"] | {"model_parallel_size": 2, "sequence_parallel": True},
}
#: Name, bytes of shared memory, bytes of code; and whether it fits.
Found = dict[str, list[tuple[str, int, int, bool]]]


def compile_blocks(capability: tuple[int, int], blocks: dict[str, dict[str, Any]]) -> Found:
    """Return the kernels of the forward and backward pass of each block; raise if its graph breaks."""
    from neoxargs.train.model.blocks.sequential import TransformerBlock
    from neoxargs.train.model.shared import Shared
    from neoxargs.train.parallel.layers import Ranks, Weights
    from neoxargs.train.process.mesh import build_mesh
    from tests.support.simulated_gpu import ahead_of_time
    from tests.support.small_gpt import small

    kernels, found = ahead_of_time.start(capability), {}
    for name, changes in blocks.items():
        torch._dynamo.reset()
        config = small(**SHAPE | changes)
        ranks = Ranks(build_mesh(config).tensor, sequence_parallel=config.parallel.sequence_parallel)
        block = TransformerBlock(config, Weights(ranks=ranks), Shared()).to("cuda", torch.bfloat16)
        block.attention.prepare_for_compilation(torch.device("cuda", 0))  # as `compile_layers` does
        shape = 2, SEQ // ranks.sequence.size, SHAPE["hidden_size"]
        hidden = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = len(kernels)
        output = torch.compile(block, fullgraph=True)(hidden)
        between = len(kernels)
        output.sum().backward()
        for part, compiled in (("forward", kernels[before:between]), ("backward", kernels[between:])):
            found[f"{name}, {part}"] = [(*kernel, kernel.fits(capability)) for kernel in compiled]
    return found


def assert_compiled(kernels: list[tuple[str, int, int, bool]], name: str) -> None:
    assert kernels, name
    for kernel in kernels:
        _, _, code, fits = kernel
        assert code, (name, kernel)
        assert fits, (name, kernel)


@pytest.mark.parametrize(
    ("world", "blocks", "capability"),
    [(1, BLOCKS, A100), (2, DIVIDED, H100)],
    ids=["one rank, A100", "tensor parallel, H100"],
)
def test_a_block_is_one_graph(world: int, blocks: dict[str, dict[str, Any]], capability: tuple[int, int]) -> None:
    for found in run_ranks(compile_blocks, world, capability, blocks, timeout=800, on=simulated_gpu.MACHINE):
        assert list(found) == [f"{name}, {part}" for name in blocks for part in ("forward", "backward")]
        for name, kernels in found.items():
            assert_compiled(kernels, name)


SPARSE = {"block": 16, "different_layout_per_head": True, "num_random_blocks": 1}
MIXED = {"pos_emb": "alibi", "sliding_window_width": 100, "reset_attention_mask": True,
         "attention_config": ["bigbird"] * 2, "sparsity_config": SPARSE}  # fmt: skip
#: What positions determine, dimension of a head, precision, query heads that share a key.
MASKED: dict[str, tuple[dict[str, Any], int, torch.dtype, int]] = {
    "ALiBi": ({"pos_emb": "alibi"}, 64, torch.bfloat16, 1),
    "everything": (MIXED, 128, torch.float16, 2),
    "heads of 80": ({"reset_attention_mask": True, "pos_emb": "rotary"}, 80, torch.bfloat16, 1),
    "heads of 96": ({"sliding_window_width": 100}, 96, torch.bfloat16, 2),
    "widest heads": ({"sliding_window_width": 100}, 256, torch.bfloat16, 1),
    "widest heads, fp32": ({"pos_emb": "alibi"}, 256, torch.float32, 1),
}


#: The kinds that are compiled for the H100 too: all rules at once, and the widest heads.
LARGEST = ("everything", "widest heads", "widest heads, fp32")


def compile_attention(capability: tuple[int, int], kinds: Sequence[str]) -> Found:
    """Return the kernels of flex_attention for the forward and backward pass of each of these kinds of mask."""
    from neoxargs.train.model.attention import SelfAttention
    from neoxargs.train.model.documents import document_starts
    from neoxargs.train.model.shared import Shared
    from neoxargs.train.parallel.layers import Weights
    from tests.support.simulated_gpu import ahead_of_time
    from tests.support.small_gpt import small

    kernels, found = ahead_of_time.start(capability), {}
    starts = document_starts(torch.arange(2 * SEQ, device="cuda").view(2, SEQ) % 50, 5)
    for name in kinds:
        changes, width, precision, shared = MASKED[name]
        before, hidden = len(kernels), 4 * width
        shape = SHAPE | {"hidden_size": hidden, "num_kv_heads": 4 // shared}
        layer = SelfAttention(small(**shape | changes), Weights(), Shared()).to("cuda", precision)
        inputs = torch.randn(2, SEQ, hidden, device="cuda", dtype=precision, requires_grad=True)
        layer(inputs, starts).sum().backward()
        found[name] = [(*kernel, kernel.fits(capability)) for kernel in kernels[before:]]
    return found


@pytest.mark.parametrize(("capability", "kinds"), [(A100, [*MASKED]), (H100, LARGEST)], ids=["A100", "H100"])
def test_masked_attention_is_a_kernel_that_fits(capability: tuple[int, int], kinds: Sequence[str]) -> None:
    [found] = run_ranks(compile_attention, 1, capability, kinds, timeout=800, on=simulated_gpu.MACHINE)
    assert list(found) == list(kinds)
    for name, kernels in found.items():
        assert_compiled(kernels, name)
        names = [kernel for kernel, *_ in kernels if "flex_attention" in kernel]
        assert {"backward" in kernel for kernel in names} == {False, True}, (name, names)


def break_graphs() -> list[str]:
    """Return what torch.compile says of a block that branches on a number of a tensor, and of one that breaks."""
    from neoxargs.train.model.blocks.sequential import TransformerBlock
    from neoxargs.train.model.shared import Shared
    from neoxargs.train.parallel.layers import Weights
    from tests.support.simulated_gpu import ahead_of_time
    from tests.support.small_gpt import small

    ahead_of_time.start(H100)
    block = TransformerBlock(small(**SHAPE), Weights(), Shared()).to("cuda", torch.bfloat16)
    hidden = torch.randn(2, SEQ, SHAPE["hidden_size"], device="cuda", dtype=torch.bfloat16)
    forward, said = TransformerBlock.forward, []
    errors = torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError

    def reads(block: Any, x: torch.Tensor) -> Any:
        return forward(block, x) * (2.0 if x.sum().item() > 0 else 1.0)

    def breaks(block: Any, x: torch.Tensor) -> Any:
        torch._dynamo.graph_break()
        return forward(block, x)

    for fault in (reads, breaks):
        torch._dynamo.reset()
        with patch.object(TransformerBlock, "forward", fault), pytest.raises(errors) as caught:
            torch.compile(block, fullgraph=True)(hidden)
        said.append(str(caught.value))
    return said


def test_a_graph_break_is_found() -> None:
    [(read, broken)] = run_ranks(break_graphs, 1, timeout=400, on=simulated_gpu.MACHINE)
    assert "data-dependent" in read
    assert "graph_break" in broken


def too_much() -> tuple[str, int, int, bool]:
    """Return the kernel of attention with blocks of 128 tokens of 256 numbers, and three of them on their way."""
    from torch.nn.attention.flex_attention import flex_attention

    from tests.support.simulated_gpu import ahead_of_time

    kernels = ahead_of_time.start(A100)
    inputs = torch.randn(3, 1, 1, SEQ, 256, device="cuda", dtype=torch.bfloat16)
    options = {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 3}
    torch.compile(flex_attention)(*inputs, kernel_options=options)
    return (*kernels[-1], kernels[-1].fits(A100))


def test_a_kernel_that_needs_too_much_shared_memory_is_found() -> None:
    [(name, shared, code, fits)] = run_ranks(too_much, 1, timeout=400, on=simulated_gpu.MACHINE)
    assert "flex_attention" in name
    assert code
    assert shared > 163 * 1024
    assert not fits


def compile_dropout() -> list[tuple[str, int, int, bool]]:
    """Return the kernels that `bias_dropout_fusion` makes."""
    from neoxargs.train.ops.fused import DropoutAdd
    from tests.support.simulated_gpu import ahead_of_time

    kernels = ahead_of_time.start(A100)
    x, residual = torch.randn(2, 2, SEQ, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    DropoutAdd(0.1, fused=True)(x, residual).sum().backward()
    return [(*kernel, kernel.fits(A100)) for kernel in kernels]


def test_dropout_and_addition_are_one_kernel() -> None:
    [kernels] = run_ranks(compile_dropout, 1, timeout=400, on=simulated_gpu.MACHINE)
    assert_compiled(kernels, "dropout")
    forward = {name for name, *_ in kernels if "backward" not in name}  # each in several block sizes
    assert len(forward) == 1, kernels


#: Groups of heads, queries of a group, head dimension, rotated dimensions.
ROTATIONS = {"Pythia 1.4B": (16, 1, 128, 32), "Llama 2 7B": (32, 1, 128, 128), "Llama 3.2 1B": (8, 4, 64, 64)}


def compile_rotations() -> Found:
    """Return the kernels that `rope_fusion` makes, for the forward and backward pass of each model's heads."""
    from neoxargs.train.ops.rotary import rotate_heads
    from tests.support.simulated_gpu import ahead_of_time

    kernels, found = ahead_of_time.start(A100), {}
    torch.autograd.set_multithreading_enabled(False)  # the backward pass stays where the settings of `start` hold
    for name, (groups, queries, dim, width) in ROTATIONS.items():
        torch._dynamo.reset()
        shape, counts = (2, SEQ, groups, queries + 2, dim), (queries, 1, 1)
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before, angles = len(kernels), torch.randn(2, SEQ, width // 2, device="cuda")
        parts = rotate_heads(x, (angles[0], angles[1]), counts, fused=True)
        between = len(kernels)
        torch.autograd.backward(parts, [torch.randn_like(part) for part in parts])
        for part, compiled in (("forward", kernels[before:between]), ("backward", kernels[between:])):
            found[f"{name}, {part}"] = [(*kernel, kernel.fits(A100)) for kernel in compiled]
    return found


def test_queries_and_keys_are_each_rotated_in_one_kernel() -> None:
    """Each is compiled in two block sizes. Queries and keys of the same shape share a kernel."""
    [found] = run_ranks(compile_rotations, 1, timeout=400, on=simulated_gpu.MACHINE)
    assert list(found) == [f"{name}, {part}" for name in ROTATIONS for part in ("forward", "backward")]
    for name, kernels in found.items():
        assert_compiled(kernels, name)
        shapes = 2 if "3.2" in name else 1
        assert len(kernels) == 2 * shapes, (name, kernels)


def compile_cross_entropy() -> list[tuple[str, int, int, bool]]:
    """Return the kernels of the losses and gradients of a slice of tokens."""
    from neoxargs.train.losses.cross_entropy import _losses_and_gradient
    from tests.support.simulated_gpu import ahead_of_time

    kernels = ahead_of_time.start(A100)
    logits = torch.randn(2560, 50304, device="cuda", dtype=torch.bfloat16)
    label = torch.zeros(2560, 1, device="cuda", dtype=torch.long)
    counted = label == 0
    torch.compile(_losses_and_gradient, fullgraph=True)(logits, label, counted, counted, 50257, 0.0, 0.0)
    return [(*kernel, kernel.fits(A100)) for kernel in kernels]


def test_the_cross_entropy_is_at_most_two_kernels() -> None:
    [found] = run_ranks(compile_cross_entropy, 1, timeout=800, on=simulated_gpu.MACHINE)
    assert_compiled(found, "cross entropy")
    assert len({name for name, *_ in found}) <= 2, found
