"""Every parameter of GPT-NeoX's first (February 2021) and newest table is declared with its origin and default."""

from __future__ import annotations

import ast
import re
from typing import Any

from neoxargs.registry import ABSENT, REGISTRY, normal
from neoxargs.registry.history import NEWEST, default_at
from tests.support.each import for_each
from tests.support.reference import read


def literal(text: str) -> Any:
    """The value a table writes as text: Python or YAML spelling, or plain text."""
    spelled = {"true": True, "false": False}.get(text)
    if spelled is not None:
        return spelled
    if re.fullmatch(r"[\d, ]+,[\d, ]+", text):
        return text  # `969, 30, 1` is text in one table and quoted in the other
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


#: Parameters whose default the first table leaves empty and the registry knows.
FILLED_IN = {
    "tokenizer_type": "GPT2BPETokenizer",  # the newest table's
    "onnx_safe": False,  # a switch
    "lazy_mpu_init": False,  # a switch
    "zero_allow_untested_optimizer": False,  # a switch
    "include": "",  # the launcher's own "nothing given"
    "exclude": "",
    "master_addr": "",
}

#: Head names whose newest default is not the registry's, and why that is right.
ELSEWHERE = {
    "hostfile": (None, "/job/hostfile"),  # None makes NeoX look in that place
    "num_gpus": (None, -1),  # both mean all
    "include": (None, ""),
    "exclude": (None, ""),
    "master_addr": (None, ""),
    "git_hash": ("get_git_commit_hash()", None),  # looked up when a run starts
    "is_pipe_parallel": (False, ABSENT),  # computed from pipe_parallel_size
    "optimizer_type": ("adam", ABSENT),  # computed from optimizer.type
    "gradient_accumulation_steps": (1, ABSENT),  # solved from the batch sizes
}


@for_each(read("seed_parameters.tsv"))
def test_first_table(row: dict[str, str]) -> None:
    name = normal(row["name"])
    parameter = REGISTRY.find(name)
    if parameter is None:
        assert REGISTRY.sections[name].origin == row["origin"]
        assert row["default"] == ""
        return
    assert row["origin"] in parameter.origins
    if row["default"]:
        assert parameter.default == literal(row["default"])
    elif name in FILLED_IN:
        assert parameter.default == FILLED_IN[name]
    else:
        assert parameter.default in (ABSENT, None)


@for_each(read("neox_head_parameters.tsv"))
def test_newest_table(row: dict[str, str]) -> None:
    parameter = REGISTRY.find(row["name"])
    if parameter is None:
        assert row["name"] in REGISTRY.sections
        assert row["type"] == "dict"
        return
    newest, ours = literal(row["default"]), default_at(row["name"], NEWEST)
    if row["name"] in ELSEWHERE:
        assert (newest, ours) == ELSEWHERE[row["name"]]
    elif parameter.default is ABSENT:
        assert newest is None
    else:
        assert ours == newest
        assert type(ours) is type(newest) or {type(ours), type(newest)} == {int, float}
