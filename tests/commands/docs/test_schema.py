"""The JSON Schema accepts and rejects the same files as `deepy check`, at the same places."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from neoxargs.base.files import Text
from neoxargs.commands.docs.schema import schema
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.yaml.compose import compose
from tests.support.paths import CONFIGS, CORPUS, DOCS, ROOT, corpus_files, needs_corpus

#: Published configurations with errors: keys that no GPT-NeoX knows, and a mistyped number. `deepy check` reports the
#: same.
BROKEN = {
    "llemma/7B.yml": ["decay_lr_to", "warmup_iters"],
    "llemma/34B.yml": ["attention_type"],
    "gmlp_small.yml": ["1.0e_8"],
}
#: Values of every YAML type, inside and outside of most bounds.
SAMPLES = (
    0, 1, -1, 2, 0.5, -0.5, 1e9, 10001, 70000, True, None, "text", "", [], [1], ["a"], [0.9, 0.99], [True], [[1]],
    {}, {"a": 1},
)  # fmt: skip


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    made = schema()
    jsonschema.Draft7Validator.check_schema(made)
    return jsonschema.Draft7Validator(made)


def shipped() -> list[Path]:
    return sorted(CONFIGS.rglob("*.yml"))


def read(path: Path) -> Any:
    node, problems = compose(Text(str(path), path.read_text(encoding="utf-8")))
    assert node is not None and problems == []
    return json.loads(json.dumps(node.to_python()))


def errors(validator: jsonschema.Draft7Validator, value: Any) -> list[str]:
    return [error.message for error in validator.iter_errors(value)]


def places(validator: jsonschema.Draft7Validator, value: Any) -> list[str]:
    """Return the dotted path of each error, including the key for an unknown one."""
    paths = []
    for error in validator.iter_errors(value):
        unknown = error.validator == "additionalProperties"
        keys = re.findall(r"'([^']+)' (?:does|was) ", error.message) if unknown else []
        paths.append(".".join(map(str, [*error.absolute_path, *keys])))
    return paths


def nested(name: str, value: Any) -> Any:
    """Return `a.b` = 1 as {"a": {"b": 1}}."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize("path", shipped(), ids=lambda path: str(path.relative_to(ROOT)))
def test_shipped_configurations_name_the_schema_and_are_valid(
    validator: jsonschema.Draft7Validator, path: Path
) -> None:
    line = re.match(r"# yaml-language-server: \$schema=(.+)\n", path.read_text(encoding="utf-8"))
    assert line and (path.parent / line[1]).resolve() == DOCS / "neoxargs.schema.json"
    assert errors(validator, read(path)) == []


@needs_corpus
@pytest.mark.parametrize("path", corpus_files(), ids=lambda path: str(path.relative_to(CORPUS)))
def test_published_configurations_are_valid(validator: jsonschema.Draft7Validator, path: Path) -> None:
    wrong = [key for name, keys in BROKEN.items() if str(path).endswith(name) for key in keys]
    messages = errors(validator, read(path))
    assert all(any(key in message for message in messages) for key in wrong)
    assert len(messages) == (1 if wrong else 0), messages


def test_every_default_is_accepted(validator: jsonschema.Draft7Validator) -> None:
    for parameter in REGISTRY.parameters.values():
        if parameter.default is not ABSENT:
            assert errors(validator, nested(parameter.name, parameter.default)) == []


def test_the_schema_accepts_the_same_values_as_check() -> None:
    made = schema()
    for name, parameter in REGISTRY.parameters.items():
        part: Any = made
        for key in name.split("."):
            part = part["properties"][key]
        for value in SAMPLES:
            assert jsonschema.Draft7Validator(part).is_valid(value) == fits(value, parameter.type), (name, value)
        if "DSC" in parameter.origins:
            assert jsonschema.Draft7Validator(part).is_valid("auto"), name


def test_the_schema_rejects_numbers_in_quotes(validator: jsonschema.Draft7Validator) -> None:
    for name, value in {"num_layers": "12", "lr": "1e-4", "use_wandb": "true"}.items():
        assert fits(value, REGISTRY.parameters[name].type)
        assert places(validator, {name: value}) == [name]


def fits(value: Any, wanted: Any) -> bool:
    try:
        coerce(value, wanted)
    except Mismatch:
        return False
    return True


@pytest.mark.parametrize(
    "accepted",
    [
        {"num-layers": 12},
        {"save-interval": 1000},
        {"scaled-upper_triang-masked_softmax-fusion": True},
        {"norm": "RMSNorm"},
        {"fp16": None},
        {"gradient_accumulation_steps": "auto"},
        {"zero_optimization": {"offload-optimizer": {"device": "cpu"}}},
        {"train_data_paths": ["a", "b"], "valid-data-paths": "a,b"},
        {"optimizer": {"type": "Adam", "params": {"lr": 0.1, "betas": "auto"}}},
    ],
)
def test_all_spellings_are_accepted(validator: jsonschema.Draft7Validator, accepted: Any) -> None:
    assert errors(validator, accepted) == []


@pytest.mark.parametrize(
    ("refused", "place"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"num-layers": "many"}, "num-layers"),
        ({"num_layers": "auto"}, "num_layers"),
        ({"hidden_size": 1.5}, "hidden_size"),
        ({"warmup": 1.5}, "warmup"),
        ({"norm": "RMSNorms"}, "norm"),
        ({"saves_interval": 1000}, "saves_interval"),
        ({"save-interval": "often"}, "save-interval"),
        ({"master_port": 70000}, "master_port"),
        ({"use_wandb": 1}, "use_wandb"),
        ({"fp16": 16}, "fp16"),
        ({"fp16": {"enable": True}}, "fp16.enable"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"zero-optimization": {"recude_bucket_size": 5e8}}, "zero-optimization.recude_bucket_size"),
        ({"zero_optimization": {"offload_param": {"device": "gpu"}}}, "zero_optimization.offload_param.device"),
        ({"zero_optimization": {"offload-param": {"devise": "cpu"}}}, "zero_optimization.offload-param.devise"),
        ({"optimizer": {"type": "Adam", "lr": 0.1}}, "optimizer.lr"),
        ({"optimizer": {"params": {"betas": ["a", 1]}}}, "optimizer.params.betas"),
        ({"train_data_paths": {"a": 1}}, "train_data_paths"),
        ({"attention_config": 3}, "attention_config"),
    ],
)
def test_errors_have_the_right_place(validator: jsonschema.Draft7Validator, refused: Any, place: str) -> None:
    assert places(validator, refused) == [place]


def test_retired_keys_name_their_replacement() -> None:
    top = schema()["properties"]
    for old, new in {"save_interval": "checkpoint_factor", "mlp_type": "activation", "geglu": "activation"}.items():
        assert top[old]["deprecated"] is True
        assert new in top[old]["deprecationMessage"] == top[old]["description"]


def test_descriptions_are_shown_without_markup_or_as_markdown() -> None:
    """Editors escape the Markdown of `description`, and show that of `markdownDescription`."""
    described = [node for node in walk(schema()) if "description" in node]
    assert not [node for node in described if "`" in node["description"] + node.get("deprecationMessage", "")]
    assert any("`load`" in node.get("markdownDescription", "") for node in described)


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(inner)
