"""Precision and loss scaling: `precision`, the sections `fp16` and `bf16`, and Megatron's names for their keys."""

from __future__ import annotations

from collections.abc import Collection

from neoxargs.facts.model import GATED
from neoxargs.resolve.rules.rule import (
    Contradiction,
    Findings,
    check,
    derive,
    derives,
    refuse,
    true_names,
    warn,
)
from neoxargs.resolve.rules.synonyms import Default, agreed_value, synonyms
from neoxargs.resolve.rules.usual import USUAL

#: GPT-NeoX's name of a precision -> the section of DeepSpeed's JSON that enables it.
SECTION_OF_PRECISION = {"fp16": "fp16", "bfloat16": "bf16"}
#: Other names of a precision -> GPT-NeoX's.
PRECISION_ALIASES = {"bf16": "bfloat16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}


@derives("precision", "fp16.enabled", "bf16.enabled")
def precision_given_once(
    precision: str | None, fp16__enabled: bool | None, bf16__enabled: bool | None, fp16__type: str | None
) -> dict[str, object]:
    """precision, fp16.enabled and bf16.enabled are the same setting; without any of them, it is fp32

    GPT-NeoX reads precision, and DeepSpeed reads the sections. If they differ, the model computes in one precision,
    while the engine casts weights and scales the loss for another: the loss is NaN, or training runs at half the speed.

        precision: bf16
        fp16: {enabled: true}
    """
    # GPT-NeoX reads any other word, even `bf16`, as fp32.
    precision = PRECISION_ALIASES.get(precision, precision) if precision else None
    if fp16__type is not None:
        fp16__enabled = None  # the retired `fp16: {type: bfloat16, enabled: true}` enabled its type, not fp16
    enabled = {"fp16": fp16__enabled, "bfloat16": bf16__enabled}
    chosen = [name for name, on in enabled.items() if on]
    if len(chosen) > 1:
        what = "fp16.enabled and bf16.enabled are both true"
        raise Contradiction(what, "set one of them to false", about=["fp16.enabled", "bf16.enabled"])
    key = {name: f"{section}.enabled" for name, section in SECTION_OF_PRECISION.items()}
    for name, on in enabled.items():
        if precision is not None and on is not None and on != (precision == name):
            raise Contradiction(
                f"precision ({precision}) and {key[name]} ({str(on).lower()}) contradict each other",
                f"to train in {name}, set precision to {name}; "
                f"to train in {precision}, set {key[name]} to false (--set {key[name]}=false)"
                if on
                else f"remove {key[name]}; precision ({precision}) already enables the section",
                about=["precision", key[name]],
            )
    precision = precision or (chosen[0] if chosen else "fp32")
    return {"precision": precision, **{key[name]: name == precision for name in key}}


@check
def precision_sections_set_enabled(
    precision: str, sections: Collection[str], written: Collection[str], auto: Collection[str]
) -> Findings:
    """In DeepSpeed's JSON, a section fp16 or bf16 without `enabled` is off. Such a section shows that the run should
    train in that precision, but it would train in fp32, with twice the memory and at a fraction of the speed.

        fp16: {}
    """
    for name, section in SECTION_OF_PRECISION.items():
        key = f"{section}.enabled"
        if section in sections and name != precision and "precision" not in written and key not in (*written, *auto):
            what = f"the {section} section has no effect: {key} is not set, and precision is {precision}"
            yield refuse(what, f"set {key} to true, or remove the section", about=[section, key, "precision"])
            return


synonyms("loss_scale_window", "fp16.loss_scale_window")
synonyms("hysteresis", "fp16.hysteresis")


@derives("min_scale", "fp16.min_loss_scale")
def min_scale_is_integer(
    min_scale: float | None, fp16__min_loss_scale: int | None, default: Default
) -> dict[str, float]:
    """min_scale and fp16.min_loss_scale are the same setting

    Megatron accepts any number as the minimum loss scale, DeepSpeed only integers. A fraction would stop every rank
    when DeepSpeed reads its JSON, or be truncated to 0, which makes all gradients vanish.

        precision: fp16
        min_scale: 0.5
    """
    lowest = agreed_value({"min_scale": min_scale, "fp16.min_loss_scale": fp16__min_loss_scale})
    if lowest is None:
        lowest = default("min_scale")
    if lowest != int(lowest):
        what = f"min_scale ({lowest}) must be a whole number"
        raise Contradiction(what, "set min_scale to a whole number; the default is 1", about=["min_scale"])
    return {"min_scale": int(lowest), "fp16.min_loss_scale": int(lowest)}


@derives("loss_scale", "fp16.loss_scale")
def loss_scale(loss_scale: float | None, fp16__loss_scale: float | None) -> dict[str, float | None]:
    """loss_scale and fp16.loss_scale are the same setting; 0 or null means dynamic loss scale"""
    scale = agreed_value({"loss_scale": loss_scale, "fp16.loss_scale": fp16__loss_scale}) or 0.0
    return {"loss_scale": scale or None, "fp16.loss_scale": scale}


@derive
def dynamic_loss_scale(fp16__loss_scale: float) -> bool:
    """true unless loss_scale is fixed"""
    return fp16__loss_scale == 0


@derive
def communication_data_type(fp32_allreduce: bool) -> str | None:
    """fp32_allreduce reduces gradients in fp32, as communication_data_type does in DeepSpeed"""
    return "fp32" if fp32_allreduce else None


@check
def fp16_cross_entropy_needs_fp16(fp16_lm_cross_entropy: bool, precision: str) -> Findings:
    """fp16_lm_cross_entropy computes the loss in fp16, which requires fp16 logits. With another precision, an assertion
    in GPT-NeoX stops every rank in the first forward pass.

        precision: bfloat16
        fp16_lm_cross_entropy: true
    """
    if fp16_lm_cross_entropy and precision != "fp16":
        what = f"fp16_lm_cross_entropy (true) needs precision: fp16, but precision is {precision}"
        yield refuse(what, "remove fp16_lm_cross_entropy, or set precision to fp16")


@check
def amp_excludes_precision_and_zero(amp__enabled: bool, precision: str, zero_optimization__stage: object) -> Findings:
    """Apex's mixed precision casts the model and wraps the optimizer, and so do DeepSpeed's fp16 and ZeRO. With both,
    an assertion in DeepSpeed stops every rank when the engine is built.

        amp: {enabled: true}
        zero_optimization: {stage: 1}
    """
    if not amp__enabled:
        return
    if precision != "fp32":
        what = f"amp.enabled and precision ({precision}) cannot be combined"
        yield refuse(what, "remove amp, or set precision to fp32", about=["amp.enabled", "precision"])
    elif zero_optimization__stage != 0:
        what = f"amp.enabled and zero_optimization.stage ({zero_optimization__stage}) cannot be combined"
        yield refuse(what, "remove amp, and set precision to fp16", about=["amp.enabled", "zero_optimization.stage"])


@check
def sixteen_bit_master_weights_need_zero(
    fp16__fp16_master_weights_and_grads: bool,
    bf16__bf16_master_weights_and_grads: bool,
    bf16__bf16_optimizer_states: bool,
    zero_optimization__stage: object,
) -> Findings:
    """Only ZeRO (stages 1 to 3) can keep master weights and optimizer states in 16 bits. With stage 0, DeepSpeed keeps
    them in fp32, and the run needs more memory than planned.

        bf16: {enabled: true, bf16_master_weights_and_grads: true}
    """
    asked = true_names(
        fp16__fp16_master_weights_and_grads=fp16__fp16_master_weights_and_grads,
        bf16__bf16_master_weights_and_grads=bf16__bf16_master_weights_and_grads,
    )
    if asked and zero_optimization__stage == 0:
        what = f"{asked[0]} needs zero_optimization.stage 1, 2 or 3"
        yield refuse(what, "set zero_optimization.stage to 1", about=[asked[0], "zero_optimization.stage"])
    elif bf16__bf16_optimizer_states and not bf16__bf16_master_weights_and_grads:
        what = "bf16.bf16_optimizer_states needs bf16.bf16_master_weights_and_grads"
        about = ["bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"]
        yield refuse(what, "set bf16.bf16_master_weights_and_grads to true", about)


#: Bits after the binary point of a weight's significand.
_SIGNIFICANT_BITS = {"fp16.fp16_master_weights_and_grads": 10, "bf16.bf16_master_weights_and_grads": 7}


@check
def steps_move_the_weights(
    fp16__fp16_master_weights_and_grads: bool,
    bf16__bf16_master_weights_and_grads: bool,
    lr: float,
    init_method_std: float,
    optimizer__type: str,
) -> Findings:
    """A step of Adam changes a weight by about the learning rate. If the weights are kept in 16 bits, a change below
    half of the distance to the next number is rounded away, and the weight never moves
    (https://github.com/meta-pytorch/torchtune/issues/2254, https://github.com/pytorch/ao/pull/1124).

        bf16: {enabled: true, bf16_master_weights_and_grads: true}
        zero_optimization: {stage: 1}
        lr: 1.0e-5
    """
    in_16_bits = (fp16__fp16_master_weights_and_grads, bf16__bf16_master_weights_and_grads)
    for (name, bits), on in zip(_SIGNIFICANT_BITS.items(), in_16_bits, strict=True):
        least = init_method_std / 2 ** (bits + 2)
        if on and "adam" in optimizer__type.lower() and 0 < lr < least:
            what = f"lr ({lr:g}) is too small for weights in 16 bits ({name}): at the usual size of a weight, "
            what += f"init_method_std ({init_method_std:g}), changes below {least:.1g} are rounded away"
            yield warn(what, f"set {name} to false", [name, "lr"])
            return


@check
def fp16_suits_the_model(precision: str, finetune: bool, lora__rank: int, norm: str, activation: str) -> Findings:
    """Models with RMSNorm and a gated MLP (LLaMA, Mistral, Qwen, Gemma) were trained in bf16. Their activations can be
    larger than 65504, the largest number of fp16: finetuned in fp16, the loss becomes NaN or 0
    (https://github.com/declare-lab/flan-alpaca/issues/19, https://github.com/openvla/openvla/issues/30).

        precision: fp16
        load: checkpoints
        finetune: true
        norm: rmsnorm
        activation: swiglu
    """
    if precision == "fp16" and (finetune or lora__rank) and norm == "rmsnorm" and activation in GATED:
        yield warn(
            f"precision (fp16) with a pretrained model of {norm} and {activation}, which was probably trained in bf16: "
            "its activations can exceed fp16",
            "set precision to bfloat16",
            about=["precision"],
        )


#: A dynamic loss scale usually settles between these powers of 2.
USUAL_POWERS = (3, 16)
#: The smallest fixed loss scale that is not reported.
SMALLEST_FIXED = 64


@check
def fixed_loss_scale_lifts_gradients(precision: str, fp16__loss_scale: float, written: Collection[str]) -> Findings:
    """A loss scale multiplies the gradients, most of which are otherwise below the smallest number of fp16, 6e-8, and
    become 0. Usual fixed scales are 128 to 32768 (Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740, 3.2). A
    scale of 1 scales nothing, and 12 or 16 are probably meant as powers of 2, which only initial_scale_power is
    (https://github.com/NVIDIA/apex/pull/45).

        precision: fp16
        fp16: {enabled: true, loss_scale: 16}
    """
    if precision == "fp16" and 0 < fp16__loss_scale < SMALLEST_FIXED:
        name = next((name for name in ("fp16.loss_scale", "loss_scale") if name in written), "fp16.loss_scale")
        what = f"{name} ({fp16__loss_scale:g}) is a fixed loss scale that is too small for most gradients in fp16"
        yield warn(what, f"remove {name} for a dynamic loss scale, or set it to 1024", [name])


@check
def loss_scale_settles_early(
    precision: str,
    fp16__loss_scale: float,
    fp16__initial_scale_power: int,
    fp16__loss_scale_window: int,
    train_iters: int,
    written: Collection[str],
) -> Findings:
    """A dynamic loss scale begins at 2 to the power of initial_scale_power. Each step that overflows is skipped, and
    halves it, until it is about 65536 or less; it doubles after loss_scale_window steps without an overflow. In a short
    run, a high start skips a large part of the steps, and from a low start, a long window never reaches a scale at
    which small gradients are kept (https://github.com/zai-org/CogVideo/issues/233).

        train_iters: 40
        precision: fp16
        fp16: {enabled: true, initial_scale_power: 32}
    """
    power, (low, high) = fp16__initial_scale_power, USUAL_POWERS
    names = ["fp16.initial_scale_power", "train_iters"]
    if precision != "fp16" or fp16__loss_scale or names[0] not in written:
        return
    if 10 * (power - high) > train_iters > 0 and power <= USUAL[names[0]].most:
        what = f"with {names[0]} ({power}), about {power - high} of {train_iters} iterations are skipped until the "
        yield warn(f"{what}loss scale has fallen to {2**high}", f"set {names[0]} to {high}", names)
    elif power < low and fp16__loss_scale_window >= train_iters > 0:
        window = f"fp16.loss_scale_window ({fp16__loss_scale_window})"
        what = f"with {names[0]} ({power}) and {window}, the loss scale is at most {2**power} in all {train_iters} "
        yield warn(f"{what}iterations", f"set {names[0]} to {high}", [*names, "fp16.loss_scale_window"])


@check
def skipped_spikes_need_no_loss_scale(on_spike: str, precision: str) -> Findings:
    """In fp16, DeepSpeed lowers the loss scale after every step that is skipped, so a step that is skipped because its
    loss or gradient stands out would change how the next ones are computed.

        on_spike: skip
        precision: fp16
    """
    if on_spike in ("skip", "skip_samples") and precision == "fp16":
        what = f"on_spike ({on_spike}) cannot be combined with precision (fp16): a skipped step lowers the loss scale"
        yield refuse(what, "set precision: bfloat16, or on_spike: warn")


@check
def skip_samples_skips_some(on_spike: str, spike_skip_samples: int) -> Findings:
    """on_spike: skip_samples leaves out as many samples after a spike as spike_skip_samples says. If it is 0, only the
    step is skipped.

        on_spike: skip_samples
    """
    if on_spike == "skip_samples" and not spike_skip_samples:
        what = "on_spike (skip_samples) needs spike_skip_samples, which is 0"
        yield refuse(what, "set spike_skip_samples, or on_spike: skip")
