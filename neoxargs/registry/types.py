"""Bounded types for declarations. `str()` of a bound is the text of the expectation in error messages and docs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin


class Bound(NamedTuple):
    """An interval that contains the allowed numbers; `None` means unbounded on that side."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def __str__(self) -> str:
        if self.ge is not None and self.le is not None:
            return f"from {self.ge} to {self.le}"
        sides = {"at least": self.ge, "greater than": self.gt, "at most": self.le, "less than": self.lt}
        return " and ".join(f"{words} {limit}" for words, limit in sides.items() if limit is not None)


def choices_of(kind: Any) -> list[Any]:
    """Return the values that a type names: those of every `Literal` in it, and of bool."""
    if kind is bool:
        return [True, False]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [value for part in get_args(kind) for value in choices_of(part)]


def words_of(kind: Any) -> list[str]:
    """Return these values as YAML has them."""
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in choices_of(kind)]


Count = Annotated[int, Bound(ge=1)]
Layers = Annotated[int, Bound(ge=1, le=10_000)]
Natural = Annotated[int, Bound(ge=0)]
Seed = Annotated[int, Bound(ge=0, le=2**32 - 1)]
Positive = Annotated[float, Bound(gt=0)]
NonNegative = Annotated[float, Bound(ge=0)]
Fraction = Annotated[float, Bound(ge=0, le=1)]
BelowOne = Annotated[float, Bound(ge=0, lt=1)]
Port = Annotated[int, Bound(ge=1, le=65535)]

#: Every spelling of a floating point format that DeepSpeed understands.
Dtype = Literal[
    "fp16", "float16", "half", "torch.float16",
    "bf16", "bfloat16", "torch.bfloat16",
    "fp32", "float32", "float", "torch.float32",
]  # fmt: skip

#: Where ZeRO keeps weights or the optimizer's state that are not in use.
Device = Literal["none", "cpu", "nvme"]

if TYPE_CHECKING:
    Stage = int
else:  # a list is a search space: the autotuner runs each experiment with one of them, so code that runs sees an int
    Stage = Literal[0, 1, 2, 3] | list[int]

#: Several files: a YAML list, or one string with commas between them.
Paths = list[str] | str
