"""What each receiver is told: what was written, what differs from its own default, and nothing it would refuse."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest
from deepspeed.launcher.runner import parse_args

from neoxargs.registry import ABSENT, REGISTRY, Parameter, history, receivers
from neoxargs.targets.deepspeed import deepspeed_json, runner_flags
from neoxargs.targets.nesting import nested
from neoxargs.targets.ranks import train_values
from neoxargs.targets.wire_format import config_from_values, decode, encode
from tests.support.targets import COMPANIONS, configured, other_value, read_by_deepspeed

# -- DeepSpeed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gradient_clipping: 1.0", {"gradient_clipping": 1.0}),
        ("{dialect: neox-2026}", {"gradient_clipping": 1.0}),
        ("{dialect: neox-2021}", {"gradient_clipping": 0.0}),
        ("wall_clock_breakdown: false", {"wall_clock_breakdown": False}),
        ("", {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}),
        ("precision: fp16", {"fp16": {"enabled": True}}),
        ("fp16: {enabled: true, fp16: true, hysteresis: 4}", {"fp16": {"enabled": True, "hysteresis": 4}}),
        ("{precision: fp16, hysteresis: 4}", {"fp16": {"enabled": True, "hysteresis": 4}}),
        ("fp16: {enabled: true, type: bfloat16}", {"bf16": {"enabled": True}}),
        ("bf16: {enabled: true, bf16: true, loss_scale: 0}", {"bf16": {"enabled": True}}),
        ("fp32_allreduce: true", {"communication_data_type": "fp32"}),
        ("zero_stage: 1", {"zero_optimization": {"stage": 1}}),
        ("zero_optimization: {stage: 1, cpu_offload: false}", {"zero_optimization": {"stage": 1}}),
        (
            "zero_optimization: {stage: 2, cpu_offload: true}",
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}},
        ),
        (
            "zero_optimization: {stage: 2, zenflow: {}}",
            {"zero_optimization": {"stage": 2, "zenflow": {}}},
        ),
        ("amp: {enabled: true}", {"amp": {"enabled": True}}),
        ("deepspeed_extra_args: {comms_logger: {enabled: true}}", {"comms_logger": {"enabled": True}}),
        (
            "optimizer: {type: SGD, params: {momentum: 0.9, max_grad_norm: 0.5}}",
            {
                "optimizer": {"type": "SGD", "params": {"lr": 0.001, "momentum": 0.9, "weight_decay": 0.01}},
                "gradient_clipping": 0.5,
            },
        ),
        (
            "partition_activations: true",
            {"activation_checkpointing": {"partition_activations": True}},
        ),
    ],
)
def test_deepspeed_is_told(text: str, expected: dict[str, Any]) -> None:
    found = deepspeed_json(configured(text))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "fp16"),
        ("fp16: {enabled: false, auto_cast: true}", "fp16"),
        ("", "zero_optimization"),
        ("", "activation_checkpointing"),
        ("", "scheduler"),
        ("", "deepspeed"),
        ("deepspeed_extra_args: {x: 1}", "deepspeed_extra_args"),
        ("fp32_allreduce: true", "fp32_allreduce"),
        ("", "num_layers"),
        # newer versions of DeepSpeed refuse these, even if they are off
        ("amp: {opt_level: O2}", "amp"),
        ("elasticity: {enabled: false}", "elasticity"),
        ("sparse_gradients: false", "sparse_gradients"),
    ],
)
def test_deepspeed_is_not_told(text: str, name: str) -> None:
    assert name not in deepspeed_json(configured(text))


#: Keys that this machine's DeepSpeed cannot try.
NOT_HERE = {
    "aio.use_gds": "needs a CUDA device",
    "elasticity.version": "a version that DeepSpeed has is the default",
    "elasticity.model_parallel_size": "must divide the number of GPUs of a machine",
}


def _company(parameter: Parameter) -> str:
    if parameter.used_by_types:
        kind = next((k for k in TYPES if k.lower() == parameter.used_by_types[0]), parameter.used_by_types[0])
        beside = "\nuse_mup: true\nbase_shapes_file: base.bsh" if kind.startswith(("muadam", "musgd")) else ""
        return f"{parameter.name.split('.')[0]}: {{type: {kind}}}{beside}"
    return next((text for start, text in COMPANIONS.items() if parameter.name.startswith(start)), "")


#: DeepSpeed's schedules in their own capitals.
TYPES = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


@pytest.mark.parametrize(
    "parameter",
    [
        p for p in REGISTRY.parameters.values()
        if "deepspeed" in p.to and "." in p.name and other_value(p) is not None and p.name not in NOT_HERE
    ],
    ids=lambda p: p.name,
)  # fmt: skip
def test_deepspeed_accepts_every_key_that_it_is_sent(parameter: Parameter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a value that is not its default, and with what we send beside it."""
    values = {parameter.name: other_value(parameter)}
    if parameter.name.partition(".")[0] in receivers.refused():  # nothing of it is sent while it is off
        switches = [f"{section}.enabled" for section in accumulate(parameter.name.split("."), "{}.{}".format)]
        values |= {name: True for name in switches[:-1] if name in REGISTRY.parameters}
    config = configured(json.dumps(nested(values)), _company(parameter))
    sent: Any = deepspeed_json(config)
    for part in parameter.name.split("."):
        sent = sent[part]
    assert sent == other_value(parameter)
    read_by_deepspeed(config, monkeypatch)


