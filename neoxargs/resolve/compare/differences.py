"""The settings in which two configurations differ, for `diff`, locks, checkpoints, `migrate` and guessed dialects.

A setting with several names is one difference. Two spellings of a value are none, nor two ways to write the size of a
head or of the MLP. `apart` has what a comparison leaves out, `impact` what a difference can change, and `continuing`
what it means for the weights of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.attention import head_dim
from neoxargs.facts.model import mlp_width
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve.effects.unread import unread_by_run
from neoxargs.resolve.rules.synonyms import names_of_setting
from neoxargs.resolve.secrets import masked

#: Tells whether two values of a parameter are no difference.
Same = Callable[[str, Any, Any], bool]

#: The names of settings, where rules derive the names from each other in another way than synonyms.
SETTINGS = (("train_batch_size",), ("train_micro_batch_size_per_gpu", "batch_size"),
            ("gradient_accumulation_steps", "gas"), ("world_size", "global_num_gpus"))  # fmt: skip
#: The name to show if the names of a setting have different values.
PREFERRED_NAMES = ("optimizer.params.betas", "precision", "optimizer.type")
#: Other spellings of values.
SPELLINGS: Mapping[str, Mapping[Any, str]] = {"activation": {"swish": "silu"}}
#: Values that select other kernels for the same function.
KERNELS: Mapping[str, Mapping[Any, str]] = {
    "norm": {"te_layernorm": "layernorm", "te_rmsnorm": "rmsnorm"},
    "attention_config": {"flash": "global"},
}
#: Parameters that define a size only together, and the size.
SIZES: Mapping[str, Callable[[Config], int]] = {
    "head_dim": lambda config: head_dim(config.shape),
    **dict.fromkeys(
        ("intermediate_size", "expansion_factor", "mlp_multiple_of", "exact_mlp_width"),
        lambda config: mlp_width(config.shape, config.mlp),
    ),
}


class Difference(Record):
    """A setting with two values."""

    names: tuple[str, ...]
    """Every name of the setting. The first is the most familiar to the reader, and has the two values."""
    values: tuple[Any, Any]
    """As of `value_of`, with asterisks in place of secrets."""
    is_set: bool
    """Whether at least one side sets the parameter; otherwise, both values are defaults or derived."""
    is_read: tuple[bool, bool]
    """Whether a run of each side reads the parameter."""

    @property
    def name(self) -> str:
        """The name to show."""
        return self.names[0]


def same_value(name: str, one: Any, other: Any) -> bool:
    """Return whether two values are equal, or spellings of the same value."""
    return bool(_form(name, one) == _form(name, other))


def same_function(name: str, one: Any, other: Any) -> bool:
    """Return whether a model with either value computes the same function."""
    kernels = KERNELS.get(name, {})
    return bool(_form(name, one, kernels) == _form(name, other, kernels))


def differences(a: Config, b: Config, apart: Container[str] = (), same: Same = same_value) -> Iterator[Difference]:
    """Yield the settings that differ, in the registry's order.

    Left out are parameters that nobody set and neither run reads, and those whose value is unknown (`Config.broken`).
    apart: names that are not compared.
    """
    present, unknown = a.values.keys() | b.values.keys(), a.broken | b.broken
    differing = dict.fromkeys(
        name
        for name in REGISTRY.parameters
        if name in present  # any other has the registry's default
        and name not in apart
        and name not in unknown
        and not same(name, value_of(a, name), value_of(b, name))
        and not _same_size(a, b, name)
    )
    if not differing:
        return
    unread = unread_by_run(a), unread_by_run(b)
    settings = dict.fromkeys(map(_names_of_setting, differing))
    shown = {_familiar_name([name for name in names if name in differing], (a, b)): names for names in settings}
    for name, names in ((name, shown[name]) for name in differing if name in shown):
        is_set = any(_is_set(config, each) for config in (a, b) for each in names)
        is_read = not unread[0](name), not unread[1](name)
        if is_set or any(is_read):
            values = masked(name, value_of(a, name)), masked(name, value_of(b, name))
            yield Difference((name, *(each for each in names if each != name)), values, is_set, is_read)


def value_of(config: Config, name: str) -> Any:
    """Return a value in the form of JSON; None for one that is derived and that no rule supplies.

    Also None for a retired parameter that is not set or only sets others, and for the token files of `text_path`, whose
    place in the run folder says nothing about the text.
    """
    value, replaced_by = config.get(name), REGISTRY.parameters[name].replaced_by
    is_copy = name == "data_path" and config.data.text_path
    if value is ABSENT or is_copy or (replaced_by is not None and (not config.is_set(name) or value in replaced_by)):
        return None
    return list(value) if isinstance(value, tuple) else value


def _form(name: str, value: Any, kernels: Mapping[Any, str] = {}) -> Any:
    """Return a value in a form that is equal for all its spellings: `95,4,1`, `95, 4, 1` and `[95, 4, 1]`."""
    if name == "split" and value is not None:
        try:
            return [float(part) for part in (value.replace("/", ",").split(",") if isinstance(value, str) else value)]
        except ValueError:  # of a record that was changed by hand
            return value
    words = {**SPELLINGS.get(name, {}), **kernels}
    if isinstance(value, list):
        return [_form(name, item, kernels) for item in value] if words else value
    return words.get(value, value) if isinstance(value, str) else value


def _same_size(a: Config, b: Config, name: str) -> bool:
    """Return whether a parameter is only another way to write the same size."""
    parts = ("num_attention_heads", "hidden_size", "intermediate_size")
    known = name in SIZES and all(config.get(part) is not ABSENT for config in (a, b) for part in parts)
    return known and SIZES[name](a) == SIZES[name](b)


def _names_of_setting(name: str) -> tuple[str, ...]:
    return next((names for names in SETTINGS if name in names), None) or names_of_setting(name)


def _familiar_name(names: list[str], sides: tuple[Config, Config]) -> str:
    """Return the name of a setting that is most familiar to the reader: one that a side sets."""
    placed = (name for config in sides for name in names if config.source(name).where)
    return next((name for name in PREFERRED_NAMES if name in names), None) or next(placed, names[0])


def _is_set(config: Config, name: str) -> bool:
    """Return whether the user set a parameter, or a retired one that stands for it."""
    inputs = [read for read in config.source(name).inputs if read in REGISTRY.parameters]
    return config.is_set(name) or any(REGISTRY.parameters[read].replaced_by and config.is_set(read) for read in inputs)
