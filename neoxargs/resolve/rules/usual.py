"""Values that nobody means: warnings far outside of the usual range, as of a learning rate of 6 for 6e-5.

The limits are wide: what a published run has used, or a paper recommends, is within.
"""

from __future__ import annotations

from collections.abc import Collection

from neoxargs.base.record import Record
from neoxargs.resolve.rules.rule import CHECKS, Findings, Rule, check, warn


class Usual(Record):
    """Values from `least` to `most`, and 0, are accepted silently; `range` is what the warning names."""

    range: str
    least: float
    most: float


_LR = Usual("1e-6 to 0.01", 1e-9, 1)
_EPSILON = Usual("1e-12 to 1e-5", 0, 0.1)
_DROPOUT = Usual("0 to 0.3", 0, 0.9)
_COEFFICIENT = Usual("0.0001 to 0.1", 0, 10)
_MULTIPLIER = Usual("0.1 to 100", 1e-4, 1e4)
_PREFERENCE = Usual("0.01 to 1", 1e-5, 100)
_CAP = Usual("10 to 100", 1, 1e5)
_BASE = Usual("10,000 to 10,000,000", 100, 1e12)

#: Parameter -> its limits. Of synonyms, the one that rules derive from the others.
USUAL: dict[str, Usual] = {
    # the optimizer
    "lr": _LR,
    "optimizer.params.muon_lr": Usual("0.001 to 0.05", 1e-9, 1),
    "optimizer.params.adam_lr": _LR,
    "weight_decay": Usual("0 to 0.3", 0, 10),
    "adam_eps": Usual("1e-15 to 1e-5", 0, 1),
    "momentum": Usual("0.8 to 0.99", 0, 0.9999),
    "gradient_clipping": Usual("0.1 to 10", 1e-4, 1e12),
    # the schedule
    "scheduler.params.warmup_min_lr": _LR,
    "scheduler.params.warmup_max_lr": _LR,
    "scheduler.params.cycle_min_lr": _LR,
    "scheduler.params.cycle_max_lr": _LR,
    "scheduler.params.warmup_min_ratio": Usual("0 to 0.1", 0, 1),
    "scheduler.params.cos_min_ratio": Usual("0 to 0.1", 0, 1),
    "scheduler.params.cycle_min_mom": Usual("0.8 to 0.99", 0, 0.9999),
    "scheduler.params.cycle_max_mom": Usual("0.8 to 0.99", 0, 0.9999),
    # precision
    "fp16.initial_scale_power": Usual("8 to 32", 0, 40),
    "loss_scale": Usual("1 to 65536", 1e-6, 2.0**40),
    "min_scale": Usual("1 to 1024", 0, 2.0**32),
    # dropout and initial values
    "hidden_dropout": _DROPOUT,
    "attention_dropout": _DROPOUT,
    "lora.dropout": _DROPOUT,
    "init_method_std": Usual("0.002 to 0.1", 1e-6, 1),
    "soft_prompt_tuning.init_range": Usual("0.01 to 1", 0, 100),
    "mup_init_scale": _MULTIPLIER,
    # the model
    "layernorm_epsilon": _EPSILON,
    "rms_norm_epsilon": _EPSILON,
    "scalenorm_epsilon": _EPSILON,
    "rotary_emb_base": _BASE,
    "rope_local_base_freq": _BASE,
    "rope_scaling.factor": Usual("1 to 128", 0.01, 1e4),
    "softmax_scale": Usual("0.01 to 1", 1e-6, 100),
    "attn_logit_softcapping": _CAP,
    "final_logit_softcapping": _CAP,
    "embedding_multiplier": Usual("0.1 to 100", 1e-4, 1e5),
    "mup_attn_temp": _MULTIPLIER,
    "mup_output_temp": _MULTIPLIER,
    "mup_embedding_mult": _MULTIPLIER,
    "mup_rp_embedding_mult": _MULTIPLIER,
    "lora.alpha": Usual("8 to 512", 1e-3, 1e5),
    # the loss, and generation
    "z_loss": _COEFFICIENT,
    "moe_aux_loss_coeff": _COEFFICIENT,
    "moe_z_loss_coeff": _COEFFICIENT,
    "moe_loss_coeff": _COEFFICIENT,
    "moe_jitter_eps": Usual("0.001 to 0.1", 0, 1),
    "dpo_beta": _PREFERENCE,
    "kto_beta": _PREFERENCE,
    "temperature": Usual("0 to 2", 1e-4, 100),
}


def values_are_plausible(written: Collection[str], *values: object) -> Findings:
    """A value that is far outside of the usual range is accepted by every program, and usually is a typo: an exponent
    without its sign, a percentage, or a power of two in place of its exponent. The loss is then NaN after the first
    steps, or nothing is learned.

        optimizer: {type: Adam, params: {lr: 6}}
    """
    for (name, usual), value in zip(USUAL.items(), values, strict=True):
        if not isinstance(value, int | float) or not value or usual.least <= value <= usual.most:
            continue
        if name in written or not name.startswith("scheduler."):  # a schedule's rates follow from lr
            what = f"{name} ({value:g}) is far outside of the usual range, {usual.range}"
            yield warn(what, "correct a mistyped value", [name])


CHECKS.append(Rule(values_are_plausible, (), ("written", *USUAL)))


@check
def second_beta_is_the_larger(adam_beta1: float, adam_beta2: float, written: Collection[str]) -> Findings:
    """The second beta is the decay rate of the mean of squared gradients, which must change more slowly than the mean
    of gradients, whose decay rate is the first beta. Swapped, the steps have the wrong sizes and training is unstable.

        optimizer: {type: Adam, params: {betas: [0.95, 0.9]}}
    """
    names = ("adam_beta1", "adam_beta2", "optimizer.params.betas")
    if adam_beta2 < adam_beta1 and set(names) & set(written):
        what = f"the first beta ({adam_beta1}) is larger than the second ({adam_beta2})"
        yield warn(what, f"did you mean [{adam_beta2}, {adam_beta1}]?", [name for name in names if name in written])
