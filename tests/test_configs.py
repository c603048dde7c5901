"""The shipped configurations: what they combine to, and that the models are as large as published.

`UPDATE=1 pytest tests/test_configs.py` writes the golden summary anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from neoxargs.base.problems import Problems
from neoxargs.base.text import GIB
from neoxargs.checks.trainer import trainer_problems
from neoxargs.config.config import Config
from neoxargs.facts.model import parameters
from neoxargs.hosts.device_table import DEVICES
from neoxargs.hosts.hosts import assumed_resources
from neoxargs.plan.estimate import Plan, make_plan
from neoxargs.plan.given.target import Target
from neoxargs.resolve import resolve
from neoxargs.resolve.derive import Unresolved
from neoxargs.runs.run_spec import RunSpec
from neoxargs.targets.deepspeed import deepspeed_json, runner_flags
from tests.support.paths import CONFIGS, NEOX_HEAD, needs_corpus
from tests.support.reference import read

SUMMARY = Path(__file__).parent / "snapshots" / "configs.txt"
MODELS, LAYOUTS, MACHINES = (
    {path.stem: path for path in sorted((CONFIGS / folder).glob("*.yml"))}
    for folder in ("models", "layouts", "machines")
)
#: Ways to combine the machines' files.
PLACES = (("laptop",), ("a100",), ("a100", "hostfile"), ("a100", "slurm"), ("h100",), ("b200",))


class Published(NamedTuple):
    """Parameters in all, with this many rows in the embedding."""

    total: int
    rows: int


#: Pythia's from table 1 of the paper and, for 14M and 31M, from the released weights; the others' from theirs.
PUBLISHED = {
    "pythia-14m": Published(14_067_712, 50304),
    "pythia-31m": Published(30_494_720, 50304),
    "pythia-70m": Published(70_426_624, 50304),
    "pythia-160m": Published(162_322_944, 50304),
    "pythia-410m": Published(405_334_016, 50304),
    "pythia-1b": Published(1_011_781_632, 50304),
    "pythia-1.4b": Published(1_414_647_808, 50304),
    "pythia-2.8b": Published(2_775_208_960, 50304),
    "pythia-6.9b": Published(6_857_302_016, 50432),
    "pythia-12b": Published(11_846_072_320, 50688),
    "gpt-neox-20b": Published(20_554_567_680, 50432),
    "llama-2-7b": Published(6_738_415_616, 32000),
    "llama-2-13b": Published(13_015_864_320, 32000),
    "llama-2-70b": Published(68_976_648_192, 32000),
    "mistral-7b": Published(7_241_732_096, 32000),
    "gpt-2-small": Published(124_439_808, 50257),
    "gpt-2-medium": Published(354_823_168, 50257),
    "gpt-2-large": Published(774_030_080, 50257),
    "gpt-2-xl": Published(1_557_611_200, 50257),
}
PUBLISHED |= {row["model"]: Published(int(row["parameters"]), int(row["rows"])) for row in read("published_sizes.tsv")}
#: Those that process a token, of models with experts.
ACTIVE = {"mixtral-8x7b": 12_879_925_248, "olmoe-1b-7b": 1_282_017_280}
#: The same without embeddings, which Pythia's table has too.
OUTSIDE = {
    "pythia-14m": 1_189_888, "pythia-31m": 4_739_072, "pythia-70m": 18_915_328, "pythia-160m": 85_056_000,
    "pythia-410m": 302_311_424, "pythia-1b": 805_736_448, "pythia-1.4b": 1_208_602_624, "pythia-2.8b": 2_517_652_480,
    "pythia-6.9b": 6_444_163_072, "pythia-12b": 11_327_027_200,
}  # fmt: skip
#: GPT-3's table rounds, and its names are all that is published.
ROUNDED = {
    "gpt-3-125m": 125e6, "gpt-3-350m": 350e6, "gpt-3-760m": 760e6, "gpt-3-1.3b": 1.3e9, "gpt-3-2.7b": 2.7e9,
    "gpt-3-6.7b": 6.7e9, "gpt-3-13b": 13e9, "gpt-3-175b": 175e9,
}  # fmt: skip


def combined(model: str, layout: str, *machines: str, gpus: int = 64) -> Config:
    return resolve([MODELS[model], LAYOUTS[layout], *(MACHINES[name] for name in machines)], gpus=gpus)


def planned(config: Config, gpus: int) -> Plan:
    return make_plan(RunSpec(config, assumed_resources(gpus)), Target(DEVICES["A100-80GB"]))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_is_as_large_as_published(name: str) -> None:
    config = combined(name, "data-parallel", "a100")
    total, rows = PUBLISHED[name]
    assert parameters(config, rows) == total
    assert parameters(config, rows, active=True) == ACTIVE.get(name, total)
    padding = (config.embedding.padded_vocab_size - rows) * config.shape.hidden_size
    assert sum(planned(config, 64).parts.values()) == total + padding
    if name in OUTSIDE:
        assert total - 2 * rows * config.shape.hidden_size == OUTSIDE[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_a_model_is_about_as_large_as_its_name_says(name: str) -> None:
    config = combined(name, "data-parallel", "a100")
    assert parameters(config, 50257) == pytest.approx(ROUNDED[name], rel=0.03)


def test_every_model_has_a_published_size() -> None:
    assert MODELS.keys() == PUBLISHED.keys() | ROUNDED.keys()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_goes_with_every_layout_that_divides_it(name: str) -> None:
    shape = combined(name, "data-parallel", "a100").shape
    for layout in LAYOUTS:
        sizes = combined("gpt-3-175b", layout, "a100").parallel
        divides = shape.num_kv_heads % sizes.model_parallel_size == 0 and shape.num_layers >= sizes.pipe_parallel_size
        try:
            config = combined(name, layout, "a100")
        except Problems as refused:
            assert not divides, refused
        else:
            assert divides
            assert not trainer_problems(config)
            assert deepspeed_json(config)["train_batch_size"] == config.batch.train_batch_size


@pytest.mark.parametrize("machines", PLACES, ids="+".join)
def test_every_machine_goes_with_models_and_layouts(machines: tuple[str, ...]) -> None:
    for layout in LAYOUTS:
        config = combined("llama-2-70b", layout, *machines)
        assert not config.warnings
        assert not trainer_problems(config)


def keys(path: Path) -> list[str]:
    """Top-level keys in their order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.partition(":")[0] for line in lines if line and line[0] not in "# "]


