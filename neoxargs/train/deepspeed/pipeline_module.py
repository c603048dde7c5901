"""Access to private attributes of DeepSpeed's PipelineModule: its lists of layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import nn

from neoxargs.facts.layout import NOT_COUNTED


def pipeline_module(count_weights: Callable[[], list[int]], **options: Any) -> Any:
    """Return a PipelineModule that counts weights for `pipe_partition_method: parameters` without building layers.

    count_weights: returns the number of elements of each layer.

    With `type:…`, it counts the two embeddings as one layer.
    """
    from deepspeed.pipe import PipelineModule

    class Counted(PipelineModule):  # type: ignore[misc]
        # DeepSpeed's method builds every layer of the model, with its values, on every rank.
        def _count_layer_params(self) -> list[int]:
            return count_weights()

        def _find_layer_type(self, layername: str) -> list[int]:
            found: list[int] = super()._find_layer_type(layername)
            return [index for index in found if self._layer_specs[index].typename.__name__ != NOT_COUNTED]

    return Counted(**options)


def is_pipeline_module(module: nn.Module) -> bool:
    """Return whether a model is a PipelineModule, without importing DeepSpeed."""
    return hasattr(module, "_layer_specs")


def send_within(group: dist.ProcessGroup) -> None:
    """Let the pipeline engine of this process send between stages within a group, not within that of all ranks.

    NCCL runs the operations of one communicator one after the other: those of all ranks would wait for each other.
    """
    from deepspeed import comm
    from deepspeed.runtime.pipe import p2p

    own = {name: partial(getattr(comm, name), group=group) for name in ("send", "recv")}
    # The module calls the functions of `deepspeed.comm` under this name.
    p2p.dist = SimpleNamespace(**vars(comm) | own)


def layer_specs(module: Any) -> list[Any]:
    """Return the layers of all pipeline stages, as they were given to the PipelineModule."""
    specs: list[Any] = module._layer_specs
    return specs


def stage_specs(module: Any) -> list[Any]:
    """Return the layers of this rank's pipeline stage, as they were given to the PipelineModule."""
    return layer_specs(module)[module._local_start : module._local_stop]


def stage_layers(module: Any) -> list[nn.Module]:
    """Return the modules of `stage_specs`. (`forward_funcs` has a function in place of a layer that is tied.)"""
    specs = zip(stage_specs(module), module.forward_funcs, strict=True)
    return [module.tied_modules[spec.key] if hasattr(spec, "key") else layer for spec, layer in specs]


def exclude_tied_gradients(module: Any) -> None:
    """Tell DeepSpeed's bf16 optimizer that frozen tied weights have no gradients to sum over the stages.

    It reads this attribute of every tied weight, but sets it only for weights that it trains.
    """
    for weight, _ in module.get_tied_weights_and_groups():
        weight._hp_grad = None
