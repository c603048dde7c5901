"""What is used of DeepSpeed's engines and of the optimizers that it wraps around others, checked when they are built.

An engine of another version would otherwise fail in the middle of a run, or train something else. A parameter with a
default is passed by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neoxargs.base.problems import Problem, Problems


class Engine(Protocol):
    """Both engines."""

    module: nn.Module
    optimizer: Any
    basic_optimizer: Any
    lr_scheduler: Any
    device: torch.device
    data_parallel_group: dist.ProcessGroup | None
    checkpoint_engine: Any
    save_zero_checkpoint: Any
    save_non_zero_checkpoint: Any
    enable_backward_allreduce: bool
    has_moe_layers: bool
    gradient_average: bool
    global_rank: int
    global_steps: int
    global_samples: int
    micro_steps: int
    skipped_steps: int
    monitor: Any
    tput_timer: Any
    _config: Any
    _global_grad_norm: Any

    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def get_lr(self) -> Any: ...
    def train_batch_size(self) -> Any: ...
    def set_train_batch_size(self, train_batch_size: int) -> Any: ...
    def train_micro_batch_size_per_gpu(self) -> Any: ...
    def gradient_accumulation_steps(self) -> Any: ...
    def gradient_clipping(self) -> Any: ...
    def postscale_gradients(self) -> Any: ...
    def gradient_predivide_factor(self) -> Any: ...
    def get_global_grad_norm(self) -> Any: ...
    def was_step_applied(self) -> bool: ...
    def fp16_enabled(self) -> bool: ...
    def dynamic_loss_scale(self) -> bool: ...
    def dynamic_loss_scale_args(self) -> Any: ...
    def zero_optimization(self) -> bool: ...
    def zero_optimization_stage(self) -> Any: ...
    def zero_optimization_partition_weights(self) -> bool: ...
    def zero_offload_optimizer(self) -> Any: ...
    def zero_nvme_offload_optimizer(self) -> Any: ...
    def steps_per_print(self) -> Any: ...
    def timers(self, name: str) -> Any: ...
    def wall_clock_breakdown(self) -> bool: ...
    def flops_profiler_enabled(self) -> Any: ...
    def flops_profiler_profile_step(self) -> Any: ...
    def buffered_allreduce_fallback(self, grads: Any = None) -> Any: ...
    def clip_fp32_gradients(self) -> Any: ...
    def _take_model_step(self, lr_kwargs: Any) -> Any: ...
    def use_node_local_storage(self) -> Any: ...
    def _get_ckpt_name(self, checkpoints_path: str, tag: str) -> str: ...
    def _get_zero_ckpt_name(self, checkpoints_path: str, tag: str) -> str: ...
    def save_checkpoint(
        self, save_dir: str, *, tag: str, client_state: Any, save_latest: bool, exclude_frozen_parameters: bool = False
    ) -> Any: ...
    def load_checkpoint(
        self,
        load_dir: str,
        *,
        tag: str,
        load_optimizer_states: bool,
        load_lr_scheduler_states: bool,
        load_module_only: bool,
    ) -> Any: ...


class PlainEngine(Engine, Protocol):
    """The engine without a pipeline."""

    def __call__(self, *inputs: Any, **named: Any) -> Any: ...
    def backward(self, loss: Tensor) -> Any: ...
    def step(self) -> Any: ...


@runtime_checkable
class PipelineEngine(Engine, Protocol):
    loss: Any
    total_loss: Tensor | None
    pipeline_enable_backward_allreduce: bool
    _INSTRUCTION_MAP: dict[Any, Callable[..., Any]]

    def is_first_stage(self) -> bool: ...
    def is_last_stage(self) -> bool: ...
    def train_batch(self, data_iter: Any) -> Tensor: ...
    def eval_batch(self, data_iter: Any, *, num_micro_batches: int) -> Any: ...
    def reset_activation_shape(self) -> Any: ...
    def _start_timers(self, timer_names: Any) -> Any: ...


@runtime_checkable
class Zero12(Protocol):
    """The optimizer of ZeRO-1 and 2."""

    optimizer: Any
    overflow: bool
    loss_scale: float
    loss_scaler: Any
    dtype: torch.dtype
    gradient_accumulation_dtype: torch.dtype
    communication_data_type: torch.dtype
    partition_gradients: bool
    cpu_offload: bool
    bit16_groups: Any
    ipg_buckets: Any
    round_robin_bit16_groups: Any
    round_robin_gradients: bool
    _param_slice_mappings: Any
    single_partition_of_fp32_groups: Any
    real_dp_process_group: Any

    def step(self) -> Any: ...
    def reduce_ipg_grads(self, comm_dtype: Any = None) -> Any: ...
    def check_overflow(self, partition_gradients: bool = True) -> Any: ...
    def _update_scale(self, has_overflow: bool) -> Any: ...
    def _link_all_hp_params(self) -> Any: ...
    def _create_param_mapping(self) -> Any: ...
    def get_all_grad_tensors(self, tensor_list: Any, dtype: Any) -> Any: ...
    def get_gradient_for_reduction(self, param: Any) -> Any: ...
    def setup_buckets(self) -> Any: ...
    def copy_grads_in_partition(self, param: Any) -> Any: ...


@runtime_checkable
class Zero3(Protocol):
    """The optimizer of ZeRO-3."""

    optimizer: Any
    overflow: bool
    loss_scale: float
    loss_scaler: Any
    ipg_buckets: Any
    fp16_groups: Any
    fp32_partitioned_groups_flat: Any
    grad_position: Any
    sub_group_process_groups: Any

    def step(self) -> Any: ...
    def _update_scale(self, has_overflow: bool) -> Any: ...
    def _DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads(self, dtype: Any) -> Any: ...
    def check_overflow(self, partition_gradients: bool = True) -> Any: ...
    def get_param_id(self, param: Any) -> Any: ...
    def get_local_fp32_grad_for_param(self, param: Any) -> Any: ...
    def get_local_fp32_param(self, param: Any, optim_state_key: Any = None) -> Any: ...
    def checkpoint_event_prologue(self) -> Any: ...
    def checkpoint_event_epilogue(self) -> Any: ...
    def _get_param_partition_rank(self, param: Any) -> int: ...
    def _swappable_optimizer_subgroup(self, sub_group_id: int) -> Any: ...
    def _optimizer_states_and_gradient_swap_in(self, sub_group_id: int) -> Any: ...
    def _optimizer_states_and_gradient_swap_out(self, sub_group_id: int) -> Any: ...
    def _reassign_or_swap_out_partitioned_parameters(self, sub_group_id: int) -> Any: ...


@runtime_checkable
class Bf16(Protocol):
    """The bf16 optimizer that accumulates gradients in fp32."""

    optimizer: Any
    grad_acc_dtype: Any
    clip_grad: float
    bf16_groups: Any
    fp32_groups_gradients: Any
    fp32_groups_gradients_flat: Any
    fp32_groups_flat_partition: Any
    fp32_groups_gradient_flat_partition: Any
    real_dp_process_group: Any
    _grad_acc_hooks: Any

    def step(self) -> Any: ...
    def update_lp_params(self) -> Any: ...
    def clear_hp_grads(self) -> Any: ...
    def _update_hp_grad(self, lp: Any, group_idx: Any, param_idx: Any, clear_lp_grads: Any) -> Any: ...
    def _lazy_init_hp_params_optimizer_state(self) -> Any: ...


@runtime_checkable
class Fp16(Protocol):
    """The optimizer for half precision without ZeRO."""

    optimizer: Any
    loss_scale_config: Any
    fp16_groups: Any
    fp32_groups: Any
    _global_grad_norm: Any

    def step(self) -> Any: ...
    def unscale_and_clip_grads(self, total_norm: Any, apply_scale: bool) -> Any: ...
    def _update_scale(self, skip: bool) -> Any: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


@runtime_checkable
class Linked(Protocol):
    """A trained weight of `Zero12` or `Bf16`, with the place of its elements in this rank's partition, or None."""

    _hp_mapping: Any


