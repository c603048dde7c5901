"""The complete configuration: typed groups, and the source of every value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from neoxargs.base.problems import Place, Problem
from neoxargs.base.record import replace
from neoxargs.config.dialect import Dialect
from neoxargs.config.groups import Groups
from neoxargs.config.value import DEFAULT, Source, Value
from neoxargs.registry import REGISTRY, Group, Parameter, normal

G = TypeVar("G", bound=Group)


class Uncertain(Exception):
    """Raised where a value is read that is unknown because of an error."""


class Config(Groups):
    """The complete configuration of a run; every parameter has a value.

    `config.shape.num_layers` for code that reads a parameter, `config.get(name)` for code that walks the registry,
    `config.source(name)` for code that explains.

    values: by registry name, every parameter that differs from its registry default or has another source.
    sections: sections present in the files, including empty ones (`fp16: {}`).
    warnings: problems that do not prevent a start.
    dialect: the GPT-NeoX version whose defaults apply (None on a rank, which receives resolved values).
    broken: parameters whose value is unknown or disputed because of a problem; empty without problems.
    """

    def __init__(
        self,
        values: Mapping[str, Value],
        sections: frozenset[str] = frozenset(),
        warnings: Sequence[Problem] = (),
        dialect: Dialect | None = None,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self.values = dict(values)
        self.sections = sections
        self.warnings = list(warnings)
        self.dialect = dialect
        self.broken = broken
        self.auto: frozenset[str] = frozenset()
        """Parameters set to `auto`, for `deepy explain`."""
        # `values` includes the defaults of the dialect; a parameter that is not in it has the registry's.
        members: dict[type[Group], dict[str, Any]] = {group: {} for group in REGISTRY.groups}
        for name, value in values.items():
            if parameter := REGISTRY.parameters.get(name):  # no whole section
                members[parameter.group][parameter.attribute] = value.value
        for group, of_group in members.items():
            if group.has_attribute:
                setattr(self, group.key(), group(**of_group))

    def get(self, name: str) -> Any:
        """Return the value of a parameter by its dotted registry name, with `-` or `_`.

        ABSENT if it is derived and no rule supplies it. Raises KeyError if there is no such parameter.
        """
        present = self.values.get(normal(name))
        return present.value if present else REGISTRY.parameters[normal(name)].default

    def group(self, cls: type[G]) -> G:
        """Return the group of a class, for code that is given the class."""
        return cast(G, getattr(self, cls.key()))

    def source(self, name: str) -> Source:
        """Return the source of a parameter's value; DEFAULT also for a name that is not a parameter."""
        present = self.values.get(normal(name))
        return present.source if present else DEFAULT

    def place(self, name: str) -> Place | None:
        """Return the place of the value or of one that it derives from; None if the user set neither."""
        # `seen`: synonyms derive from each other.
        waiting, seen = [name], set[str]()
        while waiting:
            source = self.source(waiting.pop())
            if source.where:
                return source.where
            waiting += [read for read in source.inputs if read not in seen]
            seen.update(source.inputs)
        return None

    def located(self, problem: Problem) -> Problem:
        """Return a problem that has no place with that of the first of its parameters which has one."""
        return replace(problem, where=problem.where or next(filter(None, map(self.place, problem.about)), None))

    def is_set(self, name: str) -> bool:
        """True if the user set this parameter."""
        return self.source(name).set_by_user

    def knows(self, name: str) -> bool:
        """Return whether the value is known, disputed or not."""
        return name not in self.broken

    def found(self, *checks: Callable[[], Iterable[Problem]]) -> list[Problem]:
        """Return the problems that checks find. Of a configuration with errors, each finds those that are certain."""
        return [problem for check in checks for problem in check()]

    def file_names(self) -> set[str]:
        """Return the names of the files that set values, and the paths among the values."""
        values = self.values.values()
        names = {value.source.where.file for value in values if value.source.where}
        return names | {value.value for value in values if isinstance(value.value, str) and "/" in value.value}

    def items(self) -> Iterator[tuple[Parameter, Value]]:
        """Yield every parameter in registry order, with its value and source."""
        for name, parameter in REGISTRY.parameters.items():
            yield parameter, self.values.get(name) or Value(parameter.default, DEFAULT)

    def with_values(self, values: Mapping[str, object], source: Source) -> Config:
        """Return the configuration with more values."""
        changed = {name: Value(value, source) for name, value in values.items()}
        return Config(self.values | changed, self.sections, self.warnings, self.dialect)
