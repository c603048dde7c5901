"""One complete configuration: typed groups to read from, and for every value where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from neoxargs.problems import Place, Problem
from neoxargs.registry import REGISTRY, Parameter, normal
from neoxargs.resolve.groups import Groups

if TYPE_CHECKING:
    from neoxargs.resolve.dialect import Dialect

Kind = Literal["file", "set", "environment", "derived", "default"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from, in words a person can follow."""

    kind: Kind
    where: Place | None = None
    text: str = ""
    """For `derived` the rule's own sentence, for `environment` the variable, for `default` whose; a written
    value that a rule put into its full form carries that rule's sentence."""
    inputs: tuple[str, ...] = ()
    """For `derived`, the parameters the rule read."""

    @property
    def written(self) -> bool:
        """Did the user say so (in a file, by `--set`, through the environment)?"""
        return self.kind in ("file", "set", "environment")

    def __str__(self) -> str:
        if self.kind == "derived":
            return f"derived: {self.text}"
        return str(self.where) if self.where else f"{self.kind}: {self.text}" if self.text else self.kind


DEFAULT = Source("default")


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its source."""

    value: Any
    source: Source


class Config(Groups):
    """What a run is. `config.shape.num_layers` for code that reads a parameter, `config.get(name)` for
    code that walks the registry, `config.source(name)` for code that explains.

    values: every parameter that does not simply have its registry default.
    sections: nested sections the user wrote, even empty ones (`fp16: {}`).
    warnings: what is worth telling although the run can start.
    dialect: which year's GPT-NeoX the files speak (None on a rank, which receives resolved values).
    broken: what a problem leaves in doubt, where this is all that is certain of a configuration that came to none.
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
        """What was written as `auto`, for those who explain."""
        for group in REGISTRY.groups:
            members = {p.attribute: self.values[p.name].value for p in group.parameters.values() if p.name in values}
            setattr(self, group.key(), group(**members))

    def get(self, name: str) -> Any:
        """The value of a parameter by its dotted name; KeyError if there is none."""
        found = self.values.get(normal(name))
        return found.value if found else REGISTRY.parameters[normal(name)].default

    def source(self, name: str) -> Source:
        found = self.values.get(normal(name))
        return found.source if found else DEFAULT

    def place(self, name: str) -> Place | None:
        """Where the value was written, or else one that it was derived from."""
        waiting, seen = [name], set[str]()
        while waiting:
            source = self.source(waiting.pop())
            if source.where:
                return source.where
            waiting += [read for read in source.inputs if read not in seen]
            seen.update(source.inputs)
        return None

    def written(self, name: str) -> bool:
        """Did the user give this value?"""
        return self.source(name).written

    def items(self) -> Iterator[tuple[Parameter, Value]]:
        """Every parameter in registry order with its value and source."""
        for name, parameter in REGISTRY.parameters.items():
            yield parameter, self.values.get(name) or Value(parameter.default, DEFAULT)
