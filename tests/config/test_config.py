"""What a configuration offers: typed groups, and for every value its source."""

from __future__ import annotations

from neoxargs.base.problems import Place
from neoxargs.config.config import Config
from neoxargs.config.value import Source, Value
from neoxargs.registry import REGISTRY


def test_no_two_groups_share_an_attribute() -> None:
    keys = [group.key() for group in REGISTRY.groups if group.has_attribute]
    assert len(keys) == len(set(keys))
    assert not set(keys) & {name for name in dir(Config) if not name.startswith("__")}


PLACE = Place("my.yml", 3, 1, "num-layers: 12", 14)


def test_values_are_read_through_groups_and_by_name() -> None:
    config = Config({"num_layers": Value(12, Source("file", PLACE))})
    assert config.shape.num_layers == 12
    assert config.get("num-layers") == 12
    assert config.is_set("num_layers")
    assert str(config.source("num-layers")) == "my.yml:3:1"


def test_an_unset_value_is_the_default() -> None:
    config = Config({})
    assert config.training.seed == config.get("seed") == REGISTRY.parameters["seed"].default
    assert not config.is_set("seed")
    assert str(config.source("seed")) == "default"


def test_items_yield_the_whole_registry() -> None:
    items = dict(Config({"num_layers": Value(12, Source("file", PLACE))}).items())
    assert list(items) == list(REGISTRY.parameters.values())
    assert items[REGISTRY.parameters["num_layers"]].value == 12


def test_sources_as_text() -> None:
    assert str(Source("default", text="neox-2026")) == "default: neox-2026"
    assert str(Source("derived", text="4 x hidden_size")) == "derived: 4 x hidden_size"
    assert str(Source("set", Place("--set", 1, 1, "seed=1"))) == "--set seed=1"
    assert str(Source("environment", text="MASTER_ADDR")) == "environment: MASTER_ADDR"
