"""Flags of a mixture of experts, and the defaults of Megatron-LM and Megatron-DeepSpeed that differ from deepy's.

Megatron-DeepSpeed has experts in every second layer, and computes them with DeepSpeed's own layer.
"""

from __future__ import annotations

from typing import Any

from neoxargs.migrate.megatron.list_expressions import list_of
from neoxargs.migrate.megatron.reading import Option, Reading

#: Flags that only Megatron-DeepSpeed has.
DEEPSPEED_FLAGS = {"deepspeed", "deepspeed-config", "zero-stage", "moe-expert-parallel-size"}


def is_megatron_deepspeed(reading: Reading) -> bool:
    return not DEEPSPEED_FLAGS.isdisjoint(reading.options)


def expert_defaults(reading: Reading) -> dict[str, Any]:
    """Return the defaults that hold if the model has experts; empty for a dense model."""
    if not reading.has_experts:
        return {}
    if is_megatron_deepspeed(reading):
        chosen = reading.number("moe-router-topk") or 1
        return {
            "moe_top_k": 1,
            "moe_router_type": "topk",
            "moe_normalize_expert_weights": chosen > 1,
            "moe_expert_interval": 2,
            "moe_aux_loss_coeff": 0.1,
            "moe_token_dropping": True,
        }
    return {"moe_top_k": 2, "moe_router_type": "topk", "moe_normalize_expert_weights": True, "moe_expert_interval": 1}


def pre_softmax(reading: Reading, option: Option) -> None:
    if reading.has_experts:
        reading.set("moe_normalize_expert_weights", False, f"--{option.name}")


def experts(reading: Reading, option: Option) -> None:
    """Read the number of experts; Megatron-DeepSpeed accepts one number for each layer with experts."""
    if len({word.text for word in option.values}) == 1:
        reading.set_from(option._replace(values=option.values[:1]), "moe_num_experts")
    else:
        hint = "set moe_num_experts in the new file to the number that best approximates this list"
        reading.leave_to_write(
            option, "moe_num_experts", hint, "deepy has the same number of experts in all layers with experts"
        )


def router(reading: Reading, option: Option) -> None:
    """Read how the router balances the load: `sinkhorn`, or a loss with the `topk` router."""
    reading.set("moe_router_type", "sinkhorn" if option.text == "sinkhorn" else "topk")
    if option.text == "sinkhorn" and reading.has_experts:
        reading.set("moe_normalize_expert_weights", False, str(option))
    if option.text not in ("sinkhorn", "aux_loss", "none") or len(option.values) > 1:
        reading.leave_out_with_note(option, "moe_aux_loss_coeff always balances the load within a micro batch")


def width(reading: Reading) -> float | None:
    """Return the width of an expert if all layers have experts; it is then the model's only feed-forward width."""
    frequency = reading.options.get("moe-layer-freq")
    layers = list_of(" ".join(word.text for word in frequency.values)) if frequency else [1]
    in_all_layers = (frequency is not None and frequency.text == "1") or (layers is not None and 0 not in layers)
    return reading.number("moe-ffn-hidden-size") if in_all_layers and "num-experts" in reading.options else None


def expert_width(reading: Reading, option: Option) -> None:
    own = width(reading)
    if own is not None:
        reading.set_width(own, f"--moe-ffn-hidden-size {option.text} (all layers have experts)")
    elif reading.number("moe-ffn-hidden-size") != reading.number("ffn-hidden-size"):
        reading.leave_out_with_note(option, "deepy's experts are as wide as a dense MLP (intermediate_size)")


def shared_experts(reading: Reading, option: Option) -> None:
    """Read the width of all shared experts together, a multiple of an expert's width."""
    total = reading.number(option.name)
    single = reading.number("moe-ffn-hidden-size") or reading.number("ffn-hidden-size") or reading.default_width
    if total and single and total % single == 0:
        reading.set("moe_num_shared_experts", int(total // single), f"{option.text} / {single:g}, an expert's width")
    else:
        width = f"({single:g})" if single else "(not known)"
        reading.leave_out_with_note(option, f"it must be a multiple of an expert's width {width}")


def capacity(reading: Reading, option: Option) -> None:
    reading.set("moe_token_dropping", True)
    reading.set_from(option, "moe_train_capacity_factor")
    reading.set_from(option, "moe_eval_capacity_factor")


def mlp_type(reading: Reading, option: Option) -> None:
    """Read `standard` or `residual` of Megatron-DeepSpeed, or the values of GPT-NeoX's parameter of the same name."""
    if option.text == "residual":
        reading.set("moe_type", "deepspeed")
        reading.set("moe_use_residual", True)
    elif option.text != "standard":
        reading.set_from(option, "mlp_type")
