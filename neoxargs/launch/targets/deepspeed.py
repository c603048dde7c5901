"""DeepSpeed's JSON and the flags of its launcher.

A value is sent when somebody wrote it or when it differs from what the receiver assumes by itself; what our own
default is does not matter. Nothing here decides anything: every value has been derived and checked before.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from neoxargs.launch.targets.nesting import nested
from neoxargs.registry import ABSENT, REGISTRY, Parameter
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Value

#: DeepSpeed's default of these changed from one release to the next, so it is never relied on.
MOVING = ("gradient_clipping",)
#: Parameters that reach the JSON in another shape: keys that no parameter declares, and `communication_data_type`.
NOT_KEYS = ("deepspeed_extra_args", "fp32_allreduce")
#: What DeepSpeed insists on computing itself once it may change the number of ranks.
ELASTIC = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
#: Sections of DeepSpeed that do something by being there.
TELLING = ("zero_optimization.zenflow",)


def deepspeed_json(config: Config) -> dict[str, Any]:
    """The JSON for `deepspeed.initialize`."""
    told = {
        p.name: value.value
        for p, value in config.items()
        if "deepspeed" in p.to
        and not _is_left_out(p.name, config)
        and value.value not in (None, ABSENT)
        and _differs_for_deepspeed(p, value)
    }
    for companion in [key for name in told for key in _companions(name)]:
        told.setdefault(companion, config.get(companion))
    sections = [name for name in TELLING if name in config.sections]
    return nested(told, sections) | (config.engine.deepspeed_extra_args or {})


def runner_flags(config: Config) -> list[str]:
    """The flags of DeepSpeed's launcher, without script and payloads."""
    told = {
        p.name: value.value
        for p, value in config.items()
        if "runner" in p.to
        and p.name not in NOT_FLAGS
        and value.value not in (None, "")
        and (value.source.set_by_user or value.value != p.receiver_default)
    }
    arguments = launcher_arguments(config)
    if arguments:
        told["launcher_args"] = arguments
    if config.runner_extras.autotuning_run:
        told["autotuning"] = config.runner_extras.autotuning_run
    return [word for name, value in told.items() for word in _flag(name, value)]


#: GPT-NeoX's additions, which reach the launcher in another shape.
NOT_FLAGS = ("autotuning_run", "comment", "account", "launcher_args")


def launcher_arguments(config: Config) -> str:
    """What `srun` and its like are told: `launcher_args`, and the job's comment and account."""
    extras = config.runner_extras
    words = {"comment": extras.comment, "account": extras.account}
    return " ".join(
        [*filter(None, [config.runner.launcher_args]), *(f"--{k}={shlex.quote(v)}" for k, v in words.items() if v)]
    )


def _is_left_out(name: str, config: Config) -> bool:
    if name in ELASTIC:
        return config.elasticity.enabled and not config.elasticity.ignore_non_elastic_batch_info
    if name.startswith("fp16."):  # DeepSpeed casts inputs for `auto_cast` even where the section is off
        return not config.fp16.enabled
    return name in NOT_KEYS


def _differs_for_deepspeed(parameter: Parameter, value: Value) -> bool:
    return value.source.set_by_user or parameter.name in MOVING or value.value != parameter.receiver_default


def _companions(name: str) -> Iterator[str]:
    """The keys that DeepSpeed expects to see in a section once any of its keys is there."""
    section = name.rpartition(".")[0]
    while section:
        group = REGISTRY.sections.get(section)
        yield from (f"{section}.{key}" for key in (group.always_sent if group else ()))
        section = section.rpartition(".")[0]


def _flag(name: str, value: object) -> list[str]:
    """`--force_multi`, `--num_gpus 4`; with `=` where the value looks like a flag itself."""
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    text = str(value)
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
