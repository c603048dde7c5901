"""A dialect is a date: set, or inferred from the keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import pytest

from neoxargs.base.problems import Problems, render
from neoxargs.config.config import Config
from neoxargs.config.dialect import Dialect
from neoxargs.registry import REGISTRY
from neoxargs.registry.history import NEWEST, SEED
from neoxargs.resolve import File, read_files
from neoxargs.resolve.derive import complete
from neoxargs.resolve.merge import draft
from neoxargs.runs.lenient import resolved
from tests.support.paths import corpus_files, needs_corpus
from tests.support.snapshots import pinned


def dialect(text: str, *sets: str) -> Dialect:
    drafted = draft([File("my.yml", text)], sets)
    assert not drafted.problems, render(drafted.problems)
    return drafted.dialect


@pytest.mark.parametrize(
    ("text", "day", "name"),
    [
        ("dialect: neox-2021\npos-emb: rotary", SEED, "neox-2021"),
        ("dialect: NeoX-2026", NEWEST, "neox-2026"),
        ("dialect: 2022-12-14", date(2022, 12, 14), "2022-12-14"),
        ("dialect: 2021-02-28", SEED, "neox-2021"),
        ("dialect: 2031-01-01", date(2031, 1, 1), "2031-01-01"),
        ("num-layers: 2\nsave-interval: 1", SEED, "neox-2021"),
        ("num-layers: 2\npos-emb: rotary", NEWEST, "neox-2026"),
        ("bf16: {enabled: true}", NEWEST, "neox-2026"),
        ("zero_optimization: {stage: 1}", SEED, "neox-2021"),
    ],
)
def test_which_dialect(text: str, day: date, name: str) -> None:
    found = dialect(text)
    assert (found.date, found.name) == (day, name)


def test_the_reason_names_the_place() -> None:
    pinned(dialect("seed: 1\npos-emb: rotary").reason)
    assert dialect("dialect: neox-2021").reason == "dialect: neox-2021 (my.yml:1:1)"
    assert dialect("seed: 1", "dialect=neox-2026").reason == "dialect: neox-2026 (--set dialect=neox-2026)"
    pinned(dialect("seed: 1").reason)


@pytest.mark.parametrize(
    "bad", ["neox-2020", "2021-02-27", "2022-13-01", "yesterday", "20220101", "2022-W01-1", '"20220101x"']
)
def test_invalid_dialects(bad: str) -> None:
    (problem,) = draft([File("my.yml", f"dialect: {bad}")]).problems
    assert problem.what.startswith("dialect (")
    assert problem.where


def test_defaults_of_a_date() -> None:
    assert "attention_dropout" not in Dialect(SEED, "").defaults()
    newest = Dialect(NEWEST, "").defaults()
    assert newest["attention_dropout"].value == 0.0
    assert str(newest["attention_dropout"].source) == "default: neox-2026"
    between = Dialect(date(2023, 12, 25), "").defaults()
    assert "attention_dropout" not in between


SMALL = """\
num-layers: 2
hidden-size: 8
num-attention-heads: 2
seq-length: 8
max-position-embeddings: 8
train_batch_size: 1
train-iters: 1
"""


def warnings(*lines: str) -> list[tuple[str, str, str]]:
    config = complete(draft([File("my.yml", SMALL + "".join(f"{line}\n" for line in lines))]), 1)
    return [(problem.what, problem.hint, problem.severity) for problem in config.warnings]


def test_a_guessed_dialect_that_affects_training_is_a_warning() -> None:
    ((what, hint, severity),) = warnings()
    assert what.endswith(
        "attention_dropout 0.1 instead of 0.0, hidden_dropout 0.1 instead of 0.0, weight_decay 0.01 instead of 0.1, "
        "warmup_from_zero true instead of false, gradient_clipping 0.0 instead of 1.0"
    )
    assert severity == "warning"
    pinned(hint)


def test_the_warning_lists_only_unset_parameters() -> None:
    ((what, *_),) = warnings("hidden-dropout: 0", "clip_grad: 2.0", "optimizer: {params: {weight_decay: 0.0}}")
    assert what.endswith(": attention_dropout 0.1 instead of 0.0, warmup_from_zero true instead of false")
    ((what, *_),) = warnings("hidden-dropout: 0", "clip_grad: 2.0", "optimizer: {type: Adam, params: {lr: 1e-4}}")
    assert what.endswith(
        ": attention_dropout 0.1 instead of 0.0, weight_decay 0.01 instead of 0.1, "
        "warmup_from_zero true instead of false"
    )


def test_a_removed_key_limits_the_guess() -> None:
    """GPT-NeoX had num_experts for two months, so nothing that changed later can touch the file."""
    assert dialect("num_experts: 2").name == "2024-05-03"
    ((what, *_),) = warnings("gpt_j_residual: true", "gas: 1")
    assert "the defaults of 2024-02-04 apply, not those of 2021-09-29: attention_dropout 0.0 instead of 0.1" in what
    assert "warmup_from_zero" not in what
    assert warnings("rms-norm: true") == []  # of 2021-02-28 to 2021-03-06
    assert dialect("num_experts: 2\nnum_kv_heads: 2\ngas: 1").name == "neox-2026"  # no GPT-NeoX had all of them


@pytest.mark.parametrize("line", ["num_kv_heads: 2", "te_mha: false"])
def test_no_warning_for_a_file_of_today_that_differs_only_in_its_first_iteration(line: str) -> None:
    assert warnings(line.replace("num_kv_heads: 2", "use_flashattn_swiglu: false")) == []
    assert any("warmup_from_zero" in what for what, *_ in warnings("hidden-dropout: 0"))


def test_the_newest_key_limits_the_guess() -> None:
    ((what, hint, _),) = warnings("pos-emb: rotary", "norm: layernorm")
    pinned(what)
    pinned(hint)


@pytest.mark.parametrize(
    "line",
    [
        "dialect: neox-2021",
        "dialect: neox-2026",
        "hidden-dropout: 0\nattention-dropout: 0\nclip_grad: 1\nweight-decay: 0\nwarmup_from_zero: true",
        "num_kv_heads: 2\nwarmup_from_zero: false",
    ],
)
def test_no_warning_if_nothing_is_guessed(line: str) -> None:
    assert warnings(line) == []


def test_a_file_that_sets_dropout_decay_and_clipping_still_depends_on_the_first_learning_rate() -> None:
    lines = "gradient_clipping: 0.0", "attention-dropout: 0.1", "hidden-dropout: 0.1", "weight-decay: 0.01"
    ((what, *_),) = warnings(*lines)
    assert what.endswith("not those of neox-2026: warmup_from_zero true instead of false")


def test_the_warning_names_values_that_a_rule_derives_from_the_date() -> None:
    ((what, *_),) = warnings(
        "norm: rmsnorm", "rms_norm_epsilon: 1e-5", "checkpoint_activations: true", "moe_num_experts: 2"
    )
    assert "moe_expert_interval 1 instead of 2" in what
    assert "rms_norm_epsilon_under_root true instead of false" in what
    assert "deepspeed_activation_checkpointing" not in what  # GPT-NeoX already had today's default
    ((what, *_),) = warnings("checkpoint_activations: true")
    assert "deepspeed_activation_checkpointing false instead of true" in what


@pytest.mark.parametrize(
    ("line", "unused"),
    [
        ("norm: layernorm\nrms_norm_epsilon: 1e-5", "rms_norm_epsilon_under_root"),
        ("norm: rmsnorm", "rms_norm_epsilon_under_root"),  # by default, the epsilon is 1e-8
        ("norm: rmsnorm\nrms_norm_epsilon: 1e-5\nrmsnorm_fusion: true", "rms_norm_epsilon_under_root"),
        ("hidden-dropout: 0\nwarmup: 0", "warmup_from_zero"),
        ("norm: layernorm\nmoe_num_experts: 1", "moe_expert_interval"),
    ],
)
def test_the_warning_omits_a_default_that_the_file_does_not_use(line: str, unused: str) -> None:
    assert not [what for what, *_ in warnings(line) if unused in what]


#: Default that depends on the dialect -> whether a run uses it.
USED: dict[str, Callable[[Config], bool]] = {
    "rms_norm_epsilon_under_root": lambda config: (
        config.norm.norm == "rmsnorm" and not config.norm.rmsnorm_fusion and config.norm.rms_norm_epsilon > 1e-7
    ),
    "warmup_from_zero": lambda config: config.get("warmup") > 0,
    "moe_expert_interval": lambda config: config.get("moe_num_experts") > 1,
    "moe_router_type": lambda config: config.get("moe_num_experts") > 1,
}


@needs_corpus
def test_published_files_use_every_default_that_their_warning_names() -> None:
    named = set()
    for path in corpus_files():
        try:
            config, _ = resolved(draft(read_files([path])), None)
        except Problems:
            continue
        for warning in config.warnings:
            if warning.id == "dialect-guessed":
                named.update(names := set(warning.about) - {"dialect"})
                assert [name for name in names if config.is_set(name) or not USED[name](config)] == [], path
    assert named == set(USED)


@pytest.mark.parametrize("off", [(), ("weight_by_num_documents: false", "checkpoint_activations: false")])
def test_the_warning_omits_parameters_without_effect(off: tuple[str, ...]) -> None:
    """An explicit `false` counts like the default."""
    ((what, *_),) = warnings("output-layer-init-method: normal", *off)
    assert "weighted_sampler_alpha" not in what and "deepspeed_activation_checkpointing" not in what
    ((what, *_),) = warnings("weight_by_num_documents: true")
    assert "weighted_sampler_alpha 1.0 instead of 0.3" in what


def test_the_warning_names_every_difference_that_diff_finds() -> None:
    """For each date at which a default changed, resolved with everything on that makes defaults matter."""
    lines = "norm: rmsnorm\ncheckpoint_activations: true\nweight_by_num_documents: true\nmoe_num_experts: 2\n"
    undated = draft([File("my.yml", SMALL + lines)])
    config = complete(undated, 1)
    (warning,) = config.warnings
    dated = complete(draft([File("my.yml", SMALL + lines)], [f"dialect={undated.dialect.or_else}"]), 1)
    generation = {name for name, p in REGISTRY.parameters.items() if p.effect == "generation"}
    second = {"dialect", "clip_grad", *(name for name in REGISTRY.parameters if name.startswith("optimizer.params."))}
    differing = {name for name in REGISTRY.parameters if config.get(name) != dated.get(name)} - generation - second
    assert differing == set(warning.about) - {"dialect"}
