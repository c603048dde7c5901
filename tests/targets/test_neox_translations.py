"""GPT-NeoX's own translations of its published configurations, and ours: the same but for what is listed here.

The reference holds what GPT-NeoX (main branch as of May 2026) told DeepSpeed, its launcher and every rank. Each
difference has a row in `DIFFERENCES` and the same row in docs/from-gpt-neox.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pytest

from neoxargs.base.problems import Problems
from neoxargs.config.config import Config
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve import resolve
from neoxargs.targets.deepspeed import deepspeed_json, runner_flags
from neoxargs.targets.ranks import train_values
from tests.support.paths import DOCS, NEOX_2021, NEOX_HEAD, needs_corpus
from tests.support.reference import read
from tests.support.refused import refused
from tests.support.targets import read_by_deepspeed

MIGRATING = DOCS / "from-gpt-neox.md"

Receiver = Literal["DeepSpeed", "ranks", "launcher"]


class Missing:
    """What was not told."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Missing()


class Difference(NamedTuple):
    """One parameter that we tell a receiver differently, and why. `holds(theirs, ours, config)` says exactly how."""

    receiver: Receiver
    name: str
    holds: Callable[[Any, Any, Config], bool]
    why: str


def ours_only(expected: Any) -> Callable[[Any, Any, Config], bool]:
    """GPT-NeoX tells nothing, we tell this value, or what this function makes of the configuration."""
    return lambda theirs, ours, config: (
        theirs in (NOTHING, None) and ours == (expected(config) if callable(expected) else expected)
    )


def follows(name: str) -> Callable[[Any, Any, Config], bool]:
    """GPT-NeoX tells nothing, we tell the value of this parameter."""
    return ours_only(lambda config: config.get(name))


def theirs_only(theirs: Any, ours: Any, config: Config) -> bool:
    """GPT-NeoX tells something, we tell nothing."""
    return ours in (NOTHING, None)


def is_bfloat16_section(theirs: Any, ours: Any, config: Config) -> bool:
    """`fp16: {type: bfloat16}`."""
    return config.fp16.type == "bfloat16" and config.precision.precision == "bfloat16"


def refused_by_deepspeed(theirs: Any, ours: Any, config: Config) -> bool:
    """A key that DeepSpeed 0.19 has no field for."""
    return ours is NOTHING


BF16_KEYS = ("bf16", "loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis", "min_loss_scale")
BF16_WHY = "DeepSpeed rejects fp16's keys in the bf16 section"
FP16_KEYS = ("enabled", "auto_cast", "loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis")
FP16_WHY = "`fp16: {type: bfloat16}` means bfloat16, as it used to; the newest GPT-NeoX trains in fp16"
ACTIVATIONS = {
    "partition_activations": "partition_activations",
    "synchronize_checkpoint_boundary": "synchronize_each_layer",
}
ACTIVATIONS_WHY = "DeepSpeed's section is derived from Megatron's flags, so the two always agree"
ZERO_LIST_WHY = "GPT-NeoX omits the parameter if the ZeRO stage is a list for the autotuner"

BFLOAT16_WHY = "derived from `precision: bfloat16`; GPT-NeoX puts the bf16 section into deepspeed_extra_args"
RWKV_WHY = "for RWKV layers, derived and checked before the launch; GPT-NeoX derives the values on every rank"
CODE_WHY = "new: each selects the behaviour before or after a change in GPT-NeoX's code"

