"""The table of versions agrees with the installed DeepSpeed, whichever of the listed versions it is."""

from __future__ import annotations

import deepspeed
import pytest

from neoxargs.registry import receivers
from neoxargs.registry.receivers import numbers
from neoxargs.targets.deepspeed import deepspeed_json, sent_values
from tests.support.configure import configure
from tests.support.deepspeed_spy import read
from tests.support.receiver_versions import from_facts, installed_facts

VERSION = deepspeed.__version__


def test_the_installed_version_has_the_keys_and_defaults_of_the_table() -> None:
    facts, refused = installed_facts()
    assert VERSION in receivers.versions("deepspeed")
    early = {name for name in facts if numbers(receivers.added_in(name)) > numbers(VERSION)}
    gone = {name for name in facts if (went := receivers.removed_in(name)) and numbers(went) <= numbers(VERSION)}
    assert (early, gone) == (set(), set())
    changed = {name: facts[name]["default"] for name in receivers.default_changes() if name in facts}
    assert changed == {name: receivers.default_in(name, VERSION) for name in changed}
    assert [
        name for name in sorted(receivers.refused()) if numbers(receivers.refused()[name]) <= numbers(VERSION)
    ] == refused


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
