"""Immutable classes with typed fields, for the modules that every command imports.

`dataclasses` is imported and generates code for as long as all declarations of the registry take. A `Record` generates
none. Fields are declared in the same way, and mypy checks them as it checks those of a dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform
else:  # in typing only since Python 3.11, and importing typing_extensions would cost every start 10 ms

    def dataclass_transform(**_: Any) -> Any:
        return lambda cls: cls


_REQUIRED = object()


def field(*, kw_only: Literal[True]) -> Any:
    """Declare a field without a default that is passed by name, so that it may follow fields with a default."""
    return _REQUIRED


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """A class with the fields `name: type` and `name: type = default`, passed by position or by name.

    Records are equal if they have the same class and equal values.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _names: ClassVar[frozenset[str]] = frozenset()
    _required: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        cls._fields = (*cls._fields, *cls.__annotations__)
        cls._names = frozenset(cls._fields)
        cls._required = frozenset(name for name in cls._fields if getattr(cls, name, _REQUIRED) is _REQUIRED)

    def __init__(self, *values: Any, **named: Any) -> None:
        given = self.__dict__
        given.update(zip(self._fields, values, strict=False), **named)
        if len(given) < len(values) + len(named) or not self._required <= given.keys() <= self._names:
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self._fields)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in as_dict(self).items())})"

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)


R = TypeVar("R", bound=Record)


def replace(record: R, **changes: Any) -> R:
    """Return a copy with other values of some fields."""
    return type(record)(**{**as_dict(record), **changes})


def as_dict(record: Record) -> dict[str, Any]:
    """Return name -> value of the fields."""
    return dict(zip(record._fields, record._values(), strict=True))
