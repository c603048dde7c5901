"""The declaration of parameters: `name: type = param(default, ...)` in the body of a `Group`, then a description.

Declaring must be fast, because every start of `deepy` declares all parameters: annotations are evaluated only when a
type is needed, and descriptions are read from the source file only when one is needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from neoxargs.base.record import dataclass_transform
from neoxargs.registry import types

Origin = Literal["DSL", "DSC", "Meg", "NeoX"]
Destination = Literal["runner", "deepspeed", "train"]

#: What a parameter affects. `engine`: DeepSpeed's engine, through a key of its JSON. `config`: only parameters that are
#: derived from it. `not built`: train.py supports only the default; `check` refuses every other value. `none`: nothing,
#: no run of train.py reads it. For the last two, the declaration gives the reason.
Effect = Literal[
    "launcher", "layout", "engine", "model", "optimizer", "schedule", "data", "memory", "checkpoint", "log", "run",
    "generation", "config", "not built", "none",
]  # fmt: skip

#: Origin -> default destinations of a parameter. train.py reads DeepSpeed's keys as well.
DESTINATIONS: dict[Origin, tuple[Destination, ...]] = {
    "DSL": ("runner",),
    "DSC": ("deepspeed", "train"),
    "Meg": ("train",),
    "NeoX": ("train",),
}


class _Absent:
    """The default of a parameter without one, because it is required or derived by a rule."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Any = _Absent()


class Parameter:
    """A declared parameter. `name` is dotted inside a section and uses `_`; for the other fields see `param`."""

    __slots__ = (
        "aliases", "annotation", "attribute", "default", "derived", "effect", "extra_choices", "group",
        "inherits_to", "instead", "megatron", "name", "no_effect_reason", "origins", "ours", "receiver_default",
        "refused", "replaced_by", "text", "to", "used_by_types",
    )  # fmt: skip

    name: str
    attribute: str
    annotation: str
    group: type[Group]
    origins: tuple[Origin, ...]
    ours: bool
    default: Any
    derived: bool
    receiver_default: Any
    megatron: str | None
    aliases: tuple[str, ...]
    replaced_by: Mapping[Any, Mapping[str, Any]] | None
    used_by_types: tuple[str, ...]
    to: tuple[Destination, ...]
    inherits_to: bool
    effect: Effect
    no_effect_reason: str
    refused: str | Mapping[str, str]
    instead: str
    extra_choices: tuple[Any, ...]
    """Choices that plugins add to those of the type."""
    text: str
    """The description if a data file has it, else empty."""

    @property
    def type(self) -> Any:
        """The declared type as an object (`int | None`, `Literal[...]`), with the choices of plugins."""
        declared = _evaluate(self.annotation, types.__name__ if self.group.in_data_file else self.group.__module__)
        return _widened(declared, self.extra_choices) if self.extra_choices else declared

    @property
    def required(self) -> bool:
        return self.default is ABSENT and not self.derived

    @property
    def description(self) -> str:
        return self.text or descriptions(self.group)[self.attribute]

    @property
    def brief(self) -> str:
        """The first clause of the description, starting in lower case. Code in backticks is not divided."""
        first, *_ = re.split(r"(?<=[\w`)])(?<!et al)[.;:](?=\s|$)(?=(?:[^`]*`[^`]*`)*[^`]*$)", self.description)
        return first[:1].lower() + first[1:] if first[1:2].islower() else first

    def __repr__(self) -> str:
        return f"Parameter({self.name}: {self.annotation})"


