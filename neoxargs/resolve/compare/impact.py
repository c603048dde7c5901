"""What a difference in a parameter can do to a run.

The registry's `effect` decides, except for the parameters listed in `EXCEPTIONS`, where one word is too coarse: the
key `train_batch_size` of DeepSpeed's engine changes the result, `aio.block_size` only the speed.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, Protocol, get_args

from neoxargs.facts.model import DRAWS
from neoxargs.registry.declare import Parameter

#: result: changes weights and losses. rounding: only in the last digits, by other kernels or order of sums.
#: nothing: neither. unread: neither run reads the parameter. unshown: rounding or nothing, but no test shows it on the
#: path of these runs (`same_result`).
Impact = Literal["result", "unshown", "rounding", "nothing", "unread"]

#: From the worst to the best.
IMPACT_ORDER: tuple[Impact, ...] = get_args(Impact)
IMPACTS: dict[str, Impact] = {
    "model": "result", "data": "result", "batch": "result", "optimizer": "result", "schedule": "result",
    "seed": "result", "run": "result", "start": "result", "engine keys": "result", "not built": "result",
    "loss": "result", "number format": "result",
    "precision": "rounding", "kernels": "rounding", "layout": "rounding", "memory": "rounding", "engine": "rounding",
    "log": "nothing", "files": "nothing", "launch": "nothing", "speed": "nothing", "evaluation": "nothing",
    "sampling": "nothing", "none": "unread",
}  # fmt: skip

#: Effect in the registry -> kind, where the words differ.
EFFECTS = {"launcher": "launch", "config": "layout", "checkpoint": "files", "generation": "sampling"}

#: Kind -> parameters of this kind, or the beginnings of their names (`aio.`), whose effect would give another one.
EXCEPTIONS = {
    "batch": "train_batch_size rampup_batch_size batch_size_schedule seq_length_schedule",
    "optimizer": (
        "weight_decay weight_decay_incr_style start_weight_decay end_weight_decay gradient_clipping "
        "gradient_allreduce_op zero_optimization.zenflow."
    ),
    "seed": "seed",
    "loss": "loss_average",
    "start": (
        "load base_checkpoint finetune iteration no_load_optim no_load_rng load_query_key_value_order "
        "checkpoint.load_universal nebula.enable_nebula_load nebula.nebula_load_path "
        "zero_optimization.load_from_fp32_weights"
    ),
    "run": "autotuning_run autotuning.",
    "engine keys": "deepspeed_extra_args",
    "number format": (
        "precision fp16.enabled fp16.fp16_master_weights_and_grads bf16.enabled bf16.bf16_master_weights_and_grads "
        "bf16.bf16_optimizer_states data_types. float32_matmul_precision optimizer.params.fp32_optimizer_states"
    ),
    "precision": (
        "fp16. bf16. loss_scale loss_scale_window min_scale hysteresis fp32_allreduce "
        "fp16_lm_cross_entropy communication_data_type prescale_gradients gradient_predivide_factor "
        "attention_softmax_in_fp32 apply_query_key_layer_scaling "
        "zero_optimization.zero_quantized_weights "
        "zero_optimization.zero_quantized_nontrainable_weights zero_optimization.zero_quantized_gradients "
        "zero_optimization.zeropp_loco_param."
    ),
    "kernels": (
        "attention_backend scaled_upper_triang_masked_softmax_fusion scaled_masked_softmax_fusion bias_dropout_fusion "
        "compile_layers mamba_selective_scan_fusion mamba_causal_conv_fusion rwkv_wkv_fusion "
        "rope_fusion onnx_safe deterministic distributed_backend graph_harvesting optimizer.legacy_fusion "
        "optimizer.params.torch_adam optimizer.params.set_grad_none optimizer.params.fused optimizer.params.foreach "
        "optimizer.params.capturable optimizer.params.differentiable optimizer.params.cuda_aware "
        "optimizer.params.comm_backend_name"
    ),
    "layout": (
        "train_micro_batch_size_per_gpu batch_size gradient_accumulation_steps gas padded_vocab_size "
        "make_vocab_size_divisible_by"
    ),
    "memory": "zero_optimization.offload_param. zero_optimization.offload_optimizer.",
    "evaluation": (
        "eval_interval eval_iters do_valid do_test eval_tasks eval_tasks_interval eval_tasks_limit eval_tasks_path "
        "eval_prompts eval_prompts_file eval_results_prefix repeat_eval_samples "
        "valid_data_paths valid_data_weights validation test_data_paths test_data_weights"
    ),
    "speed": (
        "num_workers mmap_warmup data_impl use_shared_fs aio. synchronize_each_layer profile_backward "
        "activation_checkpointing.synchronize_checkpoint_boundary activation_checkpointing.profile "
        "zero_optimization.offload_param.nvme_path zero_optimization.offload_param.pin_memory "
        "zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_optimizer.pin_memory"
    ),
    "launch": "adlr_autoresume adlr_autoresume_interval zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
    "log": "zero_optimization.log_trace_cache_warnings zero_optimization.enable_sanity_checks mup_width_scale",
    "files": (
        "zero_optimization.elastic_checkpoint zero_optimization.stage3_gather_16bit_weights_on_model_save "
        "zero_optimization.pipeline_loading_checkpoint"
    ),
}

#: Parameters that decide which rank, or which micro batch, draws a random number.
WHO_DRAWS = (
    "model_parallel_size", "pipe_parallel_size", "context_parallel_size", "world_size",
    "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "sequence_parallel", "compile_layers",
    "bias_dropout_fusion",
)  # fmt: skip
#: Parameters that decide which tokens the router of a mixture of experts sees together.
SEEN_TOGETHER = frozenset({"world_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})
#: Parameters that decide in which pieces a rank holds a matrix.
PIECES = frozenset({"zero_stage", "zero_optimization.stage", "model_parallel_size"})
#: Parameters that only decide how far the vocabulary is padded.
PADDING = frozenset({"padded_vocab_size", "make_vocab_size_divisible_by"})


class Values(Protocol):
    """The values of a run."""

    def get(self, name: str, /) -> Any:
        """Return the value of a parameter."""


def kind_of(parameter: Parameter) -> str:
    """Return the kind of a parameter, a key of IMPACTS."""
    table, name = _exceptions(), parameter.name
    parts = name.split(".")
    above = (".".join(parts[:end]) + "." for end in range(len(parts) - 1, 0, -1))
    found = next((table[each] for each in (name, *above) if each in table), None)
    if parameter.effect in ("none", "not built") or found is None:
        return EFFECTS.get(parameter.effect, parameter.effect)
    return found


def impact_of(parameter: Parameter, sides: tuple[Values, Values]) -> tuple[Impact, str]:
    """Return what a difference in this parameter can do, and why if that depends on other values."""
    impact, name = IMPACTS[kind_of(parameter)], parameter.name
    if impact != "rounding":
        return impact, ""
    if name in PADDING and _any(sides, "softmax_over_padding"):
        return "result", "with softmax_over_padding, the loss includes the padding"
    if name in WHO_DRAWS and (drawn := [each for each in DRAWS if _any(sides, each)]):
        return "result", f"{drawn[0]} is above 0, and this difference changes which random numbers are drawn"
    if name in PIECES and any(str(side.get("optimizer.type")).lower() == "sm3" for side in sides):
        return (
            "result",
            "sm3 keeps numbers of rows and columns, and of single elements where ranks hold parts of a matrix",
        )
    if name in SEEN_TOGETHER and _any(sides, "moe_num_experts", above=1):
        return "result", "the router balances the tokens of each micro batch separately"
    return impact, ""


def _any(sides: tuple[Values, Values], name: str, above: float = 0) -> bool:
    values: list[Any] = [side.get(name) for side in sides]
    return any(value is not None and value > above for value in values)


@cache
def _exceptions() -> dict[str, str]:
    """Return name, or beginning of names -> kind."""
    return {name: kind for kind, names in EXCEPTIONS.items() for name in names.split()}
