"""What the launcher writes, every rank reads: the two payloads, and a configuration from the values in them."""

import base64
import json
from pathlib import Path

import pytest

from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.config.value import Source, Value
from neoxargs.resolve import File, complete, draft
from neoxargs.targets import deepspeed, ranks, wire_format
from tests.support import smallest
from tests.support.refused import refused
from tests.support.snapshots import pinned

YAML = smallest.YAML + """\
zero_optimization: {stage: 1, offload_optimizer: {device: cpu}}
optimizer: {type: Adam, params: {lr: 1.0e-3, betas: [0.9, 0.95]}}
comms_logger: {}
comet_others: {nested: {a: [1, 2]}, "ключ": "värde"}
data_path: [0.3, some/file, 0.7, "other file"]
"""  # fmt: skip


def resolved(text: str = YAML, gpus: int = 1) -> Config:
    return complete(draft([File("my.yml", text)]), gpus)


def test_a_payload_is_urlsafe_base64_of_json_as_gpt_neox_reads_it():
    values = {"a": 1, "b": {"c": [1.5, None, True]}, "text": "ü?>~" * 9}
    word = wire_format.encode(values)
    assert json.loads(base64.urlsafe_b64decode(word).decode("utf-8")) == values
    assert wire_format.decode(word) == values
    assert set(word) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=")


@pytest.mark.parametrize("word", ["", "%%%", "bm90IGpzb24=", "WzFd", "abc"])
def test_a_damaged_payload_is_refused(word):
    with pytest.raises(ValueError):
        wire_format.decode(word)


def test_dotted_sections_and_mappings_as_values_are_told_apart():
    arrived = wire_format.config_from_values(
        {"zero-optimization": {"offload_optimizer": {"device": "cpu"}}, "comet_others": {"nested": {"a": 1}}}
    )
    assert arrived.offload_optimizer.device == "cpu"
    assert arrived.comet.comet_others == {"nested": {"a": 1}}
    assert arrived.sections == {"zero_optimization", "zero_optimization.offload_optimizer"}


def test_retired_spellings_of_a_neox_launcher_are_understood():
    assert wire_format.config_from_values({"save_interval": 7}).checkpoint.checkpoint_factor == 7


def test_a_name_nobody_knows_is_a_problem():
    pinned(refused(wire_format.config_from_values, {"no_such_name": 1}))


@pytest.mark.shows("local_rank")
def test_rank_arguments_are_recovered_from_script_arguments():
    config = resolved()
    argv = ["--local_rank=3", *wire_format.script_arguments(config), "--mine", "7"]
    arguments = wire_format.parse_rank_arguments(argv)
    assert arguments.config.shape.hidden_size == 64
    assert arguments.deepspeed == json.loads(json.dumps(deepspeed.deepspeed_json(config)))
    assert (arguments.local_rank, arguments.rest) == (3, ("--mine", "7"))
    assert wire_format.parse_rank_arguments(argv[1:]).local_rank == 0


def test_places_arrive_with_the_values_and_with_what_is_derived_from_them():
    overrides = ("eval_interval=7", f"comet_others={{api_key: hidden, b: [{'1, ' * 50}]}}")
    config = complete(draft([File("my.yml", YAML)], overrides), 1)
    arrived = wire_format.parse_rank_arguments(wire_format.script_arguments(config)).config
    for name in ranks.rank_values(config):
        place = config.place(name)
        assert (place and place[:3]) == (arrived.place(name) and arrived.place(name)[:3]), name
    assert str(arrived.place("zero_optimization.offload_optimizer.device")) == "my.yml:8:51"
    # Derived from the batch size on a line of the file.
    assert not config.is_set("train_batch_size")
    assert str(arrived.source("train_batch_size")) == "my.yml:6:1"
    assert str(arrived.place("eval_interval")) == "--set eval_interval=7"
    text = arrived.place("comet_others").text
    assert len(text) == wire_format.MAX_SET
    assert "hidden" not in text
    # Set by nobody.
    assert arrived.place("checkpoint_factor") is None


def test_both_spellings_of_options_are_read():
    words = [
        f"--deepspeed-config={wire_format.encode({})}",
        "--megatron-config",
        wire_format.encode({}),
        "--local-rank",
        "1",
    ]
    assert wire_format.parse_rank_arguments(words).local_rank == 1


@pytest.mark.parametrize(("started", "named"), [("eval.py", "eval.py"), ("/a/mine.py", "mine.py"), ("-c", "train.py")])
def test_a_script_started_by_hand_is_named(started, named, monkeypatch):
    monkeypatch.setattr("sys.argv", [started])
    (problem,) = refused(wire_format.parse_rank_arguments, [])
    assert problem.hint.endswith(f"deepy {named} my.yml")


@pytest.mark.parametrize("argv", [[], ["--deepspeed_config", "x", "--megatron_config", "y"], ["--megatron_config"]])
def test_a_script_started_by_hand_is_told_how_to_start(argv):
    with pytest.raises(Problems, match=r"--\w+_config (is missing|cannot be decoded)"):
        wire_format.parse_rank_arguments(argv)


def test_values_with_spaces_and_non_ascii_text_survive_the_command_line(tmp_path: Path):
    value = 'a "quoted" path with ünïcode/and $shell `signs`'
    config = Config({"save": Value(value, Source("set"))})
    assert wire_format.parse_rank_arguments(wire_format.script_arguments(config)).config.checkpoint.save == value
