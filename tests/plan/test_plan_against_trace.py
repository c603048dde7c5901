"""bench/plan_against_trace.py on two small models: the plan agrees with the trace, and an error in the model shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import set_eval_frame

from neoxargs.train.model.mlp import FeedForward
from neoxargs.train.ops import ring
from neoxargs.train.process.mesh import Axis

pytestmark = pytest.mark.slow


BENCH = "plan_against_trace"
KEPT, RECOMPUTED, SELECTIVE = (f"checkpoint_activations={value}" for value in ("false", "true", "selective"))


every_recompute = pytest.mark.parametrize("recompute", [KEPT, RECOMPUTED, SELECTIVE])


@every_recompute
def test_the_plan_agrees_on_every_stage_of_a_pipeline(bench: Any, recompute: str) -> None:
    rows = list(bench.compare("pythia-70m", "tp2-pp2", [recompute, "sequence_parallel=false"]))
    assert [row.stage for row in rows] == [0, 1]
    for row in rows:
        assert row.memory_error == pytest.approx(0, abs=0.05)
        assert row.flops_error == pytest.approx(0, abs=0.01)
        assert row.planned.tensor == row.traced.tensor and row.planned.tensor
        assert row.planned.pipeline == row.traced.pipeline and row.planned.pipeline
        assert row.agrees and 0 < row.share < 1


@every_recompute
def test_the_plan_agrees_without_a_pipeline(bench: Any, recompute: str) -> None:
    [row] = bench.compare("gpt-2-small", "data-parallel", [recompute])
    assert row.agrees
    assert not row.traced.tensor and not row.traced.pipeline


@every_recompute
def test_the_plan_agrees_with_sequence_parallelism(bench: Any, recompute: str) -> None:
    for row in bench.compare("pythia-70m", "tp2-pp2", [recompute]):
        assert row.agrees
        assert {"all_gather", "reduce_scatter"} <= {operator for operator, _ in row.traced.tensor}


ONE_KEY = ["num_kv_heads=1", "pos_emb=rotary", "rotary_pct=1"]
ALL_TO_ALL, RING = (["attention_dropout=0", f"context_parallel_style={style}"] for style in ("all_to_all", "ring"))
#: So short that memory in attention counts.
AROUND = [*RING, "context_parallel_size=4", "num_layers=2", "padded_vocab_size=1024"]


@pytest.mark.parametrize(
    "sets", [[KEPT, *ONE_KEY], [RECOMPUTED], [SELECTIVE, *ONE_KEY]], ids=["kept", "recomputed", "selective"]
)
@pytest.mark.parametrize(("style", "operator"), [(ALL_TO_ALL, "all_to_all"), (RING, "send")])
def test_the_plan_agrees_with_context_parallelism(bench: Any, sets: list[str], style: list[str], operator: str) -> None:
    [row] = bench.compare("gpt-2-small", "data-parallel", ["context_parallel_size=2", *style, *sets])
    assert row.memory_error == pytest.approx(0, abs=0.01)
    assert row.agrees and {operator for operator, _ in row.traced.tensor} == {operator}


@pytest.mark.parametrize("style", [ALL_TO_ALL, RING])
def test_the_plan_agrees_with_context_and_tensor_parallelism(bench: Any, style: list[str]) -> None:
    for row in bench.compare("pythia-70m", "tp2-pp2", ["context_parallel_size=2", *style]):
        assert row.agrees, bench._in_words(row)


def test_the_plan_agrees_with_a_product_of_both_styles(bench: Any) -> None:
    rotated = ["num_kv_heads=2", "pos_emb=rotary", "rotary_pct=1", "attention_dropout=0"]
    sets = ["context_parallel_size=4", "context_parallel_style=hybrid", *rotated]
    [row] = bench.compare("gpt-2-small", "data-parallel", [KEPT, *sets])
    assert row.memory_error == pytest.approx(0, abs=0.01)
    assert row.agrees and {operator for operator, _ in row.traced.tensor} == {"all_to_all", "send"}


def test_keys_are_freed_where_a_call_keeps_its_arguments(bench: Any) -> None:
    """As all calls do once torch's compiler evaluates the frames of Python."""
    before = set_eval_frame(False)
    try:
        for row in bench.compare("pythia-70m", "tp2-pp2", ["context_parallel_size=2", *RING]):
            assert row.agrees, bench._in_words(row)
    finally:
        set_eval_frame(before)


