"""What is used of DeepSpeed's engines and of the optimizers that it wraps around others, checked when they are built.

An engine of another version would otherwise fail in the middle of a run, or train something else. A parameter with a
default is passed by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from neoxargs.base.problems import Problem, Problems


class Engine(Protocol):
    """Both engines."""

    module: nn.Module
    optimizer: Any
    basic_optimizer: Any
    lr_scheduler: Any
    device: torch.device

    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def get_lr(self) -> Any: ...
    def train_batch_size(self) -> Any: ...
    def train_micro_batch_size_per_gpu(self) -> Any: ...
    def gradient_accumulation_steps(self) -> Any: ...
    def get_global_grad_norm(self) -> Any: ...
    def was_step_applied(self) -> bool: ...
    def fp16_enabled(self) -> bool: ...
    def dynamic_loss_scale(self) -> bool: ...
    def zero_optimization(self) -> bool: ...
    def zero_optimization_partition_weights(self) -> bool: ...
    def buffered_allreduce_fallback(self, grads: Any = None) -> Any: ...
    def _take_model_step(self, lr_kwargs: Any) -> Any: ...
    def save_checkpoint(self, save_dir: str, *, tag: Any, client_state: Any, save_latest: bool) -> Any: ...
    def load_checkpoint(self, load_dir: str, *, tag: Any, load_module_only: bool) -> Any: ...


class PlainEngine(Engine, Protocol):
    """The engine without a pipeline."""

    def __call__(self, *inputs: Any, **named: Any) -> Any: ...
    def backward(self, loss: Tensor) -> Any: ...
    def step(self) -> Any: ...


class PipelineEngine(Engine, Protocol):
    total_loss: Tensor | None
    _INSTRUCTION_MAP: dict[Any, Callable[..., Any]]

    def is_first_stage(self) -> bool: ...
    def is_last_stage(self) -> bool: ...
    def train_batch(self, data_iter: Any) -> Tensor: ...
    def eval_batch(self, data_iter: Any, *, num_micro_batches: int) -> Any: ...
    def reset_activation_shape(self) -> Any: ...


@runtime_checkable
class Zero12(Protocol):
    """The optimizer of ZeRO-1 and 2."""

    optimizer: Any
    bit16_groups: Any
    ipg_buckets: Any
    round_robin_bit16_groups: Any
    single_partition_of_fp32_groups: Any

    def reduce_ipg_grads(self, comm_dtype: Any = None) -> Any: ...
    def check_overflow(self, partition_gradients: bool = True) -> Any: ...
    def get_all_grad_tensors(self, tensor_list: Any, dtype: Any) -> Any: ...


@runtime_checkable
class Zero3(Protocol):
    """The optimizer of ZeRO-3."""

    optimizer: Any
    ipg_buckets: Any
    fp32_partitioned_groups_flat: Any
    grad_position: Any

    def _DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads(self, dtype: Any) -> Any: ...
    def check_overflow(self, partition_gradients: bool = True) -> Any: ...
    def get_param_id(self, param: Any) -> Any: ...
    def get_local_fp32_grad_for_param(self, param: Any) -> Any: ...
    def get_local_fp32_param(self, param: Any, optim_state_key: Any = None) -> Any: ...


class Bf16(Protocol):
    """The bf16 optimizer that accumulates gradients in fp32."""

    optimizer: Any
    grad_acc_dtype: Any
    clip_grad: float
    bf16_groups: Any
    fp32_groups_gradients: Any
    fp32_groups_flat_partition: Any
    fp32_groups_gradient_flat_partition: Any

    def step(self) -> Any: ...
    def update_lp_params(self) -> Any: ...
    def clear_hp_grads(self) -> Any: ...
    def _lazy_init_hp_params_optimizer_state(self) -> Any: ...


class Fp16(Protocol):
    """The optimizer for half precision without ZeRO."""

    optimizer: Any
    loss_scale_config: Any
    fp16_groups: Any
    fp32_groups: Any

    def step(self) -> Any: ...
    def unscale_and_clip_grads(self, total_norm: Any, apply_scale: bool) -> Any: ...
    def _update_scale(self, skip: bool) -> Any: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


#: Name of a class of DeepSpeed -> what is used of it. Other optimizers are torch's or ours.
USED: dict[str, type] = {
    "DeepSpeedEngine": PlainEngine,
    "PipelineEngine": PipelineEngine,
    "DeepSpeedZeroOptimizer": Zero12,
    "DeepSpeedZeroOptimizer_Stage3": Zero3,
    "BF16_Optimizer": Bf16,
    "FP16_UnfusedOptimizer": Fp16,
}


def require(*built: Any) -> None:
    """Raise Problems unless each engine and optimizer has what is used of it, with parameters as they are passed."""
    found = [fault for each in built for fault in faults(each, USED.get(type(each).__name__))]
    if found:
        from deepspeed import __version__ as version

        what = f"deepspeed {version} does not work with this version of deepy: {'; '.join(found)}"
        raise Problems(Problem(what, hint="install deepspeed 0.19", id="deepspeed-differs", about=()))


def faults(built: Any, protocol: Any) -> Iterator[str]:
    """Yield what an engine or optimizer lacks of a protocol, and what cannot be called as the protocol says."""
    members: dict[str, Any] = {}
    for kind in getattr(protocol, "__mro__", ()):
        if kind.__module__ == __name__:
            members |= dict.fromkeys(vars(kind).get("__annotations__", ()))
            members |= {key: value for key, value in vars(kind).items() if getattr(value, "__module__", "") == __name__}
    for key, wanted in members.items():
        place = f"{type(built).__name__}.{key}"
        if not hasattr(built, key):
            yield f"{place} is missing"
        elif wanted and not _can_be_called(actual := inspect.signature(getattr(built, key)), inspect.signature(wanted)):
            yield f"{place} has the parameters {actual}"


def _can_be_called(actual: inspect.Signature, wanted: inspect.Signature) -> bool:
    """Whether a function with one signature can be called with the arguments of another, apart from `self`."""
    given = [
        each
        for each in list(wanted.parameters.values())[1:]
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    by_name = {each.name: None for each in given if each.default is not each.empty or each.kind is each.KEYWORD_ONLY}
    try:
        actual.bind(*[None for each in given if each.name not in by_name], **by_name)
    except TypeError:
        return False
    return True