def param(  # noqa: PLR0913 - the columns of the registry
    default: Any = ABSENT,
    *,
    derived: bool = False,
    origin: Origin | tuple[Origin, ...] | None = None,
    ours: bool = False,
    receiver_default: Any = ABSENT,
    megatron: str | None = None,
    aliases: str | tuple[str, ...] = (),
    replaced_by: Mapping[Any, Mapping[str, Any]] | None = None,
    used_by_types: tuple[str, ...] = (),
    to: tuple[Destination, ...] | None = None,
    effect: Effect | None = None,
    no_effect_reason: str = "",
    refused: str | Mapping[str, str] = "",
    instead: str = "",
    text: str = "",
) -> Any:
    """Declare a parameter; name and type are on the same line, the description is the string below it.

    default: the value if it is not set. Without a default the parameter is required, or `derived`.
    derived: a rule in `resolve/rules` supplies the value if it is not set.
    origin: the program it comes from, by default the group's; a key with two origins is sent to both programs.
    ours: of origin NeoX or Meg but in no GPT-NeoX. It is not sent to GPT-NeoX's scripts, which refuse unknown names.
    receiver_default: the default in DeepSpeed, its launcher or Megatron if it differs from `default`.
    megatron: the flag of NVIDIA Megatron-LM without dashes; `!flag` is sent if the value is false.
    aliases: retired names with exactly the same meaning.
    replaced_by: for a retired parameter, value -> {parameter: value} of the current equivalent.
    used_by_types: the `type`s of optimizer or scheduler that read this parameter; empty means all.
    to: destinations, by default those of its origin; `()` means that only deepy itself uses it.
    effect: what it affects, by default the group's.
    no_effect_reason: the reason for the effect `none`: a clause that follows "has no effect:".
    refused: why train.py refuses the values that it does not support: a clause that follows "is not supported by
        train.py:". If the reasons differ, value -> clause; the clause of "" is for all other unsupported values.
    instead: what to write instead of a refused value: an imperative.
    text: the description, if it is not the string below.
    """
    parameter = Parameter()
    parameter.default = default
    parameter.derived = derived
    parameter.origins = (origin,) if isinstance(origin, str) else origin or ()
    parameter.ours = ours
    parameter.receiver_default = default if receiver_default is ABSENT else receiver_default
    parameter.megatron = megatron
    parameter.aliases = _as_tuple(aliases)
    parameter.replaced_by = replaced_by
    parameter.used_by_types = tuple(used_by_types)
    parameter.to = to or ()
    parameter.inherits_to = to is None
    if effect is not None:
        parameter.effect = effect
    parameter.no_effect_reason = no_effect_reason
    parameter.refused, parameter.instead = refused, instead
    parameter.extra_choices, parameter.text = (), text
    return parameter


#: Every declared group, in order of declaration: those of `neoxargs.registry`, then those of plugins.
GROUPS: list[type[Group]] = []


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(param,))
class Group:
    """The parameters of a subject. Instances hold values; an attribute that is not set returns its default.

    section: the dotted name of a section (`zero_optimization.offload_param`); "" is the top level.
    aliases: retired names of the section.
    always_sent: attributes that are sent with the section even if they are not set: the receiver requires them, or its
        default changed between releases.
    effect, no_effect_reason: the defaults of the group's parameters.
    in_data_file: declared by `data_file`.
    has_attribute: whether `Config` has an attribute for the group; otherwise, values are read by name only.
    """

    parameters: ClassVar[dict[str, Parameter]]
    origin: ClassVar[Origin]
    section: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]]
    always_sent: ClassVar[tuple[str, ...]]
    in_data_file: ClassVar[bool]
    has_attribute: ClassVar[bool]

    def __init_subclass__(
        cls,
        *,
        origin: Origin,
        effect: Effect,
        no_effect_reason: str = "",
        section: str = "",
        aliases: str | tuple[str, ...] = (),
        always_sent: tuple[str, ...] = (),
        in_data_file: bool = False,
        has_attribute: bool = True,
    ) -> None:
        cls.origin, cls.section, cls.always_sent = origin, section, always_sent
        cls.in_data_file, cls.has_attribute = in_data_file, has_attribute
        cls.aliases = _as_tuple(aliases)
        cls.parameters = {}
        prefix = section + "." if section else ""
        for attribute, annotation in cls.__annotations__.items():
            parameter = cls.__dict__[attribute]
            parameter.name, parameter.attribute = prefix + attribute, attribute
            parameter.annotation, parameter.group = annotation, cls
            parameter.origins = parameter.origins or (origin,)
            if parameter.inherits_to:
                parameter.to = tuple(dict.fromkeys(d for o in parameter.origins for d in DESTINATIONS[o]))
            if not hasattr(parameter, "effect"):
                parameter.effect, parameter.no_effect_reason = effect, no_effect_reason
            cls.parameters[attribute] = parameter
            if parameter.default is ABSENT:
                delattr(cls, attribute)
            else:
                setattr(cls, attribute, parameter.default)
        GROUPS.append(cls)

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    @classmethod
    def key(cls) -> str:
        """Return the attribute of `Config` that holds this group: `OffloadParam` -> `offload_param`."""
        return _snake(cls.__name__)


