"""Keys of DeepSpeed's JSON, changed one by one in YAML: what the engine that is built reports back of them."""

from __future__ import annotations

from typing import Any

import pytest

from neoxargs.base.problems import Problems, sentence
from neoxargs.checks.trainer import trainer_problems
from neoxargs.config.config import Config
from neoxargs.resolve import File, complete, draft
from neoxargs.targets.deepspeed import deepspeed_json
from neoxargs.train.process import mesh, setup
from tests.support import smallest
from tests.support.deepspeed_version import has_key
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY
from tests.support.snapshots import pinned
from tests.support.trials import allow_fp16

#: What is asked of the engine.
ASKED = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "postscale_gradients",
    "gradient_predivide_factor", "sparse_gradients_enabled", "gradient_clipping", "zero_optimization_stage",
    "zero_reduce_bucket_size", "zero_allow_untested_optimizer", "steps_per_print", "wall_clock_breakdown",
    "dump_state", "flops_profiler_enabled", "flops_profiler_profile_step", "scheduler_name", "fp16_enabled",
)  # fmt: skip
Reported = dict[str, Any]
#: YAML -> what the engine then reports otherwise than without it.
CHANGES: dict[str, Reported] = {
    "train_batch_size: 8": {"train_batch_size": 8, "gradient_accumulation_steps": 4},
    "train_micro_batch_size_per_gpu: 4": {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 4},
    "batch_size: 4": {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 4},
    "gradient_accumulation_steps: 3": {"train_batch_size": 6, "gradient_accumulation_steps": 3},
    "optimizer: {type: SGD, params: {lr: 0.1}}": {"optimizer": "SGD"},
    "scheduler: {type: WarmupLR, params: {warmup_min_lr: 0.0002}}": {"scheduler_name": "WarmupLR", "lr": 0.0002},
    "fp32-allreduce: true": {"communication": "torch.float32"},
    "prescale_gradients: true": {"postscale_gradients": False},
    "gradient_predivide_factor: 2.0": {"gradient_predivide_factor": 2.0},
    **({"sparse_gradients: true": {"sparse_gradients_enabled": True}} if has_key("sparse_gradients") else {}),
    "gradient_clipping: 0.5": {"gradient_clipping": 0.5},
    "fp16: {enabled: true}": {
        "fp16_enabled": True, "weights": "torch.float16", "communication": "torch.float16",
        "zero_optimization_stage": 1, "optimizer": "DeepSpeedZeroOptimizer",
    },
    "bf16: {enabled: true}": {
        "weights": "torch.bfloat16", "zero_optimization_stage": 1, "optimizer": "DeepSpeedZeroOptimizer",
    },
    "bf16: {enabled: true}\ngradient_accumulation_steps: 2": {
        "zero_optimization_stage": 1, "optimizer": "BF16_Optimizer",
    },
    "bf16: {enabled: true}\ngradient_accumulation_steps: 2\ndata_types: {grad_accum_dtype: bf16}": {
        "optimizer": "DeepSpeedZeroOptimizer", "summed": "torch.bfloat16",
    },
    "fp16: {enabled: true}\ngradient_accumulation_steps: 2": {"summed": "torch.float16"},
    "zero_optimization: {stage: 1, reduce_bucket_size: 1000}": {
        "zero_optimization_stage": 1, "zero_reduce_bucket_size": 1000, "optimizer": "DeepSpeedZeroOptimizer",
    },
    "zero_allow_untested_optimizer: false": {"zero_allow_untested_optimizer": False},
    "steps_per_print: 7": {"steps_per_print": 7},
    "wall_clock_breakdown: true": {"wall_clock_breakdown": True},
    "dump_state: true": {"dump_state": True},
    "flops_profiler: {enabled: true, profile_step: 3}": {
        "flops_profiler_enabled": True, "flops_profiler_profile_step": 3, "wall_clock_breakdown": True,
    },
}  # fmt: skip
#: Beside which a change is made; it is then compared with this alone.
BESIDE = {"fp32-allreduce: true": "bf16: {enabled: true}"}


