"""Every key of DeepSpeed's JSON is declared, with the default that the installed DeepSpeed assumes.

Sections are generated from DeepSpeed (test_data_tables.py); keys at the top level are declared in code.
"""

from __future__ import annotations

import deepspeed
import pytest
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.inference.config import WeightQuantConfig
from deepspeed.monitor.config import DeepSpeedMonitorConfig
from deepspeed.runtime.config_utils import DeepSpeedConfigModel
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig

from neoxargs.registry import ABSENT, REGISTRY, Parameter
from neoxargs.targets.nesting import nested
from tests.support.deepspeed_spy import MODELS, TESTED, Spy, read, spied, version_note

#: Keys that DeepSpeed asks for and that are no parameters.
NOT_PARAMETERS = {
    "compression_training.shared_parameters": "DeepSpeed looks for weight_quantization's one level too high",
}

#: Keys that DeepSpeed refuses or ignores and that real files contain; none is ever sent.
REFUSED = {
    "fp16.fp16", "fp16.type", "bf16.bf16", "bf16.loss_scale", "bf16.initial_scale_power", "bf16.loss_scale_window",
    "bf16.hysteresis", "bf16.min_loss_scale", "optimizer.scheduler", "optimizer.params.max_grad_norm",
    "compile.enabled", "compile.disable", "compile.backend", "compile.kwargs",
}  # fmt: skip

#: Always sent, so what DeepSpeed assumes does not matter.
BATCH = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}


def sent(section: str = "") -> list[Parameter]:
    """The parameters that go into DeepSpeed's JSON, of one section or all."""
    prefix = section + "." if section else ""
    found = [p for p in REGISTRY.parameters.values() if "deepspeed" in p.to and p.name.startswith(prefix)]
    return [p for p in found if "." not in p.name[len(prefix) :]] if section else found


@pytest.fixture(scope="module")
def notes() -> Spy:
    return spied()


def test_the_pins_are_of_the_installed_version() -> None:
    assert deepspeed.__version__ == TESTED, f"run the tests of this folder and update their TESTED{version_note()}"


def test_every_model_of_deepspeeds_configuration_is_compared() -> None:
    seen = {type(value) for value in vars(read({})).values() if isinstance(value, DeepSpeedConfigModel)}
    seen |= {CommsLoggerConfig, WeightQuantConfig, ZenFlowConfig}  # only there when their section is
    assert seen - {DeepSpeedMonitorConfig} <= set(MODELS.values()), version_note()


def test_every_key_that_deepspeed_asks_for_is_declared(notes: Spy) -> None:
    unknown = {n for n in notes.asked if not REGISTRY.find(n) and n not in REGISTRY.sections}
    assert unknown == set(NOT_PARAMETERS), version_note()


def test_receiver_defaults_are_those_that_deepspeed_falls_back_on(notes: Spy) -> None:
    asked = {name: default for name, default in notes.defaults.items() if REGISTRY.find(name)}
    pins = {name: REGISTRY.parameters[name].receiver_default for name in asked}
    assert {name for name in pins if pins[name] is ABSENT} == BATCH
    differ = {name: (pins[name], asked[name]) for name in asked.keys() - BATCH if pins[name] != asked[name]}
    log_level = REGISTRY.parameters["log_level"]
    assert log_level.origins == ("DSL", "DSC")
    assert differ.pop("log_level") == ("info", None), "the launcher's default; the engine leaves its own alone"
    assert differ == {}, version_note()


def test_deepspeed_reads_every_top_level_key_that_is_sent_to_it(notes: Spy) -> None:
    names = {p.name for p in sent() if "." not in p.name}
    elsewhere = {
        "deepspeed_extra_args",  # taken apart before it is sent
        "fp32_allreduce",  # older versions read it; newer ones read communication_data_type
    }
    assert names - notes.asked == elsewhere, version_note()


@pytest.mark.parametrize(
    "section",
    [
        "activation_checkpointing", "aio", "autotuning", "autotuning.model_info", "checkpoint", "checkpoint.writer",
        "checkpoint.parallel_write", "data_types", "flops_profiler", "nebula", "elasticity", "sparse_attention",
    ],
)  # fmt: skip
def test_deepspeed_reads_every_key_of_a_section_that_it_takes_apart(section: str, notes: Spy) -> None:
    names = {p.name for p in sent(section)}
    assert names, section
    assert names - notes.asked == set(), version_note()


def with_default() -> list[Parameter]:
    return [p for p in sent() if p.default is not None and p.default is not ABSENT]


def test_all_defaults_together_are_accepted() -> None:
    values = {p.name: p.default for p in with_default()}
    assert len(values) > 300
    read(nested(values))


@pytest.mark.parametrize("parameter", with_default(), ids=lambda p: p.name)
def test_each_default_is_accepted_alone(parameter: Parameter) -> None:
    """With what its section always sends, and without anything else."""
    name = parameter.name
    above = [".".join(name.split(".")[:end]) for end in range(1, name.count(".") + 1)]
    groups = [group for section in above if (group := REGISTRY.sections[section])]
    always = [group.parameters[attribute] for group in groups for attribute in group.always_sent]
    read(nested({p.name: p.default for p in always} | {name: parameter.default}))


def test_what_deepspeed_refuses_is_never_sent() -> None:
    assert {name for name in REFUSED if REGISTRY.parameters[name].to} == set()
    retired = {p.name for p in REGISTRY.parameters.values() if p.origins == ("DSC",) and not p.to}
    assert retired - REFUSED == {
        f"zero_optimization.{name}" for name in ("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory")
    }


@pytest.mark.parametrize("name", ["cpu_offload", "cpu_offload_param"])
def test_what_a_retired_key_becomes_is_what_deepspeed_makes_of_it(name: str) -> None:
    parameter = REGISTRY.parameters[f"zero_optimization.{name}"]
    assert parameter.replaced_by is not None
    old = read({"zero_optimization": {name: True}}).zero_config
    new = read(nested(parameter.replaced_by[True])).zero_config
    assert old.offload_param == new.offload_param
    assert old.offload_optimizer == new.offload_optimizer
    assert parameter.replaced_by[False] == {}


@pytest.mark.parametrize("old", ["bfloat16", "tensor_parallel.tensor_parallel"])
def test_deepspeed_too_knows_the_retired_spelling_of_a_section(old: str) -> None:
    group = REGISTRY.sections[old]
    assert group is not None
    parameter = next(p for p in group.parameters.values() if isinstance(p.default, bool | int))
    value = not parameter.default if isinstance(parameter.default, bool) else parameter.default + 1
    found = [read(nested({f"{section}.{parameter.attribute}": value})) for section in (old, group.section)]
    assert found[0].bfloat16_config == found[1].bfloat16_config
    assert found[0].tensor_parallel_config == found[1].tensor_parallel_config
    assert REGISTRY.find(f"{old}.{parameter.attribute}") is parameter


def test_gradient_clipping_is_pinned_to_what_deepspeed_assumes_and_not_to_the_seeds_default() -> None:
    clipping = REGISTRY.parameters["gradient_clipping"]
    assert (clipping.default, clipping.receiver_default) == (0.0, read({}).gradient_clipping) == (0.0, 1.0)
