"""The table of versions agrees with the installed packages, whichever of the listed versions they are."""

from __future__ import annotations

from importlib.metadata import distribution

import deepspeed
import pytest

from neoxargs.registry import receivers
from neoxargs.registry.receivers import numbers
from neoxargs.targets.deepspeed import deepspeed_json, sent_values
from tests.support.configure import configure
from tests.support.deepspeed_spy import read
from tests.support.receiver_versions import from_facts, installed_facts, torch_minimums

VERSION = deepspeed.__version__
#: The oldest DeepSpeed that pyproject.toml allows.
OLDEST = (0, 19, 3)


def test_the_installed_version_has_the_keys_and_defaults_of_the_table() -> None:
    facts, refused = installed_facts()
    assert VERSION in receivers.versions()
    early = {name for name in facts if numbers(receivers.added_in(name)) > numbers(VERSION)}
    gone = {name for name in facts if (went := receivers.removed_in(name)) and numbers(went) <= numbers(VERSION)}
    assert (early, gone) == (set(), set())
    changed = {name: facts[name]["default"] for name in receivers.default_changes() if name in facts}
    assert changed == {name: receivers.default_in(name, VERSION) for name in changed}
    assert [
        name for name in sorted(receivers.refused()) if numbers(receivers.refused()[name]) <= numbers(VERSION)
    ] == refused


@pytest.mark.parametrize("package", ["deepspeed", "megatron-core"])
def test_the_installed_version_requires_the_torch_of_the_table(package: str) -> None:
    installed = distribution(package)
    stated = installed.metadata.as_string()
    [(_, minimum)] = torch_minimums({installed.version: stated})
    assert receivers.oldest_torch(package, installed.version) == minimum


def test_the_torch_of_each_version() -> None:
    stated = {"1": "Requires-Dist: torch", "2": "Requires-Dist: torch>=2.0", "3": "Requires-Dist: torch>=2.0"}
    assert torch_minimums({**stated, "4": "Requires-Dist: torch>=2.6"}) == [("2", "2.0"), ("4", "2.6")]
    assert [receivers.oldest_torch("deepspeed", version) for version in ("0.18.9", "0.19.2", "0.19.6")] == [
        "",
        "2.0.0",
        "2.7.0",
    ]


def test_sections_that_are_switched_off_and_a_newer_version_refuses_are_not_sent() -> None:
    off = "{enabled: false}"
    text = f"""
amp: {off}
curriculum_learning: {off}
elasticity: {off}
nebula: {off}
progressive_layer_drop: {off}
sparse_gradients: false
"""
    config = configure(text, gpus=1)
    assert config.is_set("elasticity.enabled")
    assert not {name.partition(".")[0] for name in sent_values(config)} & receivers.refused().keys()
    read(deepspeed_json(config))


def test_defaults_that_differ_between_supported_versions_are_sent() -> None:
    text = "zero_optimization: {stage: 3, offload_param: {device: cpu}, offload_optimizer: {device: cpu}}"
    changed = {name for name, changes in receivers.default_changes().items() if numbers(changes[-1][0]) > OLDEST}
    assert {name.rpartition(".")[2] for name in changed} == {"pin_memory"}
    assert changed <= sent_values(configure(text)).keys()


def test_a_section_that_is_switched_on_is_sent() -> None:
    assert "elasticity.enabled" in sent_values(configure("elasticity: {enabled: true}"))


@pytest.mark.parametrize(
    ("facts", "event"),
    [
        (({}, {"a.b": {}}), {"added": {"2": ["a"]}}),
        (({"a.c": {}}, {"a.b": {}, "a.c": {}}), {"added": {"2": ["a.b"]}}),
        (({"a.b": {}, "a.c": {}}, {}), {"removed": {"2": ["a"]}}),
        (({"a": {"default": 1}}, {"a": {"default": 2}}), {"defaults": {"a": [["1", 1], ["2", 2]]}}),
    ],
)
def test_differences_of_two_versions(facts: tuple[dict, dict], event: dict) -> None:
    table = from_facts({"1": facts[0], "2": facts[1]}, {})
    assert {name: rows for name, rows in table.items() if rows and name != "versions"} == event
