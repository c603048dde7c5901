"""A key that a DeepSpeed JSON leaves out keeps DeepSpeed's meaning in the new file, for every key and version."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deepspeed.runtime import lr_schedules

from neoxargs.config.config import Config
from neoxargs.facts.lr_schedule import LearningRateCurve
from neoxargs.migrate.deepspeed import command as source
from neoxargs.migrate.deepspeed.defaults import (
    ASSUMED,
    CHANGED,
    MUON_RATES,
    OPTIMIZER,
    OPTIMIZERS,
    TORCH_ADAMW_DECAY,
    WARMUP_DECAY_MAX_LR,
    version_number,
)
from neoxargs.migrate.result import Result
from neoxargs.migrate.source import Options
from neoxargs.registry import REGISTRY
from neoxargs.resolve import File, complete, draft
from neoxargs.resolve.effects.no_effect import no_effect_warnings
from neoxargs.targets.deepspeed import deepspeed_json
from tests.support.deepspeed_optimizers import CLASSES, arguments
from tests.support.deepspeed_spy import TESTED, read
from tests.support.reference import read as reference

MODEL = "{num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 16, train_iters: 100}"


def migrated(tree: dict[str, Any], version: str | None = None) -> Result:
    text = File("ds.json", json.dumps({"train_batch_size": 1, **tree}))
    return source.DeepSpeed().converts([text], Options(deepspeed=version))


def config(result: Result, gpus: int = 1) -> Config:
    return complete(draft([File("new.yml", result.text), File("model.yml", MODEL)]), gpus)


def settings(result: Result) -> dict[str, Any]:
    return {name: value.value for name, value in draft([File("new.yml", result.text)]).values.items()}


def trees() -> Iterator[dict[str, Any]]:
    """Yield JSONs in which everything that can be absent is, for each optimizer, precision, stage and schedule."""
    precisions: list[dict[str, Any]] = [{}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}]
    schedulers: list[dict[str, Any]] = [
        {},
        {"scheduler": {"type": "WarmupLR", "params": {}}},
        {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100}}},
        {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 100}}},
        {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2}}},
        {"scheduler": {"type": "LRRangeTest", "params": {}}},
    ]
    for kind in ("Adam", "AdamW", "SGD", "Lion", "Adagrad", "RMSprop", "Adamax", None):
        optimizer = {"optimizer": {"type": kind, "params": {}}} if kind else {}
        for stage, precision in enumerate(precisions):
            yield {**optimizer, **precision, "zero_optimization": {"stage": stage}}
    for scheduler in schedulers:
        yield {"optimizer": {"type": "Adam", "params": {"lr": 0.5}}, **scheduler}
    yield {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    yield {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
    yield {"optimizer": {"type": "OneBitAdam", "params": {}}}


#: Attributes of DeepSpeed's configuration that say only how a run is logged, or repeat the JSON.
NOT_COMPARED = {"steps_per_print", "_param_dict", "optimizer_params", "scheduler_params"}


def plain(value: object) -> object:
    """Return an object of DeepSpeed as its attributes."""
    return {name: str(inner) for name, inner in vars(value).items()} if hasattr(value, "__dict__") else value


@pytest.mark.parametrize("tree", list(trees()), ids=json.dumps)
def test_deepspeed_reads_the_same_from_the_json_and_from_the_new_file(tree: dict[str, Any]) -> None:
    """The installed DeepSpeed is asked: its own configuration object is the same for both."""
    was = vars(read({"train_batch_size": 1, **tree}))
    sent = deepspeed_json(config(migrated(tree, TESTED)))
    becomes = vars(read(sent))
    if "optimizer" not in tree:  # then the script builds it, and a warning says so
        assert migrated(tree).problems[-2].id == "migrate-optimizer-missing"
        becomes["optimizer_name"] = was["optimizer_name"]
    differ = {
        name: (value, becomes[name])
        for name, value in was.items()
        if name not in NOT_COMPARED and plain(value) != plain(becomes[name])
    }
    assert differ == {}
    if "scheduler" in tree:
        defaults = arguments(getattr(lr_schedules, tree["scheduler"]["type"]))
        given = {"warmup_max_lr": 0.5} if tree["scheduler"]["type"] == "WarmupLR" else {}  # its None: the optimizer's
        expected = {**defaults, **given, **tree["scheduler"]["params"]}
        for name, value in sent["scheduler"].get("params", {}).items():
            assert value == expected[name], name


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("params", [{}, {"lr": 0.25}])
def test_what_is_sent_to_an_optimizer_is_what_its_constructor_assumes(kind: str, params: dict[str, float]) -> None:
    if kind in ("sparseadam", "adafactor", "rprop") or kind.endswith("_adam"):
        pytest.skip("train.py refuses it, or it is not DeepSpeed's")
    result = migrated({"train_batch_size": 2, "optimizer": {"type": kind, "params": params}})
    sent = deepspeed_json(config(result, 2))["optimizer"]["params"]
    # With torch_adam, AdamW is torch's.
    for cls in CLASSES[kind][:2]:
        assumed = {n: list(d) if isinstance(d, tuple) else d for n, d in arguments(cls).items()} | params
        assert {name: assumed[name] for name in sent} == sent


def test_torchs_adamw_has_a_weight_decay() -> None:
    (torch_adamw,) = (cls for cls in CLASSES["adamw"] if cls.__module__.startswith("torch"))
    assert arguments(torch_adamw)["weight_decay"] == TORCH_ADAMW_DECAY
    values = settings(migrated({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}))
    assert values["optimizer.params.weight_decay"] == TORCH_ADAMW_DECAY


def test_the_table_of_optimizers_is_that_of_the_constructors() -> None:
    for kind, classes in CLASSES.items():
        mine = {**OPTIMIZER, **OPTIMIZERS.get(kind, {})}
        for cls in classes[:1]:
            theirs = {n: list(d) if isinstance(d, tuple) else d for n, d in arguments(cls).items() if n in mine}
            theirs = {name: value for name, value in theirs.items() if value != [None, 0.001]}  # Adafactor's eps
            assert {name: mine[name] for name in theirs} == theirs, kind
    muon = (Path(inspect.getfile(lr_schedules)).parent / "zero/muon/original_muon.py").read_text()
    rates = [f'group.get("lr", {text})' for text in ("0.02", "3e-4")]
    assert all(rate in muon for rate in rates)
    assert list(MUON_RATES.values()) == [0.02, 3e-4]
    assert 'group.get("betas", (0.9, 0.95))' in muon and 'group.get("momentum", 0.95)' in muon
    assert inspect.signature(lr_schedules.WarmupDecayLR).parameters["warmup_max_lr"].default == WARMUP_DECAY_MAX_LR


def test_without_a_scheduler_the_learning_rate_is_constant() -> None:
    for params in ({}, {"lr": 0.25}):
        run = config(migrated({"optimizer": {"type": "Adam", "params": params}}))
        curve = LearningRateCurve.of(run.get)
        assert {curve.rate(iteration) for iteration in range(101)} == {params.get("lr", 0.001)}


def test_hugging_faces_trainer_builds_the_schedule_and_the_optimizer_that_its_file_does_not_have() -> None:
    values = settings(migrated({"gradient_clipping": "auto"}))
    assert (values["lr_decay_style"], values["warmup"]) == ("linear", 0.0)
    assert (values["optimizer.type"], values["optimizer.params.lr"]) == ("AdamW", 5e-5)
    text = '{"gradient_clipping": "auto"}\n'
    command = "run.py --learning_rate 3e-4 --lr_scheduler_type cosine --warmup_ratio 0.03\n"
    values = settings(source.DeepSpeed().converts([File("ds.md", text + command)], Options()))
    assert (values["lr_decay_style"], values["warmup"], values["optimizer.params.lr"]) == ("cosine", 0.03, 3e-4)


@pytest.mark.parametrize("row", reference("deepspeed_default_history.tsv"), ids=lambda row: row["key"])
def test_a_default_that_has_changed(row: dict[str, str]) -> None:
    """The JSON of an older version keeps what was the default there."""
    key, since = row["key"], row["since"]
    before, after = json.loads(row["before"]), json.loads(row["after"])
    assert REGISTRY.parameters[key].receiver_default == after
    if row["why_not_written"]:
        assert key not in CHANGED
        return
    assert CHANGED[key] == (("0.0", before), (since, after))
    tree = {
        "optimizer": {"type": "Adam", "params": {"lr": 0.25}},
        "scheduler": {"type": "WarmupLR", "params": {}},
        "fp16": {"enabled": True},
    }
    major, minor, patch = version_number(since)
    older = f"{major}.{minor}.{patch - 1}" if patch else f"{major}.{minor - 1}.9"
    assert config(migrated(tree, older)).get(key) == before
    expected = 0.25 if after is None else after  # None: the optimizer's learning rate
    assert config(migrated(tree, since)).get(key) == config(migrated(tree, TESTED)).get(key) == expected


def test_the_assumed_version_is_said() -> None:
    assert version_number(ASSUMED) < version_number("0.19.3")
    (assumed,) = (change for change in migrated({}).changes if change.after.startswith("gradient_clipping"))
    assert assumed.after == "gradient_clipping: 0.0"
    expected = "DeepSpeed's default before 0.19.3; 0.19.2 is assumed, --deepspeed VERSION names another"
    assert assumed.why == expected
    (given,) = (c for c in migrated({}, "0.18.4").changes if c.after.startswith("gradient_clipping"))
    assert given.why == "DeepSpeed's default before 0.19.3"
    assert "gradient_clipping" not in settings(migrated({}, "0.19.3"))


@pytest.mark.parametrize("text", ["", "0", "x", "0.x", "0..1", "-1.0", "1.2.3.4.5", "0.19.2 "])
def test_what_is_not_a_version(text: str) -> None:
    with pytest.raises(ValueError):
        version_number(text)
    assert version_number("0.19.2+abc12") == version_number("v0.19.2") == (0, 19, 2)


def test_keys_of_older_versions_are_accepted_and_not_sent() -> None:
    """torch.compile in DeepSpeed 0.14, and a warm-up of 0 steps, both of which newer versions refuse."""
    tree = {
        "compile": {"disable": False, "backend": "inductor", "kwargs": {}},
        "optimizer": {"type": "Adam", "params": {"lr": 0.5}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}},
    }
    sent = deepspeed_json(config(migrated(tree)))
    assert "compile" not in sent
    assert sent["scheduler"]["params"]["warmup_num_steps"] == 1
    read(sent)


def test_a_technique_that_is_switched_off_has_no_warning() -> None:
    off = {"shared_parameters": {"enabled": False}, "different_groups": {"g": {"params": {"bits": 8}}}}
    for technique in [
        "weight_quantization",
        "activation_quantization",
        "sparse_pruning",
        "row_pruning",
        "head_pruning",
    ]:
        run = config(migrated({"compression_training": {technique: off}}))
        assert list(no_effect_warnings(run, [])) == []
