"""The generated documentation is current, complete and well formed."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from neoxargs.registry import ABSENT, REGISTRY, normal
from neoxargs.resolve.compose import Text, compose
from neoxargs.tools.docs import parameters, write_docs
from neoxargs.tools.schema import schema

SHARED = Path(__file__).parents[3] / "shared"

#: Published configurations that are wrong, and what the schema complains of: keys that no GPT-NeoX knows, a number
#: with a slip of the pen.
BROKEN = {
    "llemma/7B.yml": ["decay_lr_to", "warmup_iters"],
    "llemma/34B.yml": ["attention_type"],
    "gmlp_small.yml": ["1.0e_8"],
}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    made = schema()
    jsonschema.Draft7Validator.check_schema(made)
    return jsonschema.Draft7Validator(made)


def test_committed_files_are_current() -> None:
    assert write_docs(check=True) == [], "run `python deepy.py docs`"


def test_writing_and_checking(tmp_path: Path) -> None:
    names = ["parameters.md", "neoxargs.schema.json"]
    assert write_docs(check=True, directory=tmp_path) == names
    assert list(tmp_path.iterdir()) == []
    assert write_docs(directory=tmp_path / "new") == names
    assert write_docs(check=True, directory=tmp_path / "new") == []
    (tmp_path / "new" / "parameters.md").write_text("old", encoding="utf-8")
    assert write_docs(directory=tmp_path / "new") == ["parameters.md"]
    assert (tmp_path / "new" / "parameters.md").read_text(encoding="utf-8") == parameters()


def rows() -> list[list[str]]:
    """The cells of every table row, without headers."""
    lines = [line for line in parameters().splitlines() if line.startswith("|") and not line.startswith("|-")]
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [cells for cells in split if cells[0] != "Origin"]


def test_every_row_has_every_column() -> None:
    assert {len(cells) for cells in rows()} == {7}
    assert all(origin and name and description and kind for origin, name, _, description, kind, _, _ in rows())


def test_every_name_has_one_row() -> None:
    names = [cells[1].strip("`") for cells in rows()]
    assert len(names) == len(set(names))
    own_spelling = {section for section, group in REGISTRY.sections.items() if group}
    assert set(names) >= set(REGISTRY.parameters) | own_spelling
    assert set(REGISTRY.renamed) - set(names) <= {name for name in REGISTRY.renamed if "." in name}


def test_names_of_the_first_table_are_found() -> None:
    path = SHARED / "reference" / "seed_parameters.tsv"
    if not path.exists():
        pytest.skip(f"no reference table {path}")
    table = {cells[1].strip("`"): cells for cells in rows()}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            assert row["origin"] in table[normal(row["name"])][0]


def test_rows_say_where_a_value_goes_and_what_it_is() -> None:
    table = {cells[1].strip("`"): cells for cells in rows()}
    assert table["num_layers"][2:] == [
        "**required**",
        REGISTRY.parameters["num_layers"].description,
        "a whole number, from 1 to 10000",
        "model",
        "train.py, Megatron-LM `--num-layers`",
    ]
    assert table["hostfile"][6] == "launcher `--hostfile`"
    assert table["zero_optimization.stage"][6] == "DeepSpeed JSON `zero_optimization.stage`, train.py"
    assert table["bias_gelu_fusion"][6] == "train.py, Megatron-LM `--no-bias-gelu-fusion` when false"
    assert table["mask_prob"][5] == "none: only BERT, ICT and REALM read it"
    assert table["moe_num_experts"][5] == "not built"
    assert table["attention_dropout"][2] == "`0.1`, `0.0` from 2023-12-26"
    assert table["pipe_partition_method"][2].startswith("`type:transformer\\|mlp`")
    assert table["save_interval"][3] == "Retired in December 2022: write `checkpoint_factor`."
    assert table["geglu"][6] == ""


def test_schema_accepts_every_default(validator: jsonschema.Draft7Validator) -> None:
    for parameter in REGISTRY.parameters.values():
        if parameter.default is not ABSENT:
            assert errors(validator, nested(parameter.name, parameter.default)) == []


@pytest.mark.parametrize(
    ("accepted", "refused"),
    [
        ({"num_layers": 12}, {"num_layers": 0}),
        ({"num-layers": 12}, {"num-layers": "many"}),
        ({"save-interval": 1000}, {"saves_interval": 1000}),
        ({"scaled-upper_triang-masked_softmax-fusion": True}, {"scaled-upper_triang-masked_softmax-fusion": 1}),
        ({"norm": "RMSNorm"}, {"norm": "RMSNorms"}),
        ({"warmup": 0.5}, {"warmup": 1.5}),
        ({"fp16": {"enabled": True}}, {"fp16": {"enable": True}}),
        ({"fp16": None}, {"fp16": 16}),
        ({"zero_optimization": {"offload-optimizer": {"device": "cpu"}}}, {"zero_optimization": {"device": "cpu"}}),
        ({"gradient_accumulation_steps": "auto"}, {"num_layers": "auto"}),
        ({"train_data_paths": ["a", "b"], "valid-data-paths": "a,b"}, {"train_data_paths": {"a": 1}}),
        ({"optimizer": {"type": "Adam", "params": {"lr": 0.1}}}, {"optimizer": {"type": "Adam", "lr": 0.1}}),
    ],
)
def test_schema_judges(validator: jsonschema.Draft7Validator, accepted: Any, refused: Any) -> None:
    assert errors(validator, accepted) == []
    assert errors(validator, refused) != []


def test_schema_documents_what_is_retired() -> None:
    old = schema()["properties"]["save_interval"]
    assert old["deprecated"] is True
    assert "checkpoint_factor" in old["description"]


def corpus() -> list[Path]:
    return sorted((SHARED / "corpus").rglob("*.yml"))


@pytest.mark.parametrize("path", corpus(), ids=lambda path: str(path.relative_to(SHARED / "corpus")))
def test_schema_accepts_published_configurations(validator: jsonschema.Draft7Validator, path: Path) -> None:
    node, problems = compose(Text(str(path), path.read_text(encoding="utf-8")))
    assert node is not None and problems == []
    wrong = [key for name, keys in BROKEN.items() if str(path).endswith(name) for key in keys]
    found = errors(validator, json.loads(json.dumps(node.plain())))
    assert all(any(key in message for message in found) for key in wrong)
    assert len(found) == (1 if wrong else 0), found


def errors(validator: jsonschema.Draft7Validator, value: Any) -> list[str]:
    return [error.message for error in validator.iter_errors(value)]


def nested(name: str, value: Any) -> Any:
    """`a.b` = 1 as {"a": {"b": 1}}."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return value
