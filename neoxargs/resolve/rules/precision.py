"""Number format and loss scaling: `precision`, the sections `fp16` and `bf16`, and Megatron's names for their keys."""

from __future__ import annotations

from collections.abc import Collection

from neoxargs.resolve.rules.rule import Contradiction, Finding, check, derive, derives, refuse
from neoxargs.resolve.rules.synonyms import Default, agreed, same

#: GPT-NeoX's word for each format -> the section of DeepSpeed's JSON that turns it on.
SECTIONS = {"fp16": "fp16", "bfloat16": "bf16"}
#: Other words for a format -> GPT-NeoX's.
ALIASES = {"bf16": "bfloat16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}


@derives("precision", "fp16.enabled", "bf16.enabled")
def precision_given_once(
    precision: str | None, fp16__enabled: bool | None, bf16__enabled: bool | None, fp16__type: str | None
) -> dict[str, object]:
    """precision, fp16.enabled and bf16.enabled are one setting; without any of them it is fp32

    GPT-NeoX reads precision and DeepSpeed reads the sections. Where they differ, the model computes in one format and
    the engine scales and casts for another: the loss is NaN, or training runs at half the speed.

        precision: bf16
        fp16: {enabled: true}
    """
    precision = ALIASES.get(precision, precision) if precision else None
    if fp16__type is not None:
        fp16__enabled = None  # `fp16: {type: bfloat16, enabled: true}` once turned on the type that it names
    enabled = {"fp16": fp16__enabled, "bfloat16": bf16__enabled}
    chosen = [name for name, on in enabled.items() if on]
    if len(chosen) > 1:
        what = "fp16.enabled and bf16.enabled are both true"
        raise Contradiction(what, "a model computes in one of them", about=["fp16.enabled", "bf16.enabled"])
    for name, on in enabled.items():
        if precision is not None and on is not None and on != (precision == name):
            raise Contradiction(
                f"precision ({precision}) and {SECTIONS[name]}.enabled ({str(on).lower()}) contradict each other",
                f"write `precision: {name}` to compute in {name}, or `{SECTIONS[name]}: {{enabled: false}}` "
                f"(--set {SECTIONS[name]}.enabled=false) to compute in {precision}"
                if on
                else f"leave {SECTIONS[name]}.enabled out; precision turns the section on",
                about=["precision", f"{SECTIONS[name]}.enabled"],
            )
    precision = precision or (chosen[0] if chosen else "fp32")
    return {"precision": precision, **{f"{SECTIONS[name]}.enabled": name == precision for name in SECTIONS}}


@check
def precision_sections_say_enabled(
    precision: str, sections: Collection[str], written: Collection[str], auto: Collection[str]
) -> Finding | None:
    """In DeepSpeed's JSON a section fp16 or bf16 without `enabled` is off. Whoever writes one means to train in that
    format, and would train in fp32 with twice the memory and a fraction of the speed.

        fp16: {}
    """
    for name, section in SECTIONS.items():
        key = f"{section}.enabled"
        if section in sections and name != precision and "precision" not in written and key not in (*written, *auto):
            return refuse(
                f"section {section} does not say {key}, and precision is {precision}",
                f"write {section}: {{enabled: true}}, or remove the section",
                about=[section, key, "precision"],
            )
    return None


window = same("loss_scale_window", "fp16.loss_scale_window")
hysteresis = same("hysteresis", "fp16.hysteresis")


@derives("min_scale", "fp16.min_loss_scale")
def min_scale_is_whole(min_scale: float | None, fp16__min_loss_scale: int | None, default: Default) -> dict[str, float]:
    """min_scale and fp16.min_loss_scale are one setting

    Megatron takes any number as the least loss scale, DeepSpeed a whole one. A fraction would stop every rank when
    DeepSpeed reads its JSON, or be cut to 0, with which gradients vanish.

        precision: fp16
        min_scale: 0.5
    """
    lowest = agreed({"min_scale": min_scale, "fp16.min_loss_scale": fp16__min_loss_scale})
    if lowest is None:
        lowest = default("min_scale")
    if lowest != int(lowest):
        what = f"min_scale ({lowest}) must be a whole number"
        raise Contradiction(what, "DeepSpeed takes whole numbers only", about=["min_scale"])
    return {"min_scale": int(lowest), "fp16.min_loss_scale": int(lowest)}


@derives("loss_scale", "fp16.loss_scale")
def loss_scale(loss_scale: float | None, fp16__loss_scale: float | None) -> dict[str, float | None]:
    """loss_scale and fp16.loss_scale are one setting; 0, or none at all, adapts the scale"""
    scale = agreed({"loss_scale": loss_scale, "fp16.loss_scale": fp16__loss_scale}) or 0.0
    return {"loss_scale": scale or None, "fp16.loss_scale": scale}


@derive
def dynamic_loss_scale(fp16__loss_scale: float) -> bool:
    """a fixed loss_scale is not adapted"""
    return fp16__loss_scale == 0


@derive
def communication_data_type(fp32_allreduce: bool) -> str | None:
    """fp32_allreduce sums gradients in fp32, which DeepSpeed calls communication_data_type"""
    return "fp32" if fp32_allreduce else None


@check
def fp16_cross_entropy_needs_fp16(fp16_lm_cross_entropy: bool, precision: str) -> Finding | None:
    """fp16_lm_cross_entropy computes the loss in fp16, which is only possible where the logits are fp16. Elsewhere
    GPT-NeoX stops in an assertion on every rank, in the first forward pass.

        precision: bfloat16
        fp16_lm_cross_entropy: true
    """
    if not fp16_lm_cross_entropy or precision == "fp16":
        return None
    what = f"fp16_lm_cross_entropy needs precision fp16, but precision is {precision}"
    return refuse(what, "remove fp16_lm_cross_entropy")


@check
def amp_excludes_precision_and_zero(
    amp__enabled: bool, precision: str, zero_optimization__stage: object
) -> Finding | None:
    """apex's mixed precision casts the model and wraps the optimizer by itself. Together with DeepSpeed's fp16 or ZeRO,
    which do the same, DeepSpeed stops in an assertion on every rank when the engine is built.

        amp: {enabled: true}
        zero_optimization: {stage: 1}
    """
    if not amp__enabled:
        return None
    if precision != "fp32":
        what = f"amp.enabled and precision ({precision}) exclude each other"
        return refuse(what, "keep one of them", about=["amp.enabled", "precision"])
    if zero_optimization__stage != 0:
        what = f"amp.enabled and zero_optimization.stage ({zero_optimization__stage}) exclude each other"
        return refuse(what, "write precision: fp16 instead of amp", about=["amp.enabled", "zero_optimization.stage"])
    return None


@check
def sixteen_bit_master_weights_need_zero(
    fp16__fp16_master_weights_and_grads: bool,
    bf16__bf16_master_weights_and_grads: bool,
    bf16__bf16_optimizer_states: bool,
    zero_optimization__stage: object,
) -> Finding | None:
    """Only ZeRO's optimizers (stages 1 to 3) can keep master weights and optimizer states in 16 bits. With stage 0
    DeepSpeed's optimizer keeps them in fp32, and the memory that was counted on is not saved.

        bf16: {enabled: true, bf16_master_weights_and_grads: true}
    """
    asked = {
        "fp16.fp16_master_weights_and_grads": fp16__fp16_master_weights_and_grads,
        "bf16.bf16_master_weights_and_grads": bf16__bf16_master_weights_and_grads,
    }
    for name, on in asked.items():
        if on and zero_optimization__stage == 0:
            what = f"{name} needs zero_optimization.stage 1, 2 or 3"
            return refuse(what, "write zero_optimization: {stage: 1}", about=[name, "zero_optimization.stage"])
    if bf16__bf16_optimizer_states and not bf16__bf16_master_weights_and_grads:
        what = "bf16.bf16_optimizer_states needs bf16.bf16_master_weights_and_grads"
        about = ["bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"]
        return refuse(what, "write both as true", about)
    return None