def resolved(text: str) -> Config:
    shape = smallest.YAML
    if "micro" in text or text.startswith("batch_size"):
        shape = shape.replace("train_micro_batch_size_per_gpu: 2\n", "")
    return complete(draft([File("my.yml", shape + text)]), 1)


def reports(texts: list[str]) -> dict[str, Reported]:
    """What engines built for these texts say of themselves."""
    from neoxargs.train.engine import build as engine

    setup.start("gloo", seed=1)
    allow_fp16()
    found = {}
    for text in texts:
        config = resolved(text)
        here = mesh.build_mesh(config)
        built: Any = engine.build(config, deepspeed_json(config), VOCABULARY, here).deepspeed
        asked = {name: getattr(built, name)() for name in ASKED if hasattr(built, name)}
        found[text] = asked | {
            "optimizer": type(built.optimizer).__name__,
            "lr": built.get_lr()[0],
            "weights": str(next(built.module.parameters()).dtype),
            "communication": str(built.communication_data_type),
            "summed": str(built.get_data_types()[1]),
        }
        mesh.destroy_groups()
    return found


@pytest.fixture(scope="module")
def reported() -> dict[str, Reported]:
    alone = ["", *BESIDE.values()]
    return run_ranks(reports, 1, alone + [with_company(text) for text in CHANGES])[0]


def with_company(text: str) -> str:
    return "\n".join(filter(None, [BESIDE.get(text, ""), text]))


@pytest.mark.shows(
    "train_batch_size", "train_micro_batch_size_per_gpu", "batch-size", "gradient_accumulation_steps", "optimizer",
    "scheduler", "fp32-allreduce", "fp32_allreduce", "prescale_gradients", "gradient_predivide_factor",
    "sparse_gradients", "gradient_clipping", "fp16", "zero_optimization", "zero_allow_untested_optimizer",
    "steps_per_print", "wall_clock_breakdown", "dump_state", "flops_profiler",
)  # fmt: skip
@pytest.mark.parametrize("text", CHANGES)
def test_the_engine_uses_the_configured_value(reported: dict[str, Reported], text: str) -> None:
    before, after = reported[BESIDE.get(text, "")], reported[with_company(text)]
    for name, value in CHANGES[text].items():
        assert after[name] == value != before[name], name


@pytest.mark.shows("amp")
@pytest.mark.skipif(not has_key("amp"), reason="this DeepSpeed has no amp")
def test_amp_reaches_deepspeed_in_other_scripts_and_is_refused_for_ours() -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    before, after = resolved(""), resolved("amp: {enabled: true, opt_level: O2}")
    read = [DeepSpeedConfig(deepspeed_json(config)) for config in (before, after)]
    assert [config.amp_enabled for config in read] == [False, True]
    assert [config.amp_params for config in read] == [False, {"opt_level": "O2"}]
    assert trainer_problems(before) == []
    (refusal,) = trainer_problems(after)
    what = "amp.enabled (true) is not supported by train.py: it needs NVIDIA's Apex; the fp16 and bf16 "
    what += "sections replace Apex's mixed precision"
    assert (refusal.severity, refusal.what) == ("error", what)
    assert refusal.where and refusal.where.line == 8


def sentences_of(thresholds: list[int]) -> list[str]:
    """Build an engine of ZeRO-3 with each threshold; return what refuses it, or ""."""
    from neoxargs.train.engine import build as engine

    setup.start("gloo", seed=1)
    found = []
    for threshold in thresholds:
        section = f"{{stage: 3, stage3_module_granularity_threshold: {threshold}}}"
        config = resolved(f"zero_optimization: {section}")
        try:
            engine.build(config, deepspeed_json(config), VOCABULARY, mesh.build_mesh(config))
            found.append("")
        except Problems as stop:
            found += map(sentence, stop.problems)
        mesh.destroy_groups()
    return found


@pytest.mark.slow
def test_a_model_that_would_be_fetched_as_one_module_is_refused() -> None:
    [found] = run_ranks(sentences_of, 1, [0, 1, 10**9])
    assert found[:2] == ["", ""]
    pinned(found[2])
