"""The meaning of `"auto"` in a DeepSpeed JSON, which Hugging Face's Trainer replaces by its own arguments.

The value is the one that a command in the same document gives, or the argument's default. A value that depends on the
rest of the run stays `auto` and is resolved at launch. Source: Transformers' documentation of its DeepSpeed
integration, and TrainingArguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from neoxargs.base.record import Record
from neoxargs.registry import REGISTRY
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.yaml.nodes import read_plain

AUTO = "auto"


class AutoValue(Record):
    """The value to write instead of `auto`, and the reason."""

    value: Any
    why: str
    argument: str = ""
    """The Trainer argument that overrides the value if a command in the document sets it."""


def _argument(name: str, default: Any, default_text: str = "") -> AutoValue:
    return AutoValue(default, f"Hugging Face's --{name}, default {default_text or default}", name)


def _at_launch(what: str) -> AutoValue:
    return AutoValue(AUTO, f"resolved at launch: {what}")


AUTO_VALUES = {
    "train_batch_size": _at_launch("micro batch x accumulation steps x data parallel ranks"),
    "train_micro_batch_size_per_gpu": _argument("per_device_train_batch_size", 8),
    "gradient_accumulation_steps": _argument("gradient_accumulation_steps", 1),
    "gradient_clipping": _argument("max_grad_norm", 1.0),
    "optimizer.params.lr": _argument("learning_rate", 5e-5),
    "optimizer.params.betas": AutoValue([0.9, 0.999], "default of Hugging Face's --adam_beta1 and --adam_beta2"),
    "optimizer.params.eps": _argument("adam_epsilon", 1e-8),
    "optimizer.params.weight_decay": _argument("weight_decay", 0.0),
    "scheduler.params.warmup_min_lr": AutoValue(0, "Hugging Face's warm-up starts at 0"),
    "scheduler.params.warmup_max_lr": _at_launch("the learning rate"),
    "scheduler.params.warmup_num_steps": AutoValue(
        2, "Hugging Face's --warmup_steps, default 0, which DeepSpeed raises to 2"
    ),
    "scheduler.params.total_num_steps": _at_launch("train_iters"),
    "fp16.enabled": _argument("fp16", False, "off"),
    "bf16.enabled": _argument("bf16", False, "off"),
    "zero_optimization.stage": AutoValue(2, "Accelerate's zero_stage, default 2"),
    "zero_optimization.reduce_bucket_size": _at_launch("hidden_size squared"),
    "zero_optimization.stage3_prefetch_bucket_size": _at_launch("0.9 x hidden_size squared"),
    "zero_optimization.stage3_param_persistence_threshold": _at_launch("10 x hidden_size"),
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": AutoValue(
        False, "Accelerate's zero3_save_16bit_model, default off"
    ),
    "zero_optimization.offload_optimizer.device": AutoValue(
        "none", "Accelerate's offload_optimizer_device, default none"
    ),
    "zero_optimization.offload_param.device": AutoValue("none", "Accelerate's offload_param_device, default none"),
}
#: What the Trainer builds itself if the JSON has no section `optimizer`, and no section `scheduler`.
TRAINER_OPTIMIZER = {
    "optimizer.type": AutoValue("AdamW", "Hugging Face's --optim, by default an AdamW"),
    **{name: auto for name, auto in AUTO_VALUES.items() if name.startswith("optimizer.params.")},
}
TRAINER_SCHEDULE = {
    "lr_decay_style": _argument("lr_scheduler_type", "linear"),
    "warmup": _argument("warmup_ratio", 0.0),
}

_ARGUMENT = re.compile(r"(?<![^\s\"'`])--(\w+)(?:=|[ \t]+|$)(\S*)", re.M)
#: A word that starts with one of these is not the value of the argument before it.
_NOT_A_VALUE = ("-", "\\", "#", "|", "&", ";", ">", '"', "'", "`")


def arguments(text: str) -> dict[str, tuple[str, int]]:
    """Return the Trainer's arguments in a document's commands, as name -> (value, line).

    An argument that the document gives with different values is left out.
    """
    wanted = {auto.argument for auto in (*AUTO_VALUES.values(), *TRAINER_SCHEDULE.values())}
    lines: dict[str, dict[str, int]] = {}
    for match in _ARGUMENT.finditer(text):
        if match[1] in wanted:
            value = "true" if not match[2] or match[2].startswith(_NOT_A_VALUE) else match[2]
            lines.setdefault(match[1], {}).setdefault(value, text.count("\n", 0, match.start()) + 1)
    return {name: next(iter(values.items())) for name, values in lines.items() if len(values) == 1}


def auto_value(name: str, given: Mapping[str, tuple[str, int]]) -> AutoValue:
    """Return what `auto` means for a parameter. given: the result of `arguments`."""
    auto = AUTO_VALUES.get(name) or AutoValue(
        AUTO, f"same as omitting the key (default {REGISTRY.parameters[name].default})"
    )
    return argument_value(name, auto, given)


def argument_value(name: str, auto: AutoValue, given: Mapping[str, tuple[str, int]]) -> AutoValue:
    """Return the value that a command of the document gives to a parameter, or else `auto`."""
    if auto.argument in given:
        written, line = given[auto.argument]
        try:
            value = coerce(read_plain(written), REGISTRY.parameters[name].type)
        except Mismatch:  # for example a shell variable
            return auto
        return AutoValue(value, f"Hugging Face's --{auto.argument}, line {line}")
    return auto
