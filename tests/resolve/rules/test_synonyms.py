"""A setting with two names has one value, whichever name it was written by, and the same default."""

from __future__ import annotations

import pytest

from neoxargs.base.problems import Problems
from tests.support.configure import configure
from tests.support.refused import refused

#: Top-level name, nested name, a value, another value.
PAIRS = [
    ("lr", "optimizer.params.lr", 0.002, 0.003),
    ("weight_decay", "optimizer.params.weight_decay", 0.2, 0.3),
    ("adam_eps", "optimizer.params.eps", 1e-6, 1e-5),
    ("optimizer_type", "optimizer.type", "sgd", "Adam"),
    ("clip_grad", "gradient_clipping", 0.5, 0.6),
    ("loss_scale", "fp16.loss_scale", 128.0, 256.0),
    ("loss_scale_window", "fp16.loss_scale_window", 500, 600),
    ("min_scale", "fp16.min_loss_scale", 2, 4),
    ("hysteresis", "fp16.hysteresis", 3, 4),
    ("zero_stage", "zero_optimization.stage", 1, 2),
    ("zero_reduce_scatter", "zero_optimization.reduce_scatter", False, True),
    ("zero_contiguous_gradients", "zero_optimization.contiguous_gradients", False, True),
    ("zero_reduce_bucket_size", "zero_optimization.reduce_bucket_size", 1000, 2000),
    ("zero_allgather_bucket_size", "zero_optimization.allgather_bucket_size", 1000, 2000),
    ("partition_activations", "activation_checkpointing.partition_activations", True, False),
    ("contiguous_checkpointing", "activation_checkpointing.contiguous_memory_optimization", True, False),
    ("checkpoint_in_cpu", "activation_checkpointing.cpu_checkpointing", True, False),
    ("synchronize_each_layer", "activation_checkpointing.synchronize_checkpoint_boundary", True, False),
    ("profile_backward", "activation_checkpointing.profile", True, False),
]
#: What a value of a pair needs beside it.
NEEDS = {"contiguous_checkpointing": "partition_activations: true", "loss_scale": "precision: fp16"}


def line(name: str, value: object) -> str:
    """`a.b.c: 1` as YAML."""
    *sections, last = name.split(".")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(f"{section}: {{" for section in sections) + f"{last}: {text}" + "}" * len(sections)


@pytest.mark.parametrize(("top", "nested", "value", "other"), PAIRS, ids=[f"{p[0]}-{p[1]}" for p in PAIRS])
def test_both_names_get_the_value(top: str, nested: str, value: object, other: object) -> None:
    more = NEEDS.get(top, "fp16: {enabled: true}" if "fp16" in nested and top not in NEEDS else "")
    for written in (line(top, value), line(nested, value), f"{line(top, value)}\n{line(nested, value)}"):
        text = "\n".join([written.replace("fp16: {", "fp16: {enabled: true, "), more if "fp16" not in written else ""])
        config = configure(text)
        assert config.get(top) == value
        assert config.get(nested) == value
    sentences = [
        p.what
        for p in refused(lambda: configure(f"{line(top, value)}\n{line(nested, other)}"))
        if "are the same setting and must be equal" in p.what
    ]
    assert len(sentences) == 1
    assert top in sentences[0]
    assert nested in sentences[0]


@pytest.mark.parametrize(("top", "nested", "value", "other"), PAIRS, ids=[f"{p[0]}-{p[1]}" for p in PAIRS])
def test_both_names_have_the_default_if_neither_is_set(top: str, nested: str, value: object, other: object) -> None:
    for dialect, norm, decay in (("neox-2021", 0.0, 0.01), ("neox-2026", 1.0, 0.1)):
        config = configure(f"dialect: {dialect}")
        assert (config.get("gradient_clipping"), config.get("clip_grad")) == (norm, norm)
        assert config.get("weight_decay") == decay
        if top != "loss_scale":  # None at top level says what 0 says in the section
            assert config.get(top) == config.get(nested)


