"""The page of parameters is complete and well formed."""

from __future__ import annotations

import re

from neoxargs.commands.docs.parameters import neox_dates, page
from neoxargs.registry import REGISTRY, normal
from tests.support.reference import read
from tests.support.snapshots import pinned


def rows() -> list[list[str]]:
    """Return the cells of every table row, without headers."""
    lines = [line for line in page().splitlines() if line.startswith("|") and not line.startswith("|-")]
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [cells for cells in split if cells[0] != "Origin"]


def test_every_row_has_every_column() -> None:
    assert {len(cells) for cells in rows()} == {8}
    assert all(origin and name and description and kind for origin, name, _, description, kind, *_ in rows())


def name_of(cells: list[str]) -> str:
    """Return the name in a row, and check that it has an anchor and links to it."""
    match = re.fullmatch(r'<a id="(.+)" href="#\1">`\1`</a>', cells[1])
    assert match, cells[1]
    return match[1]


def table() -> dict[str, list[str]]:
    return {name_of(cells): cells for cells in rows()}


def test_every_name_has_one_row() -> None:
    names = [name_of(cells) for cells in rows()]
    assert len(names) == len(set(names))
    own_spelling = {section for section, group in REGISTRY.sections.items() if group}
    assert set(names) >= set(REGISTRY.parameters) | own_spelling
    assert set(REGISTRY.renamed) - set(names) <= {name for name in REGISTRY.renamed if "." in name}


def test_parameters_of_the_seed_table_have_rows_with_their_origins() -> None:
    rows_by_name = table()
    for row in read("seed_parameters.tsv"):
        assert row["origin"] in rows_by_name[normal(row["name"])][0]


def test_cells_of_rows() -> None:
    rows_by_name = table()
    pinned(rows_by_name["num_layers"][2:])
    assert rows_by_name["hostfile"][6] == "launcher `--hostfile`"
    assert rows_by_name["zero_optimization.stage"][6] == "DeepSpeed JSON `zero_optimization.stage`, train.py"
    assert rows_by_name["bias_gelu_fusion"][6] == "train.py, Megatron-LM `--no-bias-gelu-fusion` when false"
    assert rows_by_name["mask_prob"][5] == "none: only BERT, ICT and REALM read it"
    assert rows_by_name["moe_glu"][5].startswith("not built: it gates the experts")
    assert rows_by_name["attention_config"][5].startswith("model: `gmlp` or `amlp`: GPT-NeoX's gMLP")
    assert rows_by_name["attention_dropout"][2] == "`0.1`, `0.0` from 2023-12-26"
    assert rows_by_name["pipe_partition_method"][2].startswith("`type:transformer\\|mlp`")
    assert rows_by_name["save_interval"][3] == "Retired in December 2022: use `checkpoint_factor`."
    assert rows_by_name["geglu"][6] == ""


def test_dates_in_gpt_neox() -> None:
    expected = {
        "hidden_size": "always",
        "zero_optimization.stage": "always",
        "checkpoint_factor": "since 2022-12-14",
        "bf16.enabled": "since 2023-03-26",
        "save_interval": "until 2022-12-14",
        "mlp_type": "since 2023-05-02 until 2024-09-10",
        "text_path": "",
        "hybrid_engine.enabled": "",
    }
    assert {name: table()[name][7] for name in expected} == expected


def test_only_names_of_gpt_neox_have_dates() -> None:
    head = {row["name"] for row in read("neox_head_parameters.tsv")}
    today = {name for name in table() if "." not in name and neox_dates(name) and "until" not in neox_dates(name)}
    assert {name for name in head if REGISTRY.find(name)} - today == set()
    assert today - head == set()


def test_the_origin_is_the_one_that_explain_says() -> None:
    origins = {name_of(cells): cells[0] for cells in rows()}
    assert {name for name, p in REGISTRY.parameters.items() if p.ours} == {
        name for name, origin in origins.items() if origin == "deepy" and name in REGISTRY.parameters
    }
    assert (origins["lora"], origins["lora.rank"], origins["num_layers"]) == ("deepy", "deepy", "Meg")
