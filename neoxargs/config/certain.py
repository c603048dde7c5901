"""What checks may read of a configuration with errors, so that they report nothing that ends with these errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from neoxargs.base.problems import Place, Problem
from neoxargs.config.config import Config, Uncertain
from neoxargs.config.value import Value
from neoxargs.registry import REGISTRY, Group

G = TypeVar("G", bound=Group)


class CertainConfig(Config):
    """The values of a configuration that its errors do not affect.

    A check that reads an unknown value ends there (`Uncertain`). A disputed value, which is known but contradicts
    another, can be read, but a problem found with it is kept only if it is about it as well.

    unknown: parameter -> the keys whose errors make its value unknown.
    disputed: the parameters that errors are about although their values are known.
    missed: the keys because of which something was left out since the last `take_missed`.
    """

    def __init__(self, config: Config, unknown: Mapping[str, frozenset[str]], disputed: Iterable[str]) -> None:
        known = {name: value for name, value in config.values.items() if name not in unknown}
        self.unknown, self.disputed = unknown, frozenset(disputed)
        super().__init__(known, config.sections, (), config.dialect, self.disputed.union(unknown))
        self.missed = set[str]()
        self.read = set[str]()
        """The disputed parameters that the check has read so far."""
        self._sources = Config(known)
        self.values = _Values(known, self.ask)
        affected = self.unknown.keys() | self.disputed
        for group in REGISTRY.groups:
            if group.has_attribute and any(p.name in affected for p in group.parameters.values()):
                setattr(self, group.key(), watched(getattr(self, group.key()), self.ask))

    def ask(self, name: str) -> None:
        """Note that a value is read; raises Uncertain if it is unknown."""
        if name in self.unknown:
            self.missed |= self.unknown[name]
            raise Uncertain(name)
        if name in self.disputed:
            self.read.add(name)

    def knows(self, name: str) -> bool:
        if name in self.unknown:
            self.missed |= self.unknown[name]
        return name not in self.unknown

    def place(self, name: str) -> Place | None:
        return self._sources.place(name)  # says nothing about the value

    def found(self, *checks: Callable[[], Iterable[Problem]]) -> list[Problem]:
        return [problem for check in checks for problem in self._found(check)]

    def _found(self, check: Callable[[], Iterable[Problem]]) -> list[Problem]:
        outer, self.read = self.read, set()
        kept = []
        try:
            for problem in check():
                if doubtful := self.read.difference(problem.about):
                    self.missed |= doubtful
                else:
                    kept.append(problem)
        except Uncertain:
            pass
        except Exception:  # of a check that relies on what a rule has found not to hold
            if not self.read:
                raise
            self.missed |= self.read
        finally:
            self.read = outer
        return kept

    def take_missed(self) -> frozenset[str]:
        """Return the keys because of which something was left out since the last call."""
        taken, self.missed = frozenset(self.missed), set()
        return taken


class _Values(dict[str, Value]):
    """The values by name. Iteration yields only known ones."""

    def __init__(self, values: Mapping[str, Value], ask: Callable[[str], None]) -> None:
        super().__init__(values)
        self.ask = ask

    def __contains__(self, name: object) -> bool:
        self.ask(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Value:
        self.ask(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.ask(name)
        return super().get(name, default)


def watched(group: G, ask: Callable[[str], None]) -> G:
    """Return a view of a group that calls `ask` with the name of each parameter that is read."""
    return cast(G, _GroupView(group, ask))


class _GroupView:
    __slots__ = ("_ask", "_group")

    def __init__(self, group: Group, ask: Callable[[str], None]) -> None:
        self._group, self._ask = group, ask

    def __getattr__(self, attribute: str) -> Any:
        if parameter := self._group.parameters.get(attribute):
            self._ask(parameter.name)
        return getattr(self._group, attribute)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        for parameter in self._group.parameters.values():
            self._ask(parameter.name)
        return vars(self._group)
