"""`compile_layers`: torch.compile makes the kernels of the transformer layers. Before a run begins, they are compared.

Layers that are alike share their kernels. The collectives of tensor parallel ranks are in the graph
(train/process/collectives.py). torch divides a layer where it cannot compile a call, such as dropout whose masks differ
between ranks. Embedding and output layer are not compiled; the cross entropy is by itself (train/losses).

Compiled layers must have the outputs and gradients of uncompiled ones, or a run does not begin.
torch's compiler has had releases whose kernels computed wrong gradients without an error (pytorch/pytorch#190796,
#193061), and a loss does not show that soon. Each compiled layer, and the cross entropy, gets random numbers in the
shapes of a training step, hence with its kernels, compiled and uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.train.losses.cross_entropy import Loss, gradient_of_slice
from neoxargs.train.model.blocks.parallel import ParallelTransformerBlock
from neoxargs.train.model.blocks.sequential import TransformerBlock
from neoxargs.train.model.documents import LayerInput, needs_document_starts, pack, unpack
from neoxargs.train.model.experts.layer import Experts
from neoxargs.train.ops.fused import should_compile
from neoxargs.train.parallel.layers import Ranks
from neoxargs.train.process.collectives import of_all_ranks

#: The compiler would sort operations for less memory, and move the products that overlap with a collective behind it.
OPTIONS = {"reorder_for_peak_memory": False}
#: Largest distance of a gradient from the uncompiled one relative to that one's length, by bytes of an element (4 may
#: be TF32). Rounding makes 0.001 to 0.05 of it in bf16, a wrong kernel more than 0.5.
LIMITS = {4: 0.01, 2: 0.2}
#: Some gradients are zero but for rounding: each is taken to have at least this share of the layer's longest one.
SHORTEST = 0.01


def compile_layers(module: nn.Module, device: torch.device) -> None:
    """Compile this rank's transformer layers, each when it first runs; raise Problems on a GPU without Triton."""
    if device.type == "cuda" and not should_compile("cuda"):
        what = "compile_layers needs Triton and a C compiler, but this machine lacks at least one of them"
        hint = "install triton and gcc, or remove compile_layers"
        raise Problems(Problem(what, hint=hint, id="layers-cannot-compile", about=("compile_layers",)))
    for layer in module.modules():
        if isinstance(layer, TransformerBlock | ParallelTransformerBlock):
            layer.attention.prepare_for_compilation(device)
            if isinstance(layer.mlp, Experts):  # how many tokens an expert has differs from step to step
                layer.mlp.forward = torch.compiler.disable(layer.mlp.forward)  # type: ignore[method-assign]
            # Sequences have one length, and a recomputed layer must run the same graph.
            layer.compile(dynamic=False, options=OPTIONS)


def check_gradients(
    module: nn.Module, config: Config, samples: int, loss: Loss, ranks: Ranks, device: torch.device
) -> None:
    """Raise Problems if a compiled layer or the compiled cross entropy has another gradient than the uncompiled one.

    Collective: all ranks of the run stop if one of them has found a difference.
    samples: of a micro batch. Draws none of the run's random numbers. Not compared are layers with dropout, whose masks
    differ; layers of experts, of which a part is not compiled; and layers of ZeRO-3, whose weights are on other ranks.
    """
    kind = next(module.parameters()).dtype
    errors: dict[str, float] = {}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for name, layer in _compared(module, config):
            inputs, direction = _random_inputs(config, samples, ranks, kind, device)
            errors |= _distances(name, partial(_results, layer, inputs, direction))
        if loss.compiled:
            tokens, uncompiled = samples * config.shape.seq_length, replace(loss, compiled=False)
            compiled, expected = (gradient_of_slice(each, tokens, kind, device) for each in (loss, uncompiled))
            errors["cross entropy"] = distance(compiled, expected)
    limit = LIMITS[kind.itemsize]
    # On any rank, so that all stop: a rank that went on would wait for the others. NaN too.
    found = of_all_ranks({name: error for name, error in errors.items() if not error <= limit})
    names = dict.fromkeys(name for each in found for name in each)  # in the order of the layers
    if wrong := {name: max(each[name] for each in found if name in each) for name in names}:
        worst = sorted(wrong, key=lambda name: -wrong[name])[:5]
        words = ", ".join(f"{name} by {wrong[name]:.0%}" for name in worst)
        what = f"torch {torch.__version__} compiles layers whose gradients differ from those of the uncompiled: {words}"
        hint = "remove compile_layers, or try another version of torch"
        raise Problems(Problem(what, hint=hint, id="compiled-gradients", about=("compile_layers",)))


def _compared(module: nn.Module, config: Config) -> list[tuple[str, nn.Module]]:
    """Return the compiled layers that are compared."""
    dropout = config.regularization.hidden_dropout or config.regularization.attention_dropout
    if dropout or config.zero_optimization.stage == 3:
        return []
    layers = [(name, layer) for name, layer in module.named_modules() if layer._compiled_call_impl is not None]
    return [(name, layer) for name, layer in layers if not isinstance(layer.mlp, Experts)]


def _random_inputs(
    config: Config, samples: int, ranks: Ranks, kind: torch.dtype, device: torch.device
) -> tuple[LayerInput, Tensor]:
    """Return a layer's input, and the gradient of its output; equal on all tensor parallel ranks."""
    torch.manual_seed(0)
    seq = config.shape.seq_length
    shape = samples, seq // ranks.sequence.size, config.shape.hidden_size
    hidden_BSD, direction_BSD = (torch.randn(shape, device=device, dtype=kind) for _ in range(2))
    needs_starts = needs_document_starts(config.data)
    starts_BS = torch.zeros((samples, seq), dtype=torch.long, device=device) if needs_starts else None
    return pack(hidden_BSD.requires_grad_(), starts_BS), direction_BSD


def _results(layer: nn.Module, inputs: LayerInput, direction_BSD: Tensor) -> dict[str, Tensor]:
    """Return the layer's output, and the gradients of its input, biases and norms.

    Not those of its matrices, which would take more memory: torch itself multiplies them, from tensors on which the
    returned gradients depend too.
    """
    vectors = {name: weight for name, weight in layer.named_parameters() if weight.dim() == 1 and weight.requires_grad}
    output_BSD, _ = unpack(layer(inputs))
    gradients = torch.autograd.grad(output_BSD, [unpack(inputs)[0], *vectors.values()], direction_BSD)
    return {"output": output_BSD.detach()} | dict(zip(("input", *vectors), gradients, strict=True))


def _distances(layer: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, float]:
    """Return the distance of each result of a layer, by the names of layer and tensor."""
    compiled = compute()
    with torch.compiler.set_stance("force_eager"):
        expected = compute()
    vectors = [float(x.float().norm()) for x in expected.values() if x.dim() == 1]
    shortest = SHORTEST * max(vectors, default=0.0)
    return {f"{layer}.{name}": distance(compiled[name], x, shortest) for name, x in expected.items()}


def distance(found: Tensor, expected: Tensor, shortest: float = 0.0) -> float:
    """Return the length of the difference of two tensors relative to that of the second, at least `shortest`."""
    return float((found.float() - expected.float()).norm()) / max(float(expected.float().norm()), shortest)