def test_keys_that_a_rank_of_a_ring_keeps_are_seen(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_on, kept = ring._pass_on, []

    def kept_too(axis: Axis, sent: Tensor) -> tuple[Tensor, list[Any]]:
        kept.append(sent)
        return pass_on(axis, sent)

    [row] = bench.compare("gpt-2-small", "data-parallel", [RECOMPUTED, *AROUND])
    assert row.agrees
    monkeypatch.setattr(ring, "_pass_on", kept_too)
    [row] = bench.compare("gpt-2-small", "data-parallel", [RECOMPUTED, *AROUND])
    assert not row.agrees and row.memory_error < -0.05


GEMMA = ["norm=rmsnorm", "apply_layernorm_1p=true", "norm_placement=both", "final_logit_softcapping=30"]
QWEN = ["norm=rmsnorm", "use_qk_layernorm=true", "num_kv_heads=4", "pos_emb=rotary"]
OLMO = ["norm=rmsnorm", "use_qk_layernorm=true", "qk_layernorm_scope=all_heads", "norm_placement=after"]


@pytest.mark.parametrize("norms", [GEMMA, QWEN, OLMO])
@every_recompute
def test_the_plan_agrees_with_norms_that_compute_in_fp32(bench: Any, recompute: str, norms: list[str]) -> None:
    for row in bench.compare("pythia-70m", "tp2-pp2", [recompute, "gpt_j_residual=false", *norms]):
        assert row.agrees, bench._in_words(row)


@pytest.mark.parametrize(
    "sets",
    [
        ["gpt_j_residual=false"],
        ["rope_fusion=false", "num_kv_heads=2", "rotary_pct=0.5"],
        ["model_parallel_size=2"],
        ["gpt_j_residual=false", "norm=rmsnorm", "use_qk_layernorm=true", "activation=swiglu", "num_kv_heads=2"],
        ["gpt_j_residual=false", "pos_emb=learned", "rope_fusion=false", "num_kv_heads=2", "hidden_dropout=0.1"],
    ],
    ids=" ".join,
)
def test_the_plan_counts_the_traffic_of_a_layer_as_traced(bench: Any, sets: list[str]) -> None:
    import traffic_against_trace

    row = traffic_against_trace.compare("pythia-1b", "data-parallel", sets)
    assert row.error == pytest.approx(0, abs=0.01)


def extra_activation(self: FeedForward, x: Tensor) -> Tensor:
    return self.dense_4h_to_h(self.activation(self.dense_h_to_4h(x)).sin())  # type: ignore[no-any-return]


def extra_product(self: FeedForward, x: Tensor) -> Tensor:
    wide = self.activation(self.dense_h_to_4h(x))
    self.dense_4h_to_h(wide)
    return self.dense_4h_to_h(wide)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("forward", "figure"), [(extra_activation, "memory"), (extra_product, "flops")])
def test_one_tensor_or_product_more_in_a_block_is_seen(
    bench: Any, monkeypatch: pytest.MonkeyPatch, forward: Any, figure: str
) -> None:
    monkeypatch.setattr(FeedForward, "forward", forward)
    [row] = bench.compare("gpt-2-small", "data-parallel", [KEPT])
    assert not row.agrees
    off = {"memory": row.memory_error, "flops": row.flops_error}[figure]
    assert off < -{"memory": 0.05, "flops": 0.01}[figure]


def test_one_message_more_in_a_block_is_seen(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = FeedForward.forward

    def summed_twice(self: FeedForward, x: Tensor) -> Tensor:
        out = plain(self, x)
        torch.distributed.all_reduce(out.detach(), group=self.dense_h_to_4h.tensor.group)
        return out

    monkeypatch.setattr(FeedForward, "forward", summed_twice)
    files = bench.files_of("pythia-14m", "tp2-pp2")
    plan = bench.plan_of(files, [RECOMPUTED])
    row = bench.compare_stage(plan, files, [RECOMPUTED], 1, ("pythia-14m", "tp2-pp2"))
    assert not row.agrees
    in_both_passes = 2 * len(plan.stage_memory[1].stage.layers)
    assert sum((row.traced.tensor - row.planned.tensor).values()) == in_both_passes


def test_the_memory_of_a_trace_has_names(bench: Any) -> None:
    """Storages are counted once, from the operator that allocates them until their last reference is dropped."""
    from traced.recorder import ACTIVATIONS, GRADIENTS, Recorder, Roof

    recorder = Recorder(Roof(1.0, 1.0, 1.0))
    with torch.device("meta"):
        weight = torch.empty(4, 4, requires_grad=True)
        recorder.ignore([weight])
        with recorder:
            first = torch.ones(8, 4) @ weight
            view = first[:2]
            del first
            total = (view + 1).sum()
            total.backward()
            recorder.recount(weight.grad, GRADIENTS)
    peak = recorder.peak(ACTIVATIONS)
    assert recorder.total.flops == 2 * 2 * 8 * 4 * 4  # forward, and the weight's gradient
    assert peak.tensors["activations: mm float32 (8, 4)"] == 8 * 4 * 4
    assert recorder.peak(GRADIENTS).total == 4 * 4 * 4


def table(bench: Any, begin: str) -> list[list[str]]:
    """Return the cells of the table that begins there on the page."""
    text = bench.PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(bench.END)[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


def test_the_page_has_todays_plans(bench: Any) -> None:
    """After a change of the plan or of shipped files, `python bench/plan_against_trace.py --write` writes the table."""
    cells = table(bench, bench.BEGIN)
    assert {model for model, *_ in cells} == set(bench.MODELS)
    for model, layout, stage, memory, _, _, flops, *_ in cells:
        plan = bench.plan_of(bench.files_of(model, layout), [])  # on 128 GPUs these figures are the same
        figures = bench.planned(plan, int(stage.split()[0]) - 1)
        assert (f"{figures.memory / 2**30:.3f}", f"{figures.flops / 1e12:.3f}") == (memory, flops), (model, layout)


def test_the_page_has_todays_plans_of_context_parallel_layouts(bench: Any) -> None:
    """`python bench/plan_against_trace.py --context --write` writes the table."""
    cells = table(bench, bench.BEGIN_CONTEXT)
    model, long = bench.LONG
    assert {name for _, name, *_ in cells} == set(bench.CONTEXT)
    for _, name, stage, memory, _, _, flops, *_ in cells:
        layout, sets = bench.CONTEXT[name]
        figures = bench.planned(bench.plan_of(bench.files_of(model, layout), [*long, *sets]), int(stage[0]) - 1)
        assert (f"{figures.memory / 2**30:.3f}", f"{figures.flops / 1e12:.3f}") == (memory, flops), name