# -- the launcher ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("", []),
        ("hostfile: /job/hostfile", ["--hostfile", "/job/hostfile"]),
        ("{num_gpus: 4, num_nodes: 2}", ["--num_nodes", "2", "--num_gpus", "4"]),
        ("num_gpus: -1", ["--num_gpus=-1"]),
        ("force_multi: true", ["--force_multi"]),
        ("force_multi: false", []),
        ("autotuning_run: tune", ["--autotuning", "tune"]),
        ("log_level: debug", ["--log_level", "debug"]),
        ("detect_nvlink_pairs: true", []),
        (
            "{launcher: slurm, comment: neox, deepspeed_slurm: true}",
            ["--launcher", "slurm", "--force_multi", "--launcher_args=--comment=neox"],
        ),
        (
            "{launcher: slurm, launcher_args: -p big, comment: two words, account: us}",
            ["--launcher", "slurm", "--launcher_args=-p big --comment='two words' --account=us"],
        ),
    ],
)
def test_the_launcher_is_told(text: str, flags: list[str]) -> None:
    found = runner_flags(configured(text))
    assert found == flags
    assert parse_args([*found, "train.py", "--deepspeed_config", "x"]).user_script == "train.py"


@pytest.mark.parametrize(
    "parameter", [p for p in REGISTRY.parameters.values() if "runner" in p.to], ids=lambda p: p.name
)
def test_the_launchers_parser_reads_every_flag(parameter: Parameter) -> None:
    numeric = parameter.annotation in ("OrAll", "NodeRank", "Port", "Port | None")
    value = 4 if numeric else other_value(parameter) or "words"
    config = configured(f"{parameter.name}: {json.dumps(value)}", "launcher: slurm" if parameter.name in WORDS else "")
    read = parse_args([*runner_flags(config), "train.py"])
    assert read.user_script == "train.py"
    assert str(value) in str(getattr(read, WORDS.get(parameter.name, parameter.name)))


#: GPT-NeoX's additions -> the launcher's flag that carries them.
WORDS = {"autotuning_run": "autotuning", "comment": "launcher_args", "account": "launcher_args"}

# -- the ranks -------------------------------------------------------------------------------------------------------

TEXTS = [
    "",
    "dialect: neox-2026",
    "{precision: fp16, lr: 0.01, adam_beta2: 0.95, zero_stage: 1, sparsity: interspersed}",
    "{fp16: {}, precision: fp16, zero_optimization: {stage: 3, offload_param: {device: cpu}}}",
    "{optimizer: {type: Lion}, scheduler: {type: WarmupLR}, deepspeed_extra_args: {x: {y: 1}}, comet_tags: [a]}",
    "{launcher: slurm, comment: night, num_gpus: 4, hostfile: /mock}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_rank_has_the_launchers_configuration(text: str) -> None:
    config = configured(text)
    received = config_from_values(decode(encode(train_values(config))))
    assert received.sections >= config.sections
    for parameter, value in config.items():
        if parameter.to:
            assert received.get(parameter.name) == value.value, parameter.name


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("", "attention_dropout", 0.1),  # GPT-NeoX's newest default is 0
        ("dialect: neox-2026", "attention_dropout", 0.0),  # ours is 0.1
        ("attention_dropout: 0.0", "attention_dropout", 0.0),
        ("", "is_pipe_parallel", False),
        ("", "seed", None),  # 1234 for everybody
        ("seed: 1234", "seed", 1234),
        ("fp16: {enabled: true, fp16: true}", "fp16", {"enabled": True}),
        ("num_gpus: 4", "num_gpus", 4),
        ("dialect: neox-2026", "dialect", None),
    ],
)
def test_a_rank_is_told(text: str, name: str, expected: object) -> None:
    assert train_values(configured(text)).get(name) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_what_a_rank_is_not_told_is_what_every_reader_assumes(text: str) -> None:
    config = configured(text)
    told = train_values(config)
    for parameter, value in config.items():
        if "." not in parameter.name and parameter.to and parameter.name not in told and value.value is not ABSENT:
            assert value.value == parameter.default == history.default_at(parameter.name, history.NEWEST)
