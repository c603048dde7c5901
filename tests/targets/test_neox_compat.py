"""A script written for GPT-NeoX can read what our launcher tells it; our own scripts lose nothing by that."""

from __future__ import annotations

from typing import Any, Literal, Optional, Union, get_args, get_origin

import pytest

from neoxargs.config.config import Config
from neoxargs.registry import REGISTRY
from neoxargs.resolve import resolve
from neoxargs.targets import wire_format
from neoxargs.targets.neox_compat import DEEPSPEED, extra_values, is_known, neox_values
from tests.support.paths import NEOX_HEAD, needs_corpus
from tests.support.reference import read
from tests.support.targets import configured

MODELS = ["125M.yml", "20B.yml", "bf16_125M.yml", "llama2/70B.yml", "pythia/1B.yml", "rwkv/170M.yml", "19M.yml"]

TEXTS = [
    "dialect: neox-2026",
    "{dialect: neox-2026, precision: bf16, fp32_allreduce: true, optimizer: {params: {betas: [0.9, 0.95]}}}",
    "{dialect: neox-2026, expansion_factor: 3, run_dir: here, data_types: {grad_accum_dtype: fp32}}",
    "{dialect: neox-2026, torch_autocast: {enabled: true}, deepspeed_extra_args: {x: 1}, launcher: slurm}",
    "{dialect: neox-2026, checkpoint_activations: selective}",
    "{dialect: neox-2026, geglu: true, onebitadam: true, warmup: 0.2, flops_profiler: {profile_step: 5}}",
    "{dialect: neox-2026, fp16: {hysteresis: 4, enabled: false}, deepspeed_slurm: true, zero_stage: 1}",
]


@pytest.fixture(scope="session")
def types() -> dict[str, Any]:
    """GPT-NeoX's parameters and their types."""
    known = {"Literal": Literal, "Union": Union, "Optional": Optional, "List": list, "Any": Any}
    return {row["name"]: eval(row["type"], known) for row in read("neox_head_parameters.tsv")}


def fits(value: Any, wanted: Any) -> bool:
    """As GPT-NeoX checks it: the exact type, a whole number for a float, a choice in any case."""
    if value is None or wanted is Any or type(value) is wanted or (type(value) is int and wanted is float):
        return True
    if get_origin(wanted) is Literal:
        return str(value).lower() in [str(choice).lower() for choice in get_args(wanted)]
    return any(fits(value, get_origin(part) or part) for part in get_args(wanted))


def complaints(values: dict[str, Any], types: dict[str, Any]) -> list[str]:
    """What GPT-NeoX's reader would raise."""
    found = [name for name in values if name not in types]
    found += [f"{name}: {v!r}" for name, v in values.items() if name in types and not fits(v, types[name])]
    found += [n for n in ("fp16", "amp", "flops_profiler") if n in values and "enabled" not in values[n]]
    found += [n for n in ("optimizer", "scheduler") if n in values and not {"type", "params"} <= set(values[n])]
    if "weight_decay" in values.get("optimizer", {}).get("params", {}):
        found.append("weight_decay twice")
    if values.get("intermediate_size") and values.get("expansion_factor"):
        found.append("two widths")
    return found


def test_its_names_are_these(types: dict[str, Any]) -> None:
    sections = {name for name in REGISTRY.sections if "." not in name and name in types}
    known = {p.name for p in REGISTRY.parameters.values() if "." not in p.name and is_known(p)}
    assert known | sections == set(types)
    assert set(types) >= DEEPSPEED


@pytest.mark.parametrize("text", TEXTS)
def test_it_accepts_what_we_send(text: str, types: dict[str, Any]) -> None:
    assert complaints(neox_values(configured(text)), types) == []


@needs_corpus
@pytest.mark.parametrize("name", MODELS)
def test_it_accepts_its_own_configurations_from_us(name: str, types: dict[str, Any]) -> None:
    more = ["train_micro_batch_size_per_gpu=1", "train_iters=10"] if name.startswith("llama") else []
    assert complaints(neox_values(resolve([NEOX_HEAD / name], more, gpus=8)), types) == []


def test_it_reaches_deepspeeds_newer_keys_through_its_extra_arguments() -> None:
    told = neox_values(configured("{torch_autocast: {enabled: true}, deepspeed_extra_args: {x: 1}}"))
    assert told["deepspeed_extra_args"] == {"torch_autocast": {"enabled": True}, "x": 1}


@pytest.mark.parametrize("text", TEXTS)
def test_our_scripts_read_both_parts_as_one(text: str) -> None:
    config = configured(text)
    received = wire_format.parse_rank_arguments(wire_format.script_arguments(config)).config
    for parameter, value in config.items():
        if parameter.to:
            assert received.get(parameter.name) == value.value, parameter.name


def test_our_scripts_read_what_gpt_neox_launches() -> None:
    config: Config = configured()
    words = wire_format.script_arguments(config)
    neox = words[: words.index("--deepy_config")]
    assert wire_format.parse_rank_arguments(neox).config.shape.hidden_size == 64
    assert set(extra_values(config)) >= {"gas", "run_dir", "optimizer.params.weight_decay"}
