"""Compares the plan's memory with the memory that torch and DeepSpeed use on a CPU.

Run as a program, it prints the table of docs/plan.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch

from neoxargs.config.config import Config
from neoxargs.config.value import Source, Value
from neoxargs.plan.memory import activations, states
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.stages import pipeline_stages
from neoxargs.plan.memory.states import ModelStates
from neoxargs.train.ops import selective
from neoxargs.train.ops.selective import Recipe, Selective
from tests.support.paths import DOCS
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY
from tests.support.trials import MICRO_BATCH, SAMPLES, Training, Trial

pytestmark = pytest.mark.slow

DOCUMENT = DOCS / "plan.md"
BF16 = {"bf16": {"enabled": True}}
HALF = {"precision": "bfloat16"}
CHECKPOINTS = {"checkpoint_activations": True}
SELECTIVE = {"checkpoint_activations": "selective"}
EXPERTS = {"moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk", "moe_num_shared_experts": 1}
LONG = {"seq_length": 16, "num_layers": 4}
GROUPED = {**LONG, "num_kv_heads": 2, "pos_emb": "rotary"}


def zero(stage: int, config: dict[str, Any] | None = None, **deepspeed: Any) -> Trial:
    return Trial(
        {"zero_optimization.stage": stage, **(config or {})}, {"zero_optimization": {"stage": stage}, **deepspeed}
    )


ONE: dict[str, Trial] = {
    "plain": Trial(),
    "4 layers": Trial(LONG),
    "dropout": Trial({"hidden_dropout": 0.1}),
    "checkpoints": Trial({**LONG, **CHECKPOINTS}),
    "checkpoints of 2 layers": Trial({**LONG, **CHECKPOINTS, "checkpoint_num_layers": 2}),
    "selective": Trial({**LONG, **SELECTIVE}),
    "selective, rotary, SwiGLU, grouped queries": Trial(
        {**SELECTIVE, "pos_emb": "rotary", "activation": "swiglu", "num_kv_heads": 2}
    ),
    "rotary, parallel residual": Trial({"pos_emb": "rotary", "gpt_j_residual": True, "no_weight_tying": True}),
    "grouped queries, SwiGLU, RMSNorm": Trial({"num_kv_heads": 2, "activation": "swiglu", "norm": "rmsnorm"}),
    "ALiBi": Trial({"pos_emb": "alibi"}),
    "relative positions": Trial({"pos_emb": "rpe", "num_layers": 4}),
    "sparse layers": Trial(
        {"attention_config": ["local", "global"], "sparsity_config": {"block": 4, "num_local_blocks": 2}}
    ),
    "norms of queries and keys": Trial({"use_qk_layernorm": True}),
    "norms of queries and keys, grouped queries": Trial({"use_qk_layernorm": True, "num_kv_heads": 2}),
    "norms of queries and keys, rotary": Trial({"use_qk_layernorm": True, "pos_emb": "rotary"}),
    "bf16, ZeRO-1": zero(1, HALF, **BF16),
    "experts": Trial(EXPERTS),
    "experts, selective, SwiGLU": Trial({**EXPERTS, **SELECTIVE, "activation": "swiglu"}),
    "pipeline engine": Trial({"pipe_parallel_size": 1}),
    "4 layers, rotary, grouped queries": Trial(GROUPED),
    "4 layers, softcap": Trial({**LONG, "attn_logit_softcapping": 5.0}),
}


def in_context(ranks: int, style: str, config: dict[str, Any]) -> Trial:
    return Trial({**config, "context_parallel_size": ranks, "context_parallel_style": style})


TWO: dict[str, Trial] = {
    "tp 2": Trial({"model_parallel_size": 2}),
    "tp 2, experts": Trial({**EXPERTS, "model_parallel_size": 2, "enable_expert_tensor_parallelism": True}),
    "dp 2, experts divided": Trial({**EXPERTS, "moe_top_k": 4, "moe_expert_parallel_size": 2}),
    "dp 2, experts divided, ZeRO-1": zero(1, {**EXPERTS, "moe_top_k": 4, "moe_expert_parallel_size": 2}),
    "tp 2, dropout": Trial({"model_parallel_size": 2, "hidden_dropout": 0.1}),
    "dp 2, ZeRO-1": zero(1),
    "dp 2, ZeRO-2": zero(2),
    "dp 2, ZeRO-3": zero(3),
    "dp 2, ZeRO-2, bf16": zero(2, HALF, **BF16),
    "pp 2": Trial({"pipe_parallel_size": 2}),
    "pp 2, checkpoints, dropout": Trial({**LONG, "pipe_parallel_size": 2, **CHECKPOINTS, "hidden_dropout": 0.1}),
    "pp 2, checkpoints": Trial({**LONG, "pipe_parallel_size": 2, **CHECKPOINTS}),
    "dp 2, pipeline, ZeRO-1": zero(1, {"pipe_parallel_size": 1}),
    "cp 2, all_to_all, 4 layers, rotary, grouped queries": in_context(2, "all_to_all", GROUPED),
    "cp 2, ring, 4 layers, rotary, grouped queries": in_context(2, "ring", GROUPED),
    "cp 2, ring, 4 layers, softcap": in_context(2, "ring", {**LONG, "attn_logit_softcapping": 5.0}),
}
FOUR: dict[str, Trial] = {
    "cp 4, all_to_all, 4 layers, rotary, grouped queries": in_context(4, "all_to_all", GROUPED),
    "cp 4, ring, 4 layers, rotary, grouped queries": in_context(4, "ring", GROUPED),
}
#: Ranks -> the configurations that as many are measured with.
ALL = {1: ONE, 2: TWO, 4: FOUR}
TRIALS = ONE | TWO | FOUR


class Memory(NamedTuple):
    """Memory of one rank, in bytes except for `parameters`."""

    parameters: int
    """Number of parameters."""
    weights: int
    gradients: int
    optimizer: int
    activations: int


# --- measured ---------------------------------------------------------------------------------------------------------


def measure(trials: dict[str, Trial]) -> dict[str, Memory]:
    from neoxargs.train.process import mesh, setup

    setup.start("gloo", seed=1)
    measurements = {}
    for name, trial in trials.items():
        measurements[name] = _measure_one(Training(trial))
        mesh.destroy_groups()
    return measurements


def _measure_one(training: Training) -> Memory:
    engine, parameters = training.engine.deepspeed, list(training.engine.deepspeed.module.parameters())
    seen = Counter[str]()
    _record_gradients(engine, parameters, seen)
    with _saved_tensors(parameters) as saved:
        training.engine.train_step(training.batches)
    weights = [getattr(parameter, "ds_tensor", parameter) for parameter in parameters]
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    moments = [value for state in optimizer.state.values() for value in state.values()]
    masters = next((vars(engine.optimizer).get(name) for name in MASTERS if vars(engine.optimizer).get(name)), [])
    return Memory(
        parameters=sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in parameters),
        weights=_bytes(weights),
        gradients=seen["gradients"],
        optimizer=_bytes(value for value in moments if torch.is_tensor(value) and value.numel() > 1) + _bytes(masters),
        activations=saved["peak"],
    )


#: Attributes of DeepSpeed's optimizers with fp32 master weights.
MASTERS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition")


def _record_gradients(engine: Any, parameters: list[Any], seen: Counter[str]) -> None:
    """Record the most bytes of gradients: full ones in the backward pass, partitioned ones before the step."""
    step = engine.optimizer.step

    def recording_step(*arguments: Any, **named: Any) -> Any:
        full = _bytes(parameter.grad for parameter in parameters if parameter.grad is not None)
        full += _bytes(getattr(engine.optimizer, "fp32_groups_actual_gradients_flat", []))
        shards = getattr(engine.optimizer, "averaged_gradients", {})
        lists = [shard for shard in shards.values() if shard is not None]
        partitioned = _bytes(tensor for shard in lists for tensor in (shard if isinstance(shard, list) else [shard]))
        seen["gradients"] = max(seen["gradients"], full, partitioned)
        return step(*arguments, **named)

    def backward(module: Any, *_: Any) -> None:
        full = _bytes(parameter.grad for parameter in parameters if parameter.grad is not None)
        if engine.zero_optimization_stage() < 2:
            seen["gradients"] = max(seen["gradients"], full)

    engine.optimizer.step = recording_step
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(backward)


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@contextmanager
def _saved_tensors(parameters: list[Any]) -> Iterator[Counter[str]]:
    """Count the bytes of tensors that autograd saves, each storage once and without weights: `now` and `peak`."""
    alive, sizes = Counter[int](), Counter[str]()

    class Kept:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor, self.place = tensor, tensor.untyped_storage().data_ptr()
            # compared for each tensor, because ZeRO-3 gathers weights into new storages
            self.own = any(parameter.untyped_storage().data_ptr() == self.place for parameter in parameters)
            if not self.own and not alive[self.place]:
                sizes["now"] += tensor.untyped_storage().nbytes()
                sizes["peak"] = max(sizes["peak"], sizes["now"])
            alive[self.place] += not self.own

        def __del__(self) -> None:
            alive[self.place] -= not self.own
            if not self.own and not alive[self.place]:
                sizes["now"] -= self.tensor.untyped_storage().nbytes()

    # Selective recomputation has hooks of its own, and torch calls only the innermost.
    pack, unpack = Selective._pack, selective._unpack

    def packed(self: Selective, saved: torch.Tensor) -> tuple[Any, list[Kept]]:
        stored = pack(self, saved)
        return stored, [Kept(x) for x in (stored.inputs if isinstance(stored, Recipe) else (stored,))]

    with (
        patch.object(Selective, "_pack", packed),
        patch.object(selective, "_unpack", lambda stored: unpack(stored[0])),
        torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor),
    ):
        yield sizes


# --- predicted --------------------------------------------------------------------------------------------------------


def predict(trial: Trial, world: int, rank: int) -> Memory:
    config = configuration(trial, world)
    held = pipeline_stages(config, VOCABULARY.padded)
    stage = held[rank * len(held) // world]
    states_here, sizes = ModelStates(config, stage), ActivationSizes(config, "cpu")
    return Memory(
        parameters=stage.parameters,
        weights=states.weights(states_here),
        gradients=states.gradients(states_here),
        optimizer=states.optimizer_state(states_here),
        activations=activations.micro_batches_in_flight(config, stage) * activations.stored(sizes, stage),
    )


def configuration(trial: Trial, world: int) -> Config:
    from tests.support.small_gpt import SMALL

    written = {**SMALL, "precision": "fp32", "pos_emb": "learned", **trial.config}
    written.setdefault("context_parallel_size", 1)
    sizes = "model_parallel_size", "pipe_parallel_size", "context_parallel_size"
    data = world // math.prod(max(1, written[size]) for size in sizes)
    batch = {
        "world_size": world, "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": SAMPLES // MICRO_BATCH // data,
    }  # fmt: skip
    return Config({name: Value(value, Source("set")) for name, value in {**written, **batch}.items()})


# --- compared ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured() -> dict[str, list[Memory]]:
    return collect()


def collect() -> dict[str, list[Memory]]:
    measurements: dict[str, list[Memory]] = {}
    for world, trials in ALL.items():
        ranks = run_ranks(measure, world, trials, timeout=250)
        measurements |= {name: [rank[name] for rank in ranks] for name in trials}
    return measurements


@pytest.mark.parametrize("name", TRIALS)
def test_parameters_gradients_and_optimizer_state_are_exact(measured: dict[str, list[Memory]], name: str) -> None:
    for rank, held in enumerate(measured[name]):
        expected = predict(TRIALS[name], len(measured[name]), rank)
        assert held[:4] == expected[:4]


@pytest.mark.parametrize("name", TRIALS)
def test_activations_are_within_a_tenth(measured: dict[str, list[Memory]], name: str) -> None:
    for rank, held in enumerate(measured[name]):
        expected = predict(TRIALS[name], len(measured[name]), rank)
        assert expected.activations == pytest.approx(held.activations, rel=0.1)


@pytest.mark.parametrize("name", TRIALS)
def test_the_table_of_the_page_has_todays_predictions(name: str) -> None:
    [world] = (world for world, trials in ALL.items() if name in trials)
    expected = predict(TRIALS[name], world, 0)
    row = " | ".join(f"{number:,}" for number in expected)
    assert f"| {name} | {row} |" in DOCUMENT.read_text(encoding="utf-8")


def table() -> str:
    """Measure, and return rank 0's row of each configuration as a Markdown table."""
    lines = [
        "| configuration | parameters | weights | gradients | optimizer | activations | activations, measured "
        "| error |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, ranks in collect().items():
        held, expected = ranks[0], predict(TRIALS[name], len(ranks), 0)
        exact = " | ".join(
            f"{predicted:,}" if predicted == real else f"{predicted:,} ({real:,})"
            for predicted, real in zip(expected[:4], held[:4], strict=True)
        )
        off = 100 * (expected.activations / held.activations - 1)
        lines.append(f"| {name} | {exact} | {expected.activations:,} | {held.activations:,} | {off:+.1f}% |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
