"""One complete configuration: typed groups to read from, and for every value where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neoxargs.problems import Place, Problem
from neoxargs.registry import REGISTRY, Parameter, normal
from neoxargs.resolve.dialect import Dialect
from neoxargs.resolve.groups import Groups
from neoxargs.resolve.value import DEFAULT, Source, Value


class Config(Groups):
    """The complete configuration of a run; every parameter has a value.

    `config.shape.num_layers` for code that reads a parameter, `config.get(name)` for code that walks the registry,
    `config.source(name)` for code that explains.

    values: by registry name, every parameter that does not simply have its registry default.
    sections: nested sections the user wrote, even empty ones (`fp16: {}`).
    warnings: what is worth telling although the run can start.
    dialect: which year's GPT-NeoX the files speak (None on a rank, which receives resolved values).
    broken: parameters that a problem leaves in doubt, where the files did not resolve and this is the certain part.
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
        """Parameters written as `auto`, for those who explain."""
        for group in REGISTRY.groups:
            members = {p.attribute: self.values[p.name].value for p in group.parameters.values() if p.name in values}
            setattr(self, group.key(), group(**members))

    def get(self, name: str) -> Any:
        """The value of a parameter by its dotted registry name, `-` or `_`.

        ABSENT where it is derived and no rule supplies it. KeyError if there is no such parameter.
        """
        present = self.values.get(normal(name))
        return present.value if present else REGISTRY.parameters[normal(name)].default

    def source(self, name: str) -> Source:
        """Where the value of a parameter came from; DEFAULT also for a name that is no parameter."""
        present = self.values.get(normal(name))
        return present.source if present else DEFAULT

    def place(self, name: str) -> Place | None:
        """Where the value was written, or else one that it was derived from; None if it rests on nothing written."""
        waiting, seen = [name], set[str]()
        while waiting:
            source = self.source(waiting.pop())
            if source.where:
                return source.where
            waiting += [read for read in source.inputs if read not in seen]
            seen.update(source.inputs)
        return None

    def is_set(self, name: str) -> bool:
        """True where the user gave this value."""
        return self.source(name).set_by_user

    def items(self) -> Iterator[tuple[Parameter, Value]]:
        """Every parameter in registry order with its value and source."""
        for name, parameter in REGISTRY.parameters.items():
            yield parameter, self.values.get(name) or Value(parameter.default, DEFAULT)