def test_a_retired_norm_in_the_optimizer_clips_gradients() -> None:
    config = configure("optimizer: {params: {max_grad_norm: 0.5}}")
    assert (config.gradients.gradient_clipping, config.optimizer_options.clip_grad) == (0.5, 0.5)
    with pytest.raises(Problems):
        configure("{clip_grad: 1.0, optimizer: {params: {max_grad_norm: 0.5}}}")


def test_adams_betas_have_two_names_as_well() -> None:
    assert configure("adam_beta2: 0.95").optimizer_params.betas == [0.9, 0.95]
    options = configure("optimizer: {params: {betas: [0.8, 0.95]}}").optimizer_options
    assert (options.adam_beta1, options.adam_beta2) == (0.8, 0.95)


def test_an_optimizer_gets_only_parameters_that_it_accepts() -> None:
    params = configure("{optimizer: {type: SGD, params: {momentum: 0.9}}, weight_decay: 0.1}").optimizer_params
    assert (params.betas, params.eps, params.weight_decay, params.momentum) == (None, None, 0.1, 0.9)


def test_adams_defaults_are_not_lions() -> None:
    params = configure("optimizer: {type: Lion}").optimizer_params
    assert (params.betas, params.eps) == (None, None)


def test_the_default_optimizer_is_adam_with_lr_0_001() -> None:
    config = configure()
    assert (config.optimizer.type, config.optimizer_options.optimizer_type) == ("Adam", "Adam")
    assert (config.optimizer_options.lr, config.optimizer_params.lr) == (0.001, 0.001)


def test_the_types_name_is_compared_without_case() -> None:
    assert configure("{optimizer_type: adam, optimizer: {type: Adam}}").optimizer.type == "Adam"


@pytest.mark.shows("cpu-optimizer", "cpu_torch_adam", "onebitadam")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "Adam"),
        ("cpu_optimizer: true", "cpu_adam"),
        ("cpu_torch_adam: true", "cpu_torch_adam"),
        ("{cpu_optimizer: true, cpu_torch_adam: true}", "cpu_torch_adam"),
        ("{cpu_torch_adam: true, cpu_optimizer: true}", "cpu_torch_adam"),
        ("{cpu_optimizer: true, optimizer: {type: Adam, params: {lr: 0.001}}}", "cpu_adam"),
        ("{cpu_torch_adam: true, optimizer: {type: Adam, params: {lr: 0.001}}}", "cpu_torch_adam"),
        ("{cpu_torch_adam: false, optimizer: {type: Adam}}", "Adam"),
        ("onebitadam: true", "OneBitAdam"),
        ("{onebitadam: true, optimizer: {type: OneBitAdam}}", "OneBitAdam"),
    ],
)
def test_old_switches_choose_the_optimizer(text: str, kind: str) -> None:
    config = configure(text)
    assert (config.optimizer.type, config.optimizer_options.optimizer_type) == (kind, kind)


@pytest.mark.parametrize("text", ["onebitadam: true, optimizer: {type: Adam}", "sm3: true, optimizer_type: lion"])
def test_old_switches_contradict_another_optimizer(text: str) -> None:
    (problem,) = refused(configure, f"{{{text}}}")
    assert "contradicts" in problem.what or "must be equal" in problem.what


@pytest.mark.parametrize(
    "text",
    [
        *(f"optimizer: {{type: {kind}, params: {{momentum: 1.0}}}}" for kind in ("Muon", "SGD", "sm3", "madgrad_wd")),
        "optimizer: {type: sm3, params: {beta: 1.0}}",
        "adam_beta1: 1.0",
        "adam_beta2: 1.0",
        "optimizer: {type: Lion, params: {betas: [0.9, 1.0]}}",
    ],
)
def test_a_mean_that_never_changes_is_refused_at_its_line(text: str) -> None:
    [problem] = refused(configure, text)
    assert problem.where and (problem.where.file, problem.where.line) == ("my.yml", 1)
    assert problem.id in ("type-mismatch", "betas-in-range")
