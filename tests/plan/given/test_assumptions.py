"""Assumptions can be listed and replaced, and each one changes a plan."""

from __future__ import annotations

import pytest

from neoxargs.base.problems import Problems, render
from neoxargs.base.record import replace
from neoxargs.plan.estimate import Plan, make_plan
from neoxargs.plan.given.assumptions import (
    DEFAULT,
    NAMES,
    RANGES,
    ROWS,
    list_assumptions,
    with_changes,
)
from neoxargs.plan.output.text import to_text
from tests.support.plans import planned
from tests.support.refused import refused

LAYOUT = ("precision=bfloat16", "model_parallel_size=2", "pipe_parallel_size=2", "zero_optimization.stage=1",
          "gradient_accumulation_steps=4", "attention_dropout=0.1")  # fmt: skip
#: Assumption -> what else must be assumed or set so that it matters.
NEEDED = {
    "score_memory": (["unfused_attention=1"], []), "score_bytes": (["unfused_attention=1"], []),
    "overlap": ([], ["zero_optimization.stage=3", "pipe_parallel_size=0", "seq_length=16"]),
    "attention": ([], ["model_parallel_size=1"]),
    "unfused_norms": ([], ["norm=rmsnorm"]),
    "projection_kept": ([], ["pos_emb=rotary"]),
    "partitioned": ([], ["zero_optimization.stage=0", "precision=fp16"]),
    "step_bytes": ([], ["zero_optimization.reduce_bucket_size=1000"]),
    "kernel": ([], ["seq_length=16"]),
    "attention_bounded": ([], ["attn_logit_softcapping=50", "attention_dropout=0"]),
    "compiled": ([], ["compile_layers=true"]),
    "compiled_logit_traffic": ([], ["compile_layers=true", "model_parallel_size=1"]),
    "bucket": ([], ["zero_optimization.stage=2", "pipe_parallel_size=0"]),
    "cpu_adam": ([], ["pipe_parallel_size=0", "zero_optimization.offload_optimizer.device=cpu"]),
    "host_link": ([], ["pipe_parallel_size=0", "zero_optimization.offload_optimizer.device=cpu"]),
    "disk_link": ([], ["pipe_parallel_size=0", "zero_optimization.stage=3",
                       "zero_optimization.offload_optimizer.device=nvme",
                       "zero_optimization.offload_optimizer.nvme_path=/disk"]),
    "pinned_rounding": ([], ["pipe_parallel_size=0", "zero_optimization.offload_optimizer.device=cpu"]),
    "pinned_tensors": ([], ["pipe_parallel_size=0", "zero_optimization.offload_optimizer.device=cpu"]),
    "expert_imbalance": ([], ["moe_num_experts=4", "moe_expert_interval=1"]),
    "matmul_single": ([], ["precision=fp32"]),
    "error_time_one": ([], ["model_parallel_size=1", "pipe_parallel_size=0"]),
    **dict.fromkeys(("beyond_time", "beyond_memory"), ([], ["moe_num_experts=4", "moe_expert_interval=1"])),
}  # fmt: skip
#: Assumption -> value that matters, where a third of the default does not.
VALUES = {
    **{name: 3 for name in NAMES if ROWS[name].unit == "factor of at least 1"},
    "partitioned": 0,
    "pinned_rounding": 0,
    "expert_imbalance": 2,
    "logits_at_once": 1e6,
    "link_hosts": 0.1,
}
DEVICES = {"process": "CPU", "matmul_volta": "V100-32GB", "matmul_hopper": "H100", "attention_hopper": "H100"}


def plan_with(path: str, name: str, value: float | None) -> Plan:
    assume, changes = NEEDED.get(name, ([], []))
    base = {each.partition("=")[0]: each for each in (*LAYOUT, *changes)}
    given = [*assume, *([f"{name}={value}"] if value is not None else [])]
    device = DEVICES.get(name, "A100")
    gpus = 1 if name == "error_time_one" else 16
    return planned(path, *base.values(), gpus=gpus, device=device, assume=given)


@pytest.mark.parametrize("name", NAMES)
def test_each_assumption_changes_the_plan(name: str, middle: str) -> None:
    plain = plan_with(middle, name, None)
    value = getattr(plain.target.assumed, name)
    changed = 9 if value == -1 else 1 if value == 0 else value / 3
    other = plan_with(middle, name, VALUES.get(name, changed))
    assert figures(plain) != figures(other)


