"""Scalars: numbers as in YAML 1.2, booleans as GPT-NeoX's users have them from PyYAML."""

from __future__ import annotations

import math
from typing import Any

import pytest

from neoxargs.resolve.yaml.nodes import Mapping, Scalar, Sequence, format_node, node_of, read_plain

# What YAML 1.2's core schema (section 10.3.2) reads, and what this reads.
YAML_1_2 = {
    "null": None, "Null": None, "NULL": None, "~": None, "": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    "0": 0, "3": 3, "-19": -19, "+5": 5, "-0": 0, "0o7": 7, "0o17": 15, "0x3A": 58, "0xff": 255,
    "0.": 0.0, "1.": 1.0, "-0.0": -0.0, ".5": 0.5, "+.5": 0.5, "+12e03": 12000.0, "-2E+05": -200000.0,
    "1e-4": 1e-4, "5e8": 5e8, "1.0e-8": 1e-8, "1E3": 1000.0, "6.02e23": 6.02e23, "12e-3": 0.012,
    ".inf": math.inf, "-.Inf": -math.inf, "+.INF": math.inf,
    "2021-02-28": "2021-02-28", "1:30": "1:30", "190:20:30.15": "190:20:30.15", "1.2.3": "1.2.3", "e5": "e5",
    "1e": "1e", ".": ".", "-": "-", "+": "+", "0x": "0x", "0o8": "0o8", "y": "y", "n": "n", "nan": "nan", "NaN": "NaN",
    "12 34": "12 34", "1.0e_8": "1.0e_8", "0xZZ": "0xZZ", "--1": "--1", "½": "½", "٣": "٣",
}  # fmt: skip
# Where we keep YAML 1.1's, because configurations of GPT-NeoX are read by PyYAML.
YAML_1_1 = {
    "yes": True, "Yes": True, "YES": True, "on": True, "On": True, "ON": True,
    "no": False, "No": False, "NO": False, "off": False, "Off": False, "OFF": False,
    "1_000_000": 1000000, "500_000.5": 500000.5, "0b101": 5, "0x_ff": 255,
}  # fmt: skip
# YAML 1.1 and 1.2 disagree on 0123, which stays a string; Python's None is null.
OURS = {"0123": "0123", "007": "007", "1__0": "1__0", "1_": "1_", "None": None, "none": "none", "9" * 5000: "9" * 5000}


@pytest.mark.parametrize(("text", "value"), [*YAML_1_2.items(), *YAML_1_1.items(), *OURS.items()])
def test_plain_scalars(text: str, value: Any) -> None:
    read = read_plain(text)
    assert (type(read), read) == (type(value), value)


def test_not_a_number() -> None:
    assert math.isnan(read_plain(".nan"))


def test_python_values_become_nodes_and_back() -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": {"c": "d"}}
    node = node_of(value)
    assert isinstance(node, Mapping)
    assert node.to_python() == value
    assert node_of(node) is node


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Scalar("big", "big"), '"big"'),
        (Scalar("10", "10", quoted=True), '"10"'),
        (Scalar(5e8, "5e8"), "5e8"),
        (Scalar(True, "yes"), "yes"),
        (Scalar(None, ""), "null"),
        (Scalar("a\nb\x1b", ""), '"a\\nb\\u001b"'),
        (Sequence([Scalar(1, "1"), Scalar("a", "a")]), '[1, "a"]'),
        (Scalar("x" * 99, ""), '"' + "x" * 37 + " …"),
    ],
)
def test_values_in_messages(node: Scalar | Sequence, text: str) -> None:
    assert format_node(node) == text