DIFFERENCES = [
    # what DeepSpeed is told
    Difference("DeepSpeed", "gradient_clipping", ours_only(1.0),
               "GPT-NeoX never sends 1.0, its own default; DeepSpeed's default was 1 or 0, depending on the version"),
    Difference("DeepSpeed", "steps_per_print", ours_only(10),
               "GPT-NeoX never sends 10, its own default; by default, DeepSpeed prints nothing"),
    Difference("DeepSpeed", "wall_clock_breakdown", ours_only(False),
               "deepy sends a value that is set, even if it is the default"),
    Difference("DeepSpeed", "gradient_accumulation_steps", ours_only(1), "all three batch parameters are always sent"),
    Difference("DeepSpeed", "optimizer.params.weight_decay", follows("weight_decay"),
               "deepy also passes the weight decay to optimizers that DeepSpeed builds; "
               "GPT-NeoX passes it only to its own"),
    Difference("DeepSpeed", "communication_data_type", ours_only("fp32"),
               "DeepSpeed's name for fp32_allreduce since 2022"),
    Difference("DeepSpeed", "fp32_allreduce", theirs_only, "DeepSpeed no longer reads it"),
    Difference("DeepSpeed", "zero_optimization.cpu_offload",
               lambda theirs, ours, config: theirs is False and ours is NOTHING,
               "retired; `true` becomes offload_optimizer.device: cpu"),
    Difference("DeepSpeed", "fp16.fp16", refused_by_deepspeed, "DeepSpeed rejects it"),
    Difference("DeepSpeed", "fp16.type", refused_by_deepspeed,
               "DeepSpeed rejects it; deepy selects the precision that it names"),
    Difference("DeepSpeed", "fp16.min_loss_scale", is_bfloat16_section, FP16_WHY),
    *(Difference("DeepSpeed", f"fp16.{key}", is_bfloat16_section, FP16_WHY) for key in FP16_KEYS),
    Difference("DeepSpeed", "bf16.enabled", is_bfloat16_section, FP16_WHY),
    *(Difference("DeepSpeed", f"bf16.{key}", refused_by_deepspeed, BF16_WHY) for key in BF16_KEYS),
    *(Difference("DeepSpeed", f"activation_checkpointing.{key}", follows(flag), ACTIVATIONS_WHY)
      for key, flag in ACTIVATIONS.items()),
    # what every rank is told
    Difference("ranks", "world_size",
               lambda theirs, ours, config: theirs == 1 and ours == config.parallel.global_num_gpus,
               "the number of ranks; GPT-NeoX's launcher sends its own world size, which is 1"),
    Difference("ranks", "rank", theirs_only, "each rank reads it from its environment; GPT-NeoX sends 0 to all"),
    Difference("ranks", "local_rank", theirs_only, "each rank reads it from its environment"),
    Difference("ranks", "sparsity_config", lambda theirs, ours, config: theirs == {} and ours is None,
               "a missing section and an empty one are equivalent"),
    Difference("ranks", "num_kv_heads", follows("num_attention_heads"), "derived: num_attention_heads if not set"),
    Difference("ranks", "intermediate_size", ours_only(lambda config: 4 * config.shape.hidden_size),
               "derived: 4 x hidden_size if not set"),
    Difference("ranks", "mamba_inner_size", follows("mamba_inner_size"),
               "new: derived from intermediate_size, or from expansion_factor and hidden_size"),
    Difference("ranks", "gas", follows("gradient_accumulation_steps"), "equal to gradient_accumulation_steps"),
    Difference("ranks", "adam_beta2", ours_only(lambda config: (config.optimizer_params.betas or [0, 0])[1]),
               "equal to the second value of optimizer.params.betas"),
    Difference("ranks", "optimizer.params.weight_decay", follows("weight_decay"), "equal to weight_decay"),
    Difference("ranks", "communication_data_type", ours_only("fp32"), "derived from fp32_allreduce"),
    Difference("ranks", "run_dir", ours_only(lambda config: config.checkpoint.save or "runs"),
               "new: the folder of metrics and logs"),
    Difference("ranks", "warmup_from_zero", ours_only(False), CODE_WHY),
    Difference("ranks", "rms_norm_epsilon_under_root", ours_only(True), CODE_WHY),
    Difference("ranks", "exact_mlp_width", ours_only(True), "new: derived from te_layernorm_mlp"),
    *(Difference("ranks", name, follows(name), RWKV_WHY) for name in ("dim_att", "head_size", "ffn_dim")),
    Difference("ranks", "deepspeed_extra_args",
               lambda theirs, ours, config: theirs == {"bf16": {"enabled": True}} and config.bf16.enabled,
               BFLOAT16_WHY),
    Difference("ranks", "bf16.enabled", ours_only(lambda config: config.precision.precision == "bfloat16"),
               BFLOAT16_WHY),
    Difference("ranks", "precision", is_bfloat16_section, FP16_WHY),
    Difference("ranks", "fp16.enabled", is_bfloat16_section, FP16_WHY),
    Difference("ranks", "force_multi", lambda theirs, ours, config: theirs is False and config.training.deepspeed_slurm,
               "derived for all receivers; GPT-NeoX adds it only to the launcher's flags"),
    *(Difference("ranks", f"activation_checkpointing.{key}", follows(flag), ACTIVATIONS_WHY)
      for key, flag in ACTIVATIONS.items()),
    *(Difference("ranks", f"zero_{key}", follows(f"zero_optimization.{key}"), ZERO_LIST_WHY)
      for key in ("allgather_bucket_size", "contiguous_gradients", "reduce_bucket_size", "reduce_scatter")),
    # the launcher's flags
    Difference("launcher", "comment", lambda theirs, ours, config: bool(theirs) and ours == [],
               "stock DeepSpeed has no such flag; Slurm receives the comment in launcher_args"),
    Difference("launcher", "launcher_args", lambda theirs, ours, config: theirs == [] and ours == ["--comment=neox"],
               "contains the job's comment, for Slurm"),
]  # fmt: skip
LISTED = {(row.receiver, row.name): row for row in DIFFERENCES}

