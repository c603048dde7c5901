"""Which written values fit a type, and what is said about those that do not."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

from neoxargs.registry import REGISTRY
from neoxargs.registry.types import (
    BelowOne,
    Bound,
    Count,
    Fraction,
    Natural,
    NonNegative,
    Paths,
    Positive,
)
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.values.describe_type import describe_type
from neoxargs.resolve.yaml.nodes import Scalar, read_plain
from tests.support.each import for_each
from tests.support.snapshots import pinned

Norm = Literal["layernorm", "rmsnorm"]


def plain(text: str) -> Scalar:
    return Scalar(read_plain(text), text)


@pytest.mark.parametrize(
    ("given", "wanted", "value"),
    [
        (plain("12"), Count, 12),
        (plain("5e8"), Count, 500_000_000),
        (plain("1.0"), int, 1),
        ("10", Count, 10),
        (" 5e8 ", Count, 500_000_000),
        (plain("1"), float, 1.0),
        (plain("1e-4"), NonNegative, 1e-4),
        ("1e-4", Positive, 1e-4),
        (plain("0"), Fraction, 0.0),
        (plain("yes"), bool, True),
        ("False", bool, False),
        (plain("0"), str, "0"),
        (plain("1e-4"), str, "1e-4"),
        (plain("2021_02"), str, "2021_02"),
        ("", str, ""),
        (plain("RMSNorm"), Norm, "rmsnorm"),
        (plain("off"), Literal["on", "off"], "off"),
        ("warn", Literal["WARN", "warn"], "warn"),
        (plain("2"), Literal[0, 1, 2], 2),
        ("2", Literal[0, 1, 2], 2),
        ([1, 2.0], list[int], [1, 2]),
        (plain("RMSNorm"), list[Norm], ["rmsnorm"]),
        ([0.9, 0.999], list[float] | None, [0.9, 0.999]),
        ([], list[str], []),
        (None, Count | None, None),
        (3, Count | None, 3),
        ({"a": 1}, dict[str, Any], {"a": 1}),
        ({"a": 1}, dict[str, str], {"a": "1"}),
        ([["flash"], 2], list[Any], [["flash"], 2]),
        ({"a": [1]}, Any, {"a": [1]}),
        ("a,b", Paths, "a,b"),
        (["a"], Paths, ["a"]),
        (plain("0.5"), Count | Positive, 0.5),
        (plain("1000"), Count | Positive, 1000),
        (plain("1e3"), Count | Positive, 1000.0),
        ("all", int | list[int] | Literal["all"], "all"),
        (plain("5"), str | int, 5),
        ("5", int | str, "5"),
        (plain("true"), bool | dict[str, Any], True),
    ],
)
def test_matching_values_are_converted(given: Any, wanted: Any, value: Any) -> None:
    found = coerce(given, wanted)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(("given", "wanted"), [
    ("big", Count), (plain("0"), Count), (plain("5.5"), int), (plain("yes"), int), (plain("true"), float),
    (plain("0123"), Natural), (plain("0800"), Natural), (plain("00"), Natural), (plain(".nan"), float),
    ({"a": [1, plain(".inf")]}, Any), (plain(".inf"), Positive), (10**400, float), (plain("1.5"), Fraction),
    (plain("0"), Annotated[float, Bound(gt=0, le=1)]), (plain("1"), bool), (plain("2"), bool), (plain("no"), str),
    (None, Count), ({"a": 1}, Count), ("rmsnrm", Norm), (plain("true"), Literal[0, 1]), (["rmsnorm"], Norm),
    ([12], Count), ("rmsnrm", list[Norm]), (plain("1"), BelowOne), (0.9, list[float]), ("5, 6", list[int]),
    ("5, six", list[int]), ("treu", bool), (True, list[float]), ([0.9, "b"], list[float] | None),
    ([1, [2]], list[int]), ([-1.0], list[NonNegative]), ({"a": None}, dict[str, str]), ("a", dict[str, Any]),
    ("some", int | list[int] | Literal["all"]), (plain("-1"), Count | Positive),
])  # fmt: skip
def test_messages_for_mismatches(given: Any, wanted: Any) -> None:
    with pytest.raises(Mismatch) as bad:
        coerce(given, wanted)
    pinned((bad.value.sentence("x"), bad.value.advice))


@for_each(REGISTRY.parameters)
def test_every_declared_type_is_understood(name: str) -> None:
    wanted = REGISTRY.parameters[name].type
    assert describe_type(wanted)
    for attack in ("§", 1.5, -1, True, None, [None], {"k": [1]}, [[1], "a"]):
        try:
            coerce(attack, wanted)
        except Mismatch as bad:
            assert name in bad.sentence(name)


@pytest.mark.parametrize(("text", "hint"), [("1.0e_8", "did you mean 1.0e-8?"), ("5_e8", "did you mean 5e8?")])
def test_a_number_with_a_double_underscore(text: str, hint: str) -> None:
    with pytest.raises(Mismatch) as caught:
        coerce(plain(text), float)
    assert caught.value.advice == hint


def test_choices_stay_in_their_order() -> None:
    """Two `Literal`s of the same words are equal, so nothing may be remembered by type."""
    assert [describe_type(Literal["a", "b"]), describe_type(Literal["b", "a"])] == ["one of a, b", "one of b, a"]