@runtime_checkable
class Partitioned(Protocol):
    """A trained weight of `Zero3`: empty between the passes of its layer, with a shard on every rank."""

    _z3_optimizer: Zero3
    ds_tensor: Any
    ds_numel: int
    ds_shape: torch.Size


#: Name of a class of DeepSpeed -> what is used of it. Other optimizers are torch's or ours.
USED: dict[str, type] = {
    "DeepSpeedEngine": PlainEngine,
    "PipelineEngine": PipelineEngine,
    "DeepSpeedZeroOptimizer": Zero12,
    "DeepSpeedZeroOptimizer_Stage3": Zero3,
    "BF16_Optimizer": Bf16,
    "FP16_UnfusedOptimizer": Fp16,
}


#: Name of an optimizer of DeepSpeed -> what is used of the weights that it trains.
WEIGHTS: dict[str, type] = {
    "DeepSpeedZeroOptimizer": Linked,
    "DeepSpeedZeroOptimizer_Stage3": Partitioned,
    "BF16_Optimizer": Linked,
}


def require(engine: Any) -> None:
    """Raise Problems unless an engine and, if it trains, its optimizer and weights have what is used of them.

    Their methods must have the parameters that are passed.
    """
    kinds = [(engine, USED.get(type(engine).__name__))]
    if engine.basic_optimizer is not None:
        kinds.append((engine.optimizer, USED.get(type(engine.optimizer).__name__)))
        of_weight = WEIGHTS.get(type(engine.optimizer).__name__)
        kinds += [(weight, of_weight) for weight in engine.module.parameters() if weight.requires_grad][:1]
    found = [fault for built, kind in kinds for fault in faults(built, kind)]
    if found:
        from deepspeed import __version__ as version

        what = f"deepspeed {version} does not work with this version of deepy: {'; '.join(found)}"
        hint = "run pip install 'deepspeed>=0.19.3,<0.20'"
        raise Problems(Problem(what, hint=hint, id="deepspeed-differs", about=()))


