"""Activation checkpointing: keep the inputs of groups of layers and recompute the rest in the backward pass.

(`checkpoint_activations: selective` is in ops/selective.py.)

torch's checkpoint function is used, or DeepSpeed's for `deepspeed_activation_checkpointing`. Partitioning, contiguous
buffers, host memory and timing are added around torch's, on CPUs and GPUs. DeepSpeed's own implementations of these run
out of buffer space in a pipeline and during evaluation, and lose inputs that are not partitioned (DeepSpeed 0.19.6).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from neoxargs.config.config import Config
from neoxargs.registry.activations import Recompute
from neoxargs.train.deepspeed import patches
from neoxargs.train.engine.activation_store import Store
from neoxargs.train.process.mesh import ALONE, Mesh, Mpu


def checkpoint_interval(options: Recompute) -> int:
    """Return the number of layers per recomputed group; 0 means that no layer is recomputed as a whole."""
    return options.checkpoint_num_layers if options.checkpoint_activations is True else 0


def checkpoint_function(config: Config, mesh: Mesh, reentrant: bool) -> Callable[..., Any]:
    """Return the checkpoint function: it takes a part of the model and its inputs, and returns its outputs.

    reentrant: only for ZeRO-3, which frees gathered weights between the passes; torch's non-reentrant checkpointing
    reports that as an error. Reentrant checkpointing computes no gradients of a part whose inputs need none.
    """
    options = config.recompute
    run: Callable[..., Any] = partial(checkpoint, use_reentrant=reentrant)
    if options.partition_activations or options.contiguous_checkpointing or options.checkpoint_in_cpu:
        slots = config.activation_checkpointing.number_checkpoints or config.shape.num_layers
        repeated = ALONE if config.parallel.sequence_parallel else mesh.tensor  # each shard exists on one rank
        run = Store(options, repeated, slots).wrap(run)
    elif options.deepspeed_activation_checkpointing:
        run = _deepspeed_checkpoint(mesh)
    if options.profile_backward or options.synchronize_each_layer:
        first = mesh.tensor.rank == mesh.data.rank == 0
        return Timed(run, f"stage {mesh.pipe.rank}" if options.profile_backward and first else "")
    return run


def _deepspeed_checkpoint(mesh: Mesh) -> Callable[..., Any]:
    """Return DeepSpeed's checkpoint function, whose settings are globals of its module."""
    import deepspeed

    patches.no_streams_on_cpu()
    # Without the pipeline axis, which `Mpu` does not accept.
    deepspeed.checkpointing.configure(Mpu(Mesh(tensor=mesh.tensor, data=mesh.data)))
    run: Callable[..., Any] = deepspeed.checkpointing.checkpoint
    return run


class Timed:
    """Checkpoint function that synchronizes the device before and after each pass and prints the duration of both.

    name: names the part in the printed lines; "" prints nothing.
    """

    def __init__(self, run: Callable[..., Any], name: str) -> None:
        self.run, self.name = run, name

    def __call__(self, part: Callable[..., Any], *inputs: Any) -> Any:
        began = _now()
        outputs = self.run(part, *inputs)
        forward = _now() - began
        first, last = _differentiable(inputs), _differentiable(outputs)
        # None in evaluation, which has no backward pass to time.
        if first is not None and last is not None:
            self._time_backward(first, last, forward)
        return outputs

    def _time_backward(self, first: Tensor, last: Tensor, forward: float) -> None:
        """Time the backward pass, from the gradient of the part's output to the gradient of its input."""
        began = 0.0

        def begin(_: Tensor) -> None:
            nonlocal began
            began = _now()

        def end(_: Tensor) -> None:
            backward = _now() - began
            if self.name:
                times = f"forward {forward * 1e3:.2f} ms, recompute and backward {backward * 1e3:.2f} ms"
                print(f"recomputed part of {self.name}: {times}", flush=True)

        last.register_hook(begin)
        first.register_hook(end)


def _now() -> float:
    # Kernels run asynchronously: without this, the clock would measure how long they take to launch.
    get_accelerator().synchronize()
    return time.perf_counter()


def _differentiable(values: Any) -> Tensor | None:
    """Return the first tensor that requires a gradient, if any."""
    several = values if isinstance(values, tuple) else (values,)
    return next((v for v in several if isinstance(v, Tensor) and v.requires_grad and torch.is_grad_enabled()), None)
