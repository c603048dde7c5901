"""DeepSpeed's JSON and the flags of its runner.

A value is sent if it is set, or if it differs from the receiver's own default; this package's default does not matter.
All values have been derived and checked before. As in GPT-NeoX, `deepspeed_extra_args` replaces whole top-level keys.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from neoxargs.config.config import Config
from neoxargs.registry import ABSENT, REGISTRY, receivers
from neoxargs.targets.nesting import nested

#: Parameters that are always sent, because DeepSpeed's default changed between releases.
ALWAYS_SENT = ("gradient_clipping",)
#: Parameters that are not keys of the JSON: they are sent as other keys.
NOT_KEYS = ("deepspeed_extra_args", "fp32_allreduce")
#: Parameters that DeepSpeed computes itself if elasticity is enabled, and then rejects in the JSON.
ELASTIC = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
#: Sections that have an effect on DeepSpeed even if they are empty.
SECTIONS_WITH_EFFECT = ("zero_optimization.zenflow",)


def deepspeed_json(config: Config) -> dict[str, Any]:
    """Return the configuration for `deepspeed.initialize`."""
    sections = [name for name in SECTIONS_WITH_EFFECT if name in config.sections]
    return nested(sent_values(config), sections) | (config.engine.deepspeed_extra_args or {})


def sent_values(config: Config) -> dict[str, Any]:
    """Return what is sent, by the dotted names of the registry, apart from `deepspeed_extra_args`."""
    sent = {
        p.name: value.value
        for p, value in config.items()
        if "deepspeed" in p.to
        and not _is_left_out(p.name, config)
        and value.value not in (None, ABSENT)
        and (value.source.set_by_user or p.name in ALWAYS_SENT or value.value != p.receiver_default)
    }
    for name in tuple(sent):
        # The keys that DeepSpeed requires in a section as soon as it has any key.
        while name := name.rpartition(".")[0]:
            group = REGISTRY.sections.get(name)
            for key in group.always_sent if group else ():
                sent.setdefault(f"{name}.{key}", config.get(f"{name}.{key}"))
    # Newer versions of DeepSpeed refuse some keys and sections even if they are off.
    off = {name for name in receivers.refused() if _holds(sent, name) and _is_off(name, config)}
    return {name: value for name, value in sent.items() if off.isdisjoint(accumulate(name.split("."), "{}.{}".format))}


def _holds(sent: Iterable[str], name: str) -> bool:
    return any(f"{key}.".startswith(f"{name}.") for key in sent)


def _is_off(name: str, config: Config) -> bool:
    """Return whether a key or section switches nothing on."""
    if parameter := REGISTRY.parameters.get(name):
        return bool(config.get(name) == parameter.receiver_default)
    switches = [p for p in REGISTRY.parameters if p.startswith(f"{name}.") and p.endswith(".enabled")]
    return bool(switches) and not any(map(config.get, switches))


def runner_flags(config: Config) -> list[str]:
    """Return the flags of DeepSpeed's runner, without the script and the payloads."""
    sent = {
        p.name: value.value
        for p, value in config.items()
        if "runner" in p.to
        and p.name not in NOT_FLAGS
        and value.value not in (None, "")
        and (value.source.set_by_user or value.value != p.receiver_default)
    }
    if arguments := launcher_arguments(config):
        sent["launcher_args"] = arguments
    if config.runner_extras.autotuning_run:
        sent["autotuning"] = config.runner_extras.autotuning_run
    return [word for name, value in sent.items() for word in _flag(name, value)]


#: Parameters of GPT-NeoX that are not flags of the runner: they are sent as other flags.
NOT_FLAGS = ("autotuning_run", "comment", "account", "launcher_args")


def launcher_arguments(config: Config) -> str:
    """Return the arguments for `srun` or another program: `launcher_args`, and the job's comment and account."""
    extras = config.runner_extras
    words = {"comment": extras.comment, "account": extras.account}
    return " ".join(
        [*filter(None, [config.runner.launcher_args]), *(f"--{k}={shlex.quote(v)}" for k, v in words.items() if v)]
    )


def _is_left_out(name: str, config: Config) -> bool:
    if name in ELASTIC:
        return config.get("elasticity.enabled") and not config.get("elasticity.ignore_non_elastic_batch_info")
    if name.startswith("fp16."):  # DeepSpeed applies `auto_cast` to inputs even if fp16 is not enabled
        return not config.fp16.enabled
    return name in NOT_KEYS


def _flag(name: str, value: object) -> list[str]:
    """Return `--force_multi` or `--num_gpus 4`; with `=` if the value starts with `-`."""
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    text = str(value)
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