def test_models_layouts_and_machines_share_no_key() -> None:
    folders = (MODELS, LAYOUTS, MACHINES)
    models, layouts, machines = ({key for path in folder.values() for key in keys(path)} for folder in folders)
    assert not models & layouts | models & machines | layouts & machines


@needs_corpus
@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("pythia") or name == "gpt-neox-20b"])
def test_a_model_names_the_precision_that_it_was_trained_in(name: str) -> None:
    """Precision is a key of the machines' files, so that of the original run can only be told."""
    size = name.removeprefix("pythia-").replace(".", "-").upper()
    original = NEOX_HEAD / ("20B.yml" if name == "gpt-neox-20b" else f"pythia/{size}.yml")
    trained = resolve([original], gpus=64).precision.precision.replace("bfloat16", "bf16")
    assert f"# Trained in {trained}" in MODELS[name].read_text(encoding="utf-8")
    files = [MODELS[name], LAYOUTS["zero1"], MACHINES["a100"]]
    assert not trainer_problems(resolve(files, ["precision=fp16"], gpus=64))


@pytest.mark.parametrize("folder", [MODELS, LAYOUTS, MACHINES], ids=["models", "layouts", "machines"])
def test_files_are_alike(folder: dict[str, Path]) -> None:
    """An editor finds the schema, and every file has its keys in the same order."""
    before: dict[str, set[str]] = {}
    for path in folder.values():
        assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=../../docs/")
        for index, key in enumerate(keys(path)):
            before.setdefault(key, set()).update(keys(path)[:index])
    assert all(key not in before[other] for key, others in before.items() for other in others)