def figures(plan: Plan) -> tuple[object, ...]:
    memory = plan.usable, plan.host_peak, plan.usable_host_memory
    intervals = plan.time_error, plan.memory_error, plan.host_error, plan.as_fast
    return [rank.phases for rank in plan.stage_memory], plan.speed, *memory, *intervals


def test_the_list_names_value_unit_and_source_of_each() -> None:
    text = list_assumptions({})
    assert "unfused_attention: 0\n" in text and "context: 0.75 GiB\n" in text
    for name, row in ROWS.items():
        assert f"{name}: " in text and row.source in text and row.meaning in text
    assert "step_bytes: derived from the configuration\n" in text and "link: 0.75 (fraction of bandwidth)\n" in text


def test_an_unknown_assumption_is_an_error() -> None:
    messages = render(refused(with_changes, ["overlaps=1", "link=fast"]))
    assert "unknown assumption: overlaps" in messages and "did you mean overlap" in messages
    assert "link ('fast') must be a number from 0.001 to 1 (fraction of bandwidth)" in messages


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-5", "1e300", "-0.5", ""])
def test_no_assumption_accepts_a_value_that_makes_no_sense(name: str, value: str) -> None:
    with pytest.raises(Problems, match=rf"--assume {name} \('{value}'\) must be "):
        with_changes([f"{name}={value}"])


@pytest.mark.parametrize("change", ["link=0", "link=-1", "usable=5", "partitioned=0.5"])
def test_a_value_out_of_range_is_an_error(change: str) -> None:
    with pytest.raises(Problems, match="must be"):
        with_changes([change])


@pytest.mark.parametrize("name", NAMES)
def test_the_default_and_the_limits_of_each_range_are_accepted(name: str, middle: str) -> None:
    for value in (ROWS[name].default, *RANGES[ROWS[name].unit]):
        assert getattr(with_changes([f"{name}={value}"]), name) == value
        # text, and thus every figure, can be made of the plan
        assert to_text(plan_with(middle, name, value), [])


def test_dashes_are_underscores() -> None:
    assert with_changes(["group-buffers=1"]).group_buffers == 1.0


def test_all_logits_at_once_take_more_memory(middle: str) -> None:
    """16-bit logits and their softmax in fp32, of all tokens, on the last stage."""
    plan = plan_with(middle, "logits_at_once", 1e15)
    batch, shape = plan.config.batch, plan.config.shape
    logits = batch.train_micro_batch_size_per_gpu * shape.seq_length * plan.vocab_rows // 2
    phases = plan.stage_memory[-1].phases
    assert phases["forward"]["logits"] == logits * DEFAULT.logit_bytes and "logits" not in phases["backward"]


def test_what_the_allocator_and_nvidia_smi_show(middle: str) -> None:
    plan = plan_with(middle, "cached_blocks", 0.2)
    rank = plan.fullest
    assert rank.allocated < rank.reserved < rank.occupied
    assert rank.reserved >= 1.2 * rank.allocated
    # cached blocks are given back when memory runs out, so that a run does not need them
    assert rank.peak == plan_with(middle, "cached_blocks", None).fullest.peak < rank.occupied


def test_unfused_attention_stores_scores_and_is_slower(middle: str) -> None:
    fused = planned(middle, "precision=bfloat16", device="A100")
    unfused = make_plan(fused.spec, replace(fused.target, assumed=with_changes(["unfused_attention=1"])))
    assert planned(middle, "precision=bfloat16", device="A100", attention="unfused").speed == unfused.speed
    shape = fused.config.shape
    scores = fused.config.batch.train_micro_batch_size_per_gpu * shape.num_attention_heads * shape.seq_length**2
    more = unfused.fullest.phases["forward"]["activations"] - fused.fullest.phases["forward"]["activations"]
    statistics = 4 * scores // shape.seq_length  # which fused attention stores instead
    assert more == shape.num_layers * 2 * scores or more == shape.num_layers * (2 * scores - statistics)
    assert unfused.speed.step > fused.speed.step


@pytest.mark.parametrize("asked", ["attention_softmax_in_fp32=true", "attn_logit_softcapping=50"])
def test_attention_that_train_py_computes_in_steps_takes_their_time(middle: str, asked: str) -> None:
    """Of bf16 layers with a causal mask; dropout keeps flex_attention, which would bound the scores, from them."""

    def attention(*changes: str) -> float:
        return planned(middle, *LAYOUT, *changes, gpus=16, device="A100").speed.compute

    named = attention("attention_backend=unfused")
    assert attention() < named == attention(asked)