#: Published configurations that GPT-NeoX translated and we refuse, with the problem.
REFUSED = {"gmlp_small": 'optimizer.params.eps ("1.0e_8") must be a number, at least 0'}
#: Configurations that GPT-NeoX could not translate: what we say, or nothing where we can.
FAILED = {
    "autotuning_configs__small_tune_json": [],
    "autotuning_configs__tune_json": [],
    "llemma__7B": ["finetune is set twice", "decay_lr_to is not a parameter"],
    "llemma__34B": ["finetune is set twice", "attention_type is not a parameter"],
}


CASES: dict[str, dict[str, Any]] = read("neox_head_translations.json")


def resolved(name: str) -> Config:
    """As GPT-NeoX was asked: the script named on the command line, the number of GPUs assumed_resources."""
    case = CASES[name]
    files = [NEOX_HEAD / file.removeprefix("configs/") for file in case["files"]]
    gpus = case.get("num_gpus", 8)
    assumed_resources = [f"global_num_gpus={gpus}"] if name == "cpu_mock_config" else []
    return resolve(files, ["user_script=train.py", *assumed_resources], gpus=gpus)


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value and prefix + key in REGISTRY.sections:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def flags(words: list[str]) -> dict[str, list[str]]:
    """`--a 1 --b --a 2` -> {a: [1, 2], b: []}."""
    found: dict[str, list[str]] = {}
    last: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            last = found.setdefault(name, [])
            last += [value] if equals else []
        else:
            last.append(word)
    return found


def assert_listed(receiver: Receiver, name: str, theirs: Any, ours: Any, config: Config) -> None:
    if theirs == ours:
        return
    row = LISTED.get((receiver, name))
    assert row, f"{receiver}: GPT-NeoX tells {name}: {theirs!r}, we tell {ours!r}, and no row of DIFFERENCES says why"
    assert row.holds(theirs, ours, config), f"{receiver}: {name}: {theirs!r} and {ours!r}, not as DIFFERENCES has it"
    SEEN.add((receiver, name))


SEEN: set[tuple[str, str]] = set()


@pytest.fixture(scope="session")
def neox_defaults() -> dict[str, Any]:
    """What a rank of GPT-NeoX assumes where it is told nothing."""
    rows = {row["name"]: row["default"] for row in read("neox_head_parameters.tsv")}
    del rows["git_hash"]
    return {name: eval(default) for name, default in rows.items()}


TRANSLATED = [name for name, case in CASES.items() if case["ok"] and name not in REFUSED]


@needs_corpus
@pytest.mark.parametrize("name", TRANSLATED)
def test_the_same_translation(name: str, neox_defaults: dict[str, Any]) -> None:
    config, case = resolved(name), CASES[name]

    theirs, ours = dict(flat(case["deepspeed_config"])), dict(flat(deepspeed_json(config)))
    for key in {*theirs, *ours}:
        assert_listed("DeepSpeed", key, theirs.get(key, NOTHING), ours.get(key, NOTHING), config)

    theirs, ours = dict(flat(case["megatron_config"])), dict(flat(train_values(config)))
    for key in {*theirs, *ours}:
        value = ours[key] if key in ours else config.get(key)
        told = theirs.get(key, neox_defaults.get(key))
        assert_listed("ranks", key, told, None if value is ABSENT else value, config)

    theirs, ours = flags(case["runner_args"][: case["runner_args"].index("train.py")]), flags(runner_flags(config))
    for key in {*theirs, *ours}:
        assert_listed("launcher", key, theirs.get(key, []), ours.get(key, []), config)


