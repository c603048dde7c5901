"""Checks against the versions that will be used: of DeepSpeed, megatron-core and torch, installed or assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.facts.optimizers import is_onebit
from neoxargs.hosts.packages import installed_versions
from neoxargs.registry import REGISTRY, receivers
from neoxargs.registry.receivers import numbers
from neoxargs.runs.run_spec import RunSpec
from neoxargs.targets.deepspeed import sent_values

#: The last release of DeepSpeed that has the 1-bit optimizers.
LAST_WITH_ONEBIT = "0.19.6"


def receiver_problems(spec: RunSpec) -> list[Problem]:
    """Return what the version of DeepSpeed does not have, and what needs a newer torch; nothing of unknown versions."""
    versions = {**installed_versions(), **spec.assumed}
    found = [*_torch_too_old(versions, spec.assumed)]
    if version := versions.get("deepspeed"):
        config, how = spec.config, "assumed" if "deepspeed" in spec.assumed else "installed"
        found += _unknown_version(version)
        found += config.found(lambda: missing_keys(config, version), lambda: _missing_onebit(config, version, how))
    return found


def _torch_too_old(versions: Mapping[str, str], assumed: Mapping[str, str]) -> Iterator[Problem]:
    """Yield an error for each package that requires a newer torch."""
    torch = versions.get("torch")
    for package in ("deepspeed", "megatron-core"):
        version = versions.get(package.replace("-", "_"))
        if not (torch and version and (oldest := receivers.oldest_torch(package, version))):
            continue
        if numbers(torch) < numbers(oldest):
            how = "assumed" if "torch" in assumed else "installed"
            what = f"{package} {version} needs torch {oldest} or newer, but {torch} is {how}"
            yield Problem(what, hint=f"run pip install 'torch>={oldest}'", id="torch-too-old")


def _unknown_version(version: str) -> Iterator[Problem]:
    """Yield a warning for a version whose keys are not known."""
    first, *_, last = receivers.versions()
    if not numbers(first) <= numbers(version) <= numbers(last):
        nearest = last if numbers(version) > numbers(last) else first
        what = f"DeepSpeed {version} is judged as if it were {nearest}: deepy knows the keys of {first} to {last}"
        yield Problem(what, severity="warning", id="deepspeed-version-unknown")


def missing_keys(config: Config, version: str) -> Iterator[Problem]:
    """Yield an error for each key that is sent and that a version of DeepSpeed has dropped or does not have yet."""
    sent = [name for name in sent_values(config) if "runner" not in REGISTRY.parameters[name].to]
    for name in (*sent, *(config.engine.deepspeed_extra_args or {})):
        came, went = receivers.added_in(name), receivers.removed_in(name)
        if went and numbers(version) >= numbers(went):
            what = f"{name} is not a key of DeepSpeed {version}: version {went} removed it"
            hint = f"remove {name}, or run pip install 'deepspeed<{went}'"
        elif came and numbers(version) < numbers(came):
            what = f"{name} is not a key of DeepSpeed {version}: version {came} introduced it"
            hint = f"remove {name}, or run pip install 'deepspeed>={came}'"
        else:
            continue
        about = name if name in sent else "deepspeed_extra_args"
        yield Problem(what, config.place(about), hint, id="deepspeed-key-missing", about=(about,))


def _missing_onebit(config: Config, version: str, how: str) -> Iterator[Problem]:
    """Yield an error for a 1-bit optimizer if DeepSpeed has removed them."""
    kind = config.optimizer.type or ""
    if is_onebit(kind) and numbers(version) > numbers(LAST_WITH_ONEBIT):
        what = f"optimizer.type ({kind}) needs DeepSpeed {LAST_WITH_ONEBIT} or older, but {version} is {how}"
        hint = f'run pip install "deepspeed<={LAST_WITH_ONEBIT}"'
        place = config.place("optimizer.type")
        yield Problem(what, place, hint, id="onebit-optimizer-needs-older-deepspeed", about=("optimizer.type",))
