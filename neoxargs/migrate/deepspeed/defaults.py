"""What DeepSpeed does for keys that a JSON leaves out, wherever deepy would do something else.

The new file is resolved, and every value that DeepSpeed would get from deepy is compared with the default
that DeepSpeed had in the version in which the JSON was used. A different value is written out, so that the run stays
the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator
from typing import Any

from neoxargs.config.config import Config
from neoxargs.migrate.deepspeed.versions import Version
from neoxargs.migrate.source import CURRENT_DIALECT
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve import File, draft
from neoxargs.resolve.derive import EXAMPLES
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.resolve.rules.optimizer import accepts_param
from neoxargs.resolve.values.auto import (
    TRAINER_OPTIMIZER,
    TRAINER_SCHEDULE,
    AutoValue,
    argument_value,
)
from neoxargs.resolve.yaml.write import Setting
from neoxargs.runs.lenient import fitting_gpus, resolved

#: The version that is assumed without `--deepspeed`: the last one before a default changed that matters to most files.
ASSUMED = "0.19.2"
#: Key -> (version, default from that version on), of the defaults that change what is trained.
#: tests/reference/deepspeed_default_history.tsv has all that have changed, and says why the others are not here.
CHANGED: dict[str, tuple[tuple[str, Any], ...]] = {
    "gradient_clipping": (("0.0", 0.0), ("0.19.3", 1.0)),
    "scheduler.params.warmup_max_lr": (("0.0", 0.001), ("0.17.2", None)),
    "fp16.initial_scale_power": (("0.0", 32), ("0.8.0", 16)),
}
#: The comment behind a default.
DEFAULT = "DeepSpeed's default"
#: The defaults of the optimizers' constructors; None: a type has no such argument or decides itself.
OPTIMIZER: dict[str, Any] = {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0}
#: Type -> those that are not the same as in `OPTIMIZER`.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adadelta": {"lr": 1.0, "eps": 1e-6},
    "adafactor": {"lr": 0.01},
    "adagrad": {"lr": 0.01, "eps": 1e-10},
    "adamax": {"lr": 0.002},
    "asgd": {"lr": 0.01},
    "muadamw": {"weight_decay": 0.01},
    "muon": {"lr": None, "betas": [0.9, 0.95], "eps": 1e-10, "momentum": 0.95},
    "nadam": {"lr": 0.002},
    "rmsprop": {"lr": 0.01},
    "rprop": {"lr": 0.01},
}
#: The learning rates of Muon's two groups of weights if `lr` is not set.
MUON_RATES = {"optimizer.params.muon_lr": 0.02, "optimizer.params.adam_lr": 0.0003}
#: torch's AdamW; DeepSpeed's own AdamW has no weight decay by default.
TORCH_ADAMW_DECAY = 0.01
#: In WarmupLR, the learning rate after the warm-up is `lr` by default.
WARMUP_DECAY_MAX_LR = 0.001
#: A batch size is either derived from the others or missing.
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
#: Stands for the rest of a run, which a JSON does not describe.
REST = {**EXAMPLES, "train_iters": 1000}


def version_number(text: str) -> tuple[int, ...]:
    """Return `0.19.2` as (0, 19, 2); `0.19.2+abc` is the same. Raises ValueError if it is not a version."""
    match = re.fullmatch(r"v?(\d+(?:\.\d+){1,3})(?:[.+-]?[a-z]\w*)*", text)
    if not match:
        raise ValueError(text)
    return tuple(int(part) for part in match[1].split("."))


def built_by_script(version: Version) -> dict[str, Setting]:
    """Return the optimizer and the schedule that a run has although the JSON has no section for them."""
    given = {*version.draft.values, *version.draft.auto, *version.block.removed}
    return _of_trainer(version, given) if version.draft.auto else _without_schedule(given)


def absent_settings(text: str, deepspeed: str) -> dict[str, Setting]:
    """Return a setting for each key that the new file does not set and that means something else in DeepSpeed.

    deepspeed: the version in which the JSON was used.
    """
    found = _differences(text, version_number(deepspeed))
    return {name: Setting(value, behind=_comment(name, deepspeed)) for name, value in found}


def _without_schedule(given: Container[str]) -> dict[str, Setting]:
    """Return the settings for a constant learning rate if DeepSpeed builds an optimizer and no schedule."""
    if "optimizer.type" not in given or "scheduler.type" in given:
        return {}
    why = "DeepSpeed has no schedule without a scheduler section"
    return {"lr_decay_style": Setting("constant", behind=why), "warmup": Setting(0.0, behind=why)}


def _of_trainer(version: Version, given: Container[str]) -> dict[str, Setting]:
    """Return the optimizer and the schedule that Hugging Face's Trainer builds for a file without these sections."""
    arguments, built = version.block.arguments, dict[str, AutoValue]()
    if "scheduler.type" not in given:
        built |= {name: argument_value(name, auto, arguments) for name, auto in TRAINER_SCHEDULE.items()}
    if "optimizer.type" not in given:
        built |= {name: argument_value(name, auto, arguments) for name, auto in TRAINER_OPTIMIZER.items()}
    return {name: Setting(auto.value, behind=auto.why) for name, auto in built.items() if name not in given}


