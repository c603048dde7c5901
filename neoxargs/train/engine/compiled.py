"""`compile_layers`: torch.compile makes the kernels of the transformer layers.

Layers that are alike share their kernels. The collectives of tensor parallel ranks are in the graph
(train/process/collectives.py). torch divides a layer where it cannot compile a call, such as dropout whose masks differ
between ranks. Embedding and output layer are not compiled; the cross entropy is by itself (train/losses).
"""

from __future__ import annotations

import torch
from torch import nn

from neoxargs.base.problems import Problem, Problems
from neoxargs.train.model.blocks.parallel import ParallelTransformerBlock
from neoxargs.train.model.blocks.sequential import TransformerBlock
from neoxargs.train.model.experts.layer import Experts
from neoxargs.train.ops.fused import should_compile

#: The compiler would sort operations for less memory, and move the products that overlap with a collective behind it.
OPTIONS = {"reorder_for_peak_memory": False}


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
