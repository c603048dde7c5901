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


@pytest.mark.parametrize(
    ("given", "wanted", "sentence", "hint"),
    [
        ("big", Count, 'x ("big") must be a whole number, at least 1', ""),
        (plain("0"), Count, "x (0) must be a whole number, at least 1", ""),
        (plain("5.5"), int, "x (5.5) must be a whole number", ""),
        (plain("yes"), int, "x (yes) must be a whole number", ""),
        (plain("true"), float, "x (true) must be a number", ""),
        (
            plain("0123"),
            Natural,
            'x ("0123") must be a whole number, at least 0',
            "write 123, or 0o123 if the number is octal",
        ),
        (plain("0800"), Natural, 'x ("0800") must be a whole number, at least 0', "write 800"),
        (plain("00"), Natural, 'x ("00") must be a whole number, at least 0', "write 0"),
        (plain(".nan"), float, "x (.nan) must be a number", "write a finite number"),
        ({"a": [1, plain(".inf")]}, Any, "x.a[1] (.inf) must be a number", "write a finite number"),
        (plain(".inf"), Positive, "x (.inf) must be a number, greater than 0", "write a finite number"),
        (10**400, float, f"x (1{'0' * 37} …) must be a number", "write a finite number"),
        (plain("1.5"), Fraction, "x (1.5) must be a number, from 0 to 1", ""),
        (plain("0"), Annotated[float, Bound(gt=0, le=1)], "x (0) must be a number, greater than 0 and at most 1", ""),
        (plain("1"), bool, "x (1) must be true or false", "write true"),
        (plain("2"), bool, "x (2) must be true or false", ""),
        (plain("no"), str, "x (no) must be a string", "put `no` in quotes if it is meant as a string"),
        (None, Count, "x has no value; it must be a whole number, at least 1", ""),
        ({"a": 1}, Count, "x is not a section; it must be a whole number, at least 1", ""),
        ("rmsnrm", Norm, 'x ("rmsnrm") must be one of layernorm, rmsnorm', "did you mean rmsnorm?"),
        (plain("true"), Literal[0, 1], "x (true) must be one of 0, 1", ""),
        (
            ["rmsnorm"],
            Norm,
            'x (["rmsnorm"]) must be one of layernorm, rmsnorm',
            'write "rmsnorm" without the brackets',
        ),
        ([12], Count, "x ([12]) must be a whole number, at least 1", "write 12 without the brackets"),
        ("rmsnrm", list[Norm], 'x ("rmsnrm") must be one of layernorm, rmsnorm', "did you mean rmsnorm?"),
        (plain("1"), BelowOne, "x (1) must be a number, at least 0 and less than 1", ""),
        (0.9, list[float], "x (0.9) must be a list of numbers", "write [0.9]"),
        ("5, 6", list[int], 'x ("5, 6") must be a list of whole numbers', "write [5, 6]"),
        ("5, six", list[int], 'x ("5, six") must be a list of whole numbers', ""),
        ("treu", bool, 'x ("treu") must be true or false', "did you mean true?"),
        (True, list[float], "x (true) must be a list of numbers", ""),
        ([0.9, "b"], list[float] | None, 'x[1] ("b") must be a number', ""),
        ([1, [2]], list[int], "x[1] ([2]) must be a whole number", "write 2 without the brackets"),
        ([-1.0], list[NonNegative], "x[0] (-1.0) must be a number, at least 0", ""),
        ({"a": None}, dict[str, str], "x.a has no value; it must be a string", ""),
        ("a", dict[str, Any], 'x ("a") must be a mapping of keys to values', ""),
        (
            "some",
            int | list[int] | Literal["all"],
            'x ("some") must be a whole number, all, or a list of whole numbers',
            "",
        ),
        (plain("-1"), Count | Positive, "x (-1) must be a number, greater than 0", ""),
    ],
)
def test_messages_for_mismatches(given: Any, wanted: Any, sentence: str, hint: str) -> None:
    with pytest.raises(Mismatch) as bad:
        coerce(given, wanted)
    assert bad.value.sentence("x") == sentence
    assert bad.value.advice == hint


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