def _comment(name: str, deepspeed: str) -> str:
    """Return the comment behind a default, with the version since or before which it holds."""
    later = [since for since, _ in CHANGED.get(name, ())][1:]
    if not later:
        return DEFAULT
    relation = "before" if version_number(deepspeed) < version_number(later[-1]) else "since"
    return f"{DEFAULT} {relation} {later[-1]}"


def _differences(text: str, deepspeed: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Yield each key that is not set and for which deepy has another value than DeepSpeed by default."""
    file = File("new", text)
    new = draft([file])
    given = {**new.values, **dict.fromkeys(new.auto)}
    drafted = draft([file, File("rest", _rest(given))])
    config, _ = resolved(drafted, fitting_gpus(drafted))
    is_unread, defaults = unread_by_run(config), _defaults(config, given, deepspeed)
    for name, parameter in REGISTRY.parameters.items():
        is_compared = "deepspeed" in parameter.to and parameter.effect != "log" and name not in BATCH
        if not is_compared or name in given or name in config.broken or is_unread(name):
            continue
        theirs = defaults.get(name, parameter.receiver_default)
        ours = parameter.receiver_default if config.get(name) is None else config.get(name)  # None is not sent
        if theirs not in (None, ABSENT) and ours != theirs:
            yield name, theirs


def _rest(given: Container[str]) -> str:
    """Return a model, a length and a batch size, as far as the new file does not have them."""
    rest = {name: value for name, value in REST.items() if name not in given}
    if "train_epochs" in given:
        del rest["train_iters"]
    if not any(name in given for name in BATCH):
        rest["train_micro_batch_size_per_gpu"] = 1
    return json.dumps({"dialect": CURRENT_DIALECT, **rest})


def _defaults(config: Config, given: Container[str], deepspeed: tuple[int, ...]) -> dict[str, Any]:
    """Return DeepSpeed's defaults that depend on its version or on other settings."""
    known = {
        name: [value for since, value in values if version_number(since) <= deepspeed][-1]
        for name, values in CHANGED.items()
    }
    if config.get("scheduler.type") == "WarmupDecayLR":
        known["scheduler.params.warmup_max_lr"] = WARMUP_DECAY_MAX_LR
    if "optimizer.type" not in given:  # the training script builds it
        return known | {name: None for name in REGISTRY.parameters if name.startswith("optimizer.")}
    kind = str(config.get("optimizer.type")).lower()
    own = {**OPTIMIZER, **OPTIMIZERS.get(kind, {})}
    if kind == "adamw" and config.get("optimizer.params.torch_adam"):
        own["weight_decay"] = TORCH_ADAMW_DECAY
    known |= {f"optimizer.params.{name}": value for name, value in own.items() if accepts_param(kind, name)}
    return known | (MUON_RATES if kind == "muon" and "optimizer.params.lr" not in given else {})
