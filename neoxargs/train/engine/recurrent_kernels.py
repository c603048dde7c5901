"""Choose the kernels of recurrent layers: those of other packages, or our own operators in torch.

A kernel runs if the configuration asks for it and its outputs and gradients on this device are those of our operator,
for random numbers in the shapes of a layer. Ranks choose alone: a kernel does not communicate.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.recurrent import excludes_kernels
from neoxargs.train.engine.compiled import LIMITS, distance
from neoxargs.train.model.blocks.mamba import Convolution, Mixer
from neoxargs.train.model.blocks.rwkv import TimeMixing
from neoxargs.train.ops import kernels
from neoxargs.train.ops.convolution import convolve
from neoxargs.train.ops.scan import Inputs, selective_scan
from neoxargs.train.ops.wkv import wkv

#: (kernel, tensors) -> output, or several.
Operator = Callable[..., Tensor | tuple[Tensor, ...]]


class Offer(NamedTuple):
    """A kernel that a package offers."""

    parameter: str
    """That asks for it."""
    package: str
    module: str
    function: str
    layer: type[nn.Module]
    """Whose attribute `kernel` it becomes."""
    fused: Operator
    ours: Operator
    """The operator that it replaces, of the same tensors."""
    examples: Callable[[Any, int], list[Tensor]]
    """(layer, length of the sequence) -> random tensors."""


def _scan(x: Tensor, steps: Tensor, bias: Tensor, into: Tensor, out: Tensor, A: Tensor, D: Tensor) -> Tensor:
    return selective_scan(Inputs(x, steps.float() + bias.float(), into, out, A.float(), D.float(), None))[0]


def _scan_examples(layer: Mixer, seq: int) -> list[Tensor]:
    inner, states = layer.A_log.shape
    tokens = [torch.randn(1, seq, width) for width in (inner, inner)]
    vectors = [torch.randn(1, seq, states) for _ in range(2)]
    return [*tokens, torch.randn(inner), *vectors, -torch.rand(inner, states).exp(), torch.randn(inner)]


def _convolution_examples(layer: Convolution, seq: int) -> list[Tensor]:
    inner, _, taps = layer.weight.shape
    return [torch.randn(1, seq, inner), torch.randn(inner, taps), torch.randn(inner)]


def _wkv(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    heads, width = u.shape
    return wkv(r, k, v, w, u, r.new_zeros(1, heads, width, width, dtype=torch.float32))


def _wkv_examples(layer: TimeMixing, seq: int) -> list[Tensor]:
    heads, width = layer.time_faaaa.shape
    return [*torch.randn(4, 1, seq, heads, width), torch.randn(heads, width)]


OFFERS = (
    Offer(
        "mamba_selective_scan_fusion", "mamba-ssm", "mamba_ssm.ops.selective_scan_interface", "selective_scan_fn",
        Mixer, kernels.scan, _scan, _scan_examples,
    ),
    Offer(
        "mamba_causal_conv_fusion", "causal-conv1d", "causal_conv1d", "causal_conv1d_fn",
        Convolution, kernels.convolve, lambda *inputs: convolve(*inputs)[0], _convolution_examples,
    ),
    Offer(
        "rwkv_wkv_fusion", "flash-linear-attention", "fla.ops.rwkv6", "chunk_rwkv6",
        TimeMixing, kernels.wkv, _wkv, _wkv_examples,
    ),
)  # fmt: skip


def use_kernels(module: nn.Module, config: Config, device: torch.device) -> list[str]:
    """Give this rank's layers the kernels that the configuration asks for; return a line about each.

    Draws none of the run's random numbers.
    """
    lines = []
    for offer in OFFERS:
        layers: list[Any] = [layer for layer in module.modules() if isinstance(layer, offer.layer)]
        if not (layers and config.get(offer.parameter)):
            continue
        kind = next(module.parameters()).dtype
        obstacle = excludes_kernels(config, offer.parameter) or (
            "" if device.type == "cuda" else "this run computes on a CPU"
        )
        kernel, obstacle = (None, obstacle) if obstacle else _checked(offer, layers[0], config, kind, device)
        for layer in layers:
            layer.kernel = kernel
        lines.append(f"{offer.parameter}: {_version(offer) if kernel else f'torch, because {obstacle}'}")
    return lines


def _checked(
    offer: Offer, layer: Any, config: Config, kind: torch.dtype, device: torch.device
) -> tuple[Callable[..., Any] | None, str]:
    """Return a package's kernel, or None and why it is not used."""
    try:
        kernel = getattr(import_module(offer.module), offer.function)
    except Exception as error:  # not only ImportError: packages look for a GPU and for others when they are imported
        return None, f"{offer.package} cannot be imported: {error}"
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        drawn = [x.to(device, kind) for x in offer.examples(layer, config.shape.seq_length)]
        try:
            found = _results(lambda *inputs: offer.fused(kernel, *inputs), drawn)
        except Exception as error:
            return None, f"the kernel of {offer.package} fails: {repr(error).splitlines()[0]}"
        pairs = zip(found, _results(offer.ours, drawn), strict=True)
        worst = float(torch.tensor([distance(one, other) for one, other in pairs]).max())  # NaN if one is
    if not worst <= LIMITS[kind.itemsize]:
        return None, f"the results of {offer.package} differ by {worst:.0%}"
    return kernel, ""


def _version(offer: Offer) -> str:
    package = import_module(offer.module.partition(".")[0])
    return f"{offer.package} {getattr(package, '__version__', '')}".strip()


def _results(operator: Operator, drawn: list[Tensor]) -> list[Tensor]:
    """Return an operator's outputs, and the gradients of its inputs for random ones of the outputs."""
    inputs = [x.detach().requires_grad_() for x in drawn]
    found = operator(*inputs)
    outputs = (found,) if isinstance(found, Tensor) else found
    torch.manual_seed(1)
    directions = [torch.randn(x.shape).to(x) for x in outputs]  # whatever the type and layout in memory of the output
    return [*(x.detach() for x in outputs), *torch.autograd.grad(outputs, inputs, directions)]
