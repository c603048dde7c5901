"""What `"auto"` in a DeepSpeed JSON stands for: Hugging Face's Trainer puts its own arguments there.

Where a command in the same document gives the argument, that is written, else its default if it has one; where the
value follows from the run, `auto` stays and is resolved when the run is. Source: Transformers' documentation of its
DeepSpeed integration, and TrainingArguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from neoxargs.registry import REGISTRY
from neoxargs.resolve.values.coerce import Mismatch, conform
from neoxargs.resolve.yaml.nodes import read_plain

AUTO = "auto"


class Stands(NamedTuple):
    """The value to write, and why in one sentence."""

    value: Any
    why: str
    argument: str = ""
    """The Trainer's, whose value it is where a command gives it."""


def _argument(name: str, value: Any, word: str = "") -> Stands:
    return Stands(value, f"Hugging Face's --{name}, {word or value} unless given", name)


def _follows(what: str) -> Stands:
    return Stands(AUTO, f"resolved when the run is known: {what}")


STANDS = {
    "train_batch_size": _follows("micro batch x accumulation steps x data parallel ranks"),
    "train_micro_batch_size_per_gpu": _argument("per_device_train_batch_size", 8),
    "gradient_accumulation_steps": _argument("gradient_accumulation_steps", 1),
    "gradient_clipping": _argument("max_grad_norm", 1.0),
    "optimizer.params.lr": _argument("learning_rate", 5e-5),
    "optimizer.params.betas": Stands([0.9, 0.999], "Hugging Face's --adam_beta1 and --adam_beta2 unless given"),
    "optimizer.params.eps": _argument("adam_epsilon", 1e-8),
    "optimizer.params.weight_decay": _argument("weight_decay", 0.0),
    "scheduler.params.warmup_min_lr": Stands(0, "Hugging Face begins at 0"),
    "scheduler.params.warmup_max_lr": _follows("the learning rate"),
    "scheduler.params.warmup_num_steps": Stands(2, "Hugging Face's --warmup_steps, 0 unless given; DeepSpeed takes 2"),
    "scheduler.params.total_num_steps": _follows("train_iters"),
    "fp16.enabled": _argument("fp16", False, "off"),
    "bf16.enabled": _argument("bf16", False, "off"),
    "zero_optimization.stage": Stands(2, "Accelerate's zero_stage, 2 unless given"),
    "zero_optimization.reduce_bucket_size": _follows("hidden_size squared"),
    "zero_optimization.stage3_prefetch_bucket_size": _follows("0.9 x hidden_size squared"),
    "zero_optimization.stage3_param_persistence_threshold": _follows("10 x hidden_size"),
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": Stands(
        False, "Accelerate's zero3_save_16bit_model, off unless given"
    ),
    "zero_optimization.offload_optimizer.device": Stands("none", "Accelerate's offload_optimizer_device unless given"),
    "zero_optimization.offload_param.device": Stands("none", "Accelerate's offload_param_device unless given"),
}


_ARGUMENT = re.compile(r"(?<![^\s\"'`])--(\w+)(?:=|[ \t]+|$)(\S*)", re.M)
#: How a word begins that is no value of the argument before it.
_NEXT = ("-", "\\", "#", "|", "&", ";", ">", '"', "'", "`")


def arguments(text: str) -> dict[str, tuple[str, int]]:
    """The Trainer's arguments that a document's commands give, with their line; what they give twice, if it agrees."""
    wanted = {stands.argument for stands in STANDS.values()}
    lines: dict[str, dict[str, int]] = {}
    for match in _ARGUMENT.finditer(text):
        if match[1] in wanted:
            value = "true" if not match[2] or match[2].startswith(_NEXT) else match[2]
            lines.setdefault(match[1], {}).setdefault(value, text.count("\n", 0, match.start()) + 1)
    return {name: next(iter(values.items())) for name, values in lines.items() if len(values) == 1}


def stands_for(name: str, given: Mapping[str, tuple[str, int]]) -> Stands:
    """What `auto` means for a parameter; without a convention it is what the parameter is when not written."""
    stands = STANDS.get(name) or Stands(
        AUTO, f"no convention; the same as leaving it out ({REGISTRY.parameters[name].default})"
    )
    if stands.argument in given:
        written, line = given[stands.argument]
        try:
            value = conform(read_plain(written), REGISTRY.parameters[name].type)
        except Mismatch:  # a variable, perhaps
            return stands
        return Stands(value, f"Hugging Face's --{stands.argument} in line {line}")
    return stands