#: Translations that are a search space for DeepSpeed's autotuner, which no single run can read.
SPACES = ("autotuning_configs__tune_6-7B_json", "autotuning_configs__small_tune_json")


@needs_corpus
@pytest.mark.parametrize("name", [name for name in (*TRANSLATED, *FAILED) if not FAILED.get(name)])
def test_deepspeed_accepts_our_translation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolved(name)
    if name in SPACES:
        assert isinstance(deepspeed_json(config)["zero_optimization"]["stage"], list)
    else:
        read = read_by_deepspeed(config, monkeypatch)
        assert read.train_batch_size == config.batch.train_batch_size
        assert read.gradient_clipping == config.gradients.gradient_clipping


@needs_corpus
def test_every_listed_difference_occurs(neox_defaults: dict[str, Any]) -> None:
    for name in TRANSLATED:
        test_the_same_translation(name, neox_defaults)
    assert set(LISTED) - SEEN == set()


@needs_corpus
@pytest.mark.parametrize("name", REFUSED)
def test_what_gpt_neox_lets_pass(name: str) -> None:
    assert [problem.what for problem in refused(resolved, name)] == [REFUSED[name]]


@needs_corpus
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case["ok"]])
def test_what_gpt_neox_could_not_translate(name: str) -> None:
    said: list[str] = []
    try:
        resolved(name)
    except Problems as caught:
        said = [problem.what for problem in caught.problems]
        assert all(problem.where for problem in caught.problems)
    assert set(FAILED[name]) <= set(said)
    assert bool(said) == bool(FAILED[name])


@needs_corpus
def test_the_translation_of_2021() -> None:
    """What GPT-NeoX as of February 2021 told every rank, flag by flag, and DeepSpeed."""
    case = read("neox_2021_02_oracle.json")[0]
    config = resolve([NEOX_2021 / file for file in case["files"]], gpus=case["gpus"])
    assert config.dialect is not None
    assert config.dialect.name == "neox-2021"
    told = flags(case["old_style_args"][2:])
    theirs = dict(flat(json.loads(told.pop("deepspeed_config")[0])))
    for name, values in told.items():
        if name not in OF_2021:
            parameter = REGISTRY.find(name)
            assert parameter, name
            assert same(config.get(parameter.name), values[0] if values else "1"), name
    ours = dict(flat(deepspeed_json(config)))
    assert {key for key in {*theirs, *ours} if theirs.get(key) != ours.get(key)} == DEEPSPEED_OF_2021


#: Of its flags: the hosts' file, a name made up for every run, a switch that is always on, and `fp16`, a section to us.
OF_2021 = ("hostfile", "wandb_group", "deepspeed", "fp16")
#: Rejected by DeepSpeed today; sent otherwise; told by both names; sent as well.
DEEPSPEED_OF_2021 = {
    "fp16.fp16", "zero_optimization.cpu_offload", "deepspeed", "optimizer.params.max_grad_norm",
    "optimizer.params.eps", "optimizer.params.weight_decay",
    "activation_checkpointing.partition_activations", "activation_checkpointing.synchronize_checkpoint_boundary",
}  # fmt: skip


def same(value: Any, flag: str) -> bool:
    """`1e-2` is 0.01."""
    try:
        return float(value) == float(flag)
    except ValueError:
        return str(value) == flag


def test_the_document_has_the_same_rows() -> None:
    text = MIGRATING.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (DeepSpeed|ranks|launcher) \| (`[\w.`, ]+`) \| (.*) \|$", text, flags=re.M)
    shared: dict[tuple[str, str], list[str]] = {}
    for row in DIFFERENCES:
        shared.setdefault((row.receiver, row.why), []).append(f"`{row.name}`")
    assert rows == [(receiver, ", ".join(names), why) for (receiver, why), names in shared.items()]
    assert len(LISTED) == len(DIFFERENCES)