def replace(built: Any, **methods: Callable[..., Any]) -> None:
    """Replace methods of one engine or optimizer, which has to have them."""
    assert all(hasattr(built, name) for name in methods)
    vars(built).update(methods)


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Within this, attributes of an object, a class or a module have other values."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def set_batch_size(engine: Engine, samples: int) -> None:
    """Give the next steps of an engine another batch size, by their number of micro batches."""
    if samples != engine.train_batch_size():
        engine.set_train_batch_size(samples)
        # Without a pipeline, a step ends where this counter is a multiple of the number of micro batches.
        engine.micro_steps = 0


def with_samples_of_all_ranks(json: dict[str, Any], context_ranks: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration with the batch size that it expects: micro batches x accumulation x all ranks
    over which it sums gradients, of which `context_ranks` have the same samples."""
    name = "train_batch_size"
    return {**json, name: json[name] * context_ranks} if name in json and context_ranks > 1 else json


def count_samples_once(engine: Engine, context_ranks: int) -> None:
    """Let an engine built with `with_samples_of_all_ranks` count each sample once from now on."""
    if context_ranks > 1:
        size, set_size = engine.train_batch_size, engine.set_train_batch_size
        replace(
            engine,
            train_batch_size=lambda: size() // context_ranks,
            set_train_batch_size=lambda samples: set_size(samples * context_ranks),
        )
        engine.tput_timer.batch_size //= context_ranks


def set_gradient_averaging(engine: Engine, on: bool) -> None:
    """Let an engine average gradients over the data parallel ranks, or not."""
    if isinstance(engine, PipelineEngine):  # which always has `enable_backward_allreduce` off
        engine.pipeline_enable_backward_allreduce = on
    else:
        engine.enable_backward_allreduce = on


def averages_gradients(engine: Engine) -> bool:
    """Whether it does; 1-bit optimizers switch that off at a step."""
    return (
        engine.pipeline_enable_backward_allreduce
        if isinstance(engine, PipelineEngine)
        else engine.enable_backward_allreduce
    )


def faults(built: Any, protocol: Any) -> Iterator[str]:
    """Yield what an object lacks of a protocol, and what cannot be called as the protocol says."""
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