#: Where each model would be trained: a layout and the number of its GPUs.
NATURAL = {
    **dict.fromkeys(("pythia-1.4b", "pythia-2.8b", "gpt-2-xl", "gpt-3-1.3b", "gpt-3-2.7b"), ("zero1", 32)),
    **dict.fromkeys(("llama-3.2-1b", "gemma-3-1b"), ("zero1", 32)),
    **dict.fromkeys(("llama-2-7b", "mistral-7b", "pythia-6.9b", "gpt-3-6.7b"), ("zero3", 64)),
    **dict.fromkeys(("llama-3.1-8b", "qwen2-7b", "qwen3-8b", "olmo-2-7b", "phi-3-mini", "gemma-2-2b"), ("zero3", 64)),
    **dict.fromkeys(("pythia-12b", "llama-2-13b", "gpt-3-13b"), ("tp2-pp2", 64)),
    "mistral-nemo-12b": ("tp8", 64), "gemma-2-27b": ("tp8-pp4", 256), "llama-3.1-70b": ("tp8-pp8", 512),
    "mixtral-8x7b": ("tp8-pp4", 256), "olmoe-1b-7b": ("zero3", 64),
    "gpt-neox-20b": ("tp8", 96), "llama-2-70b": ("tp8-pp4", 256), "gpt-3-175b": ("tp8-pp8", 512),
}  # fmt: skip


@pytest.mark.parametrize("name", NATURAL)
def test_layouts_do_not_recompute_what_fits(name: str) -> None:
    """On 80 GB, a smaller micro batch fits where a larger one would need recomputation, a third more work."""
    layout, gpus = NATURAL[name]
    config = combined(name, layout, "a100", gpus=gpus)
    made = planned(config, gpus)
    assert made.fits and not config.recompute.checkpoint_activations


#: Share of an H100's peak rate that a plan promises with the shipped layouts.
SHARES = {"gpt-3-1.3b": 0.43, "pythia-1.4b": 0.42, "llama-2-7b": 0.47}


@pytest.mark.parametrize("name", SHARES)
def test_the_shipped_share_of_an_h100(name: str) -> None:
    layout, gpus = NATURAL[name]
    config = combined(name, layout, "a100", gpus=gpus)
    speed = make_plan(RunSpec(config, assumed_resources(gpus)), Target(DEVICES["H100-80GB"])).speed
    assert speed.tflops_per_device * 1e12 / DEVICES["H100-80GB"].half > SHARES[name]


def summary() -> Iterator[str]:
    """For each model what it is on A100s of 80 GB, for each layout and machine what other programs are told."""
    for name in MODELS:
        layout, gpus = NATURAL.get(name, ("data-parallel", 8))
        config = combined(name, layout, "a100", gpus=gpus)
        made, tokens = planned(config, gpus), config.batch.train_batch_size * config.shape.seq_length
        fits = "" if made.fits else ", does not fit"
        yield f"{name}: {sum(made.parts.values()):,} parameters, {tokens:,} tokens a step"
        yield f"    {layout} on {gpus} GPUs: {made.fullest.peak / GIB:.1f} GiB{fits}"
        yield f"    {deepspeed_json(config)['optimizer']}"
    every = deepspeed_json(combined("llama-2-70b", "data-parallel", "laptop"))
    told = {(name, "a100"): name for name in LAYOUTS} | {("data-parallel", *place): "+".join(place) for place in PLACES}
    for (layout, *machines), name in told.items():
        config = combined("llama-2-70b", layout, *machines)
        own = {key: value for key, value in deepspeed_json(config).items() if every.get(key) != value}
        yield f"{name}: {' '.join([*runner_flags(config), str(own)])}"


@pytest.mark.parametrize("path", [*LAYOUTS.values(), *MACHINES.values()], ids=lambda path: str(path.stem))
def test_part_of_a_configuration_lacks_a_model(path: Path) -> None:
    """What else train.py does not support is looked for all the same, without the values that are missing."""
    with pytest.raises(Unresolved) as stop:
        resolve([path], gpus=64)
    assert "model-missing" in [problem.id for problem in stop.value.problems]
    assert all(problem.severity == "warning" for problem in trainer_problems(stop.value.certain))


def test_the_golden_summary() -> None:
    text = "\n".join(summary()) + "\n"
    if os.environ.get("UPDATE"):
        SUMMARY.parent.mkdir(exist_ok=True)
        SUMMARY.write_text(text, encoding="utf-8")
    assert text == SUMMARY.read_text(encoding="utf-8")
    assert "does not fit" not in text