class Registry:
    """All parameters by name, all sections by dotted name, and all retired names."""

    def __init__(self, groups: Iterable[type[Group]]) -> None:
        self.groups = tuple(groups)
        self.parameters: dict[str, Parameter] = {}
        self.sections: dict[str, type[Group] | None] = {}
        self.renamed: dict[str, Parameter] = {}
        self.required: list[Parameter] = []
        for group in self.groups:
            self._add(group)

    def add(self, group: type[Group]) -> None:
        """Add a plugin's group. If its section exists already, the existing group still describes the section."""
        self.groups += (group,)
        present = self.sections.get(group.section)
        self._add(group)
        if present:
            self.sections[group.section] = present

    def _add(self, group: type[Group]) -> None:
        path = group.section
        if path:
            self.sections[path] = group
        while "." in path:  # parent sections, which may have no group of their own
            path = path.rpartition(".")[0]
            self.sections.setdefault(path, None)
        prefix = group.section + "." if group.section else ""
        self.required += [parameter for parameter in group.parameters.values() if parameter.required]
        for parameter in group.parameters.values():
            assert parameter.name not in self.parameters, f"{parameter.name} is declared twice"
            self.parameters[parameter.name] = parameter
            for old in parameter.aliases:
                self.renamed[prefix + old] = parameter
        for alias in group.aliases:
            self._add_section_alias(alias, group)

    def _add_section_alias(self, alias: str, group: type[Group]) -> None:
        """Map the names in a section's retired spelling to its parameters."""
        self.sections[alias] = group
        for parameter in group.parameters.values():
            for spelling in (parameter.attribute, *parameter.aliases):
                self.renamed[f"{alias}.{spelling}"] = parameter

    def find(self, name: str) -> Parameter | None:
        """Return the parameter of a name, which may be retired and may contain `-` for `_`, or None."""
        name = normal(name)
        return self.parameters.get(name) or self.renamed.get(name)


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def normal(name: str) -> str:
    """Return a key in the registry's spelling, with `_` for `-`."""
    return name.replace("-", "_")


def descriptions(group: type[Group]) -> dict[str, str]:
    """Return attribute -> the string below its declaration, read from the source file, or its text in the data file."""
    if group.in_data_file:
        return {attribute: parameter.text for attribute, parameter in group.parameters.items()}
    path = sys.modules[group.__module__].__file__
    assert path is not None
    from neoxargs.registry.docstrings import read  # parses the source, which is slow

    return read(path, group.__name__)


@cache
def _evaluate(annotation: str, module: str) -> Any:
    return eval(annotation, vars(sys.modules[module]))


def _widened(kind: Any, choices: tuple[Any, ...]) -> Any:
    """Return the type with `choices` added to each of its `Literal`s."""
    origin: Any = get_origin(kind)
    parts = get_args(kind)
    if origin is Literal:
        wider = (*parts, *choices)
        return origin[wider]
    if not parts:
        return kind
    inner = tuple(_widened(part, choices) for part in parts)
    return Union[inner] if origin is UnionType else origin[inner]  # noqa: UP007 - of a tuple


@cache
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
