"""All members of a process group call the same operations in the same order, and every message is received.

For layouts of up to 1,024 ranks, of which some run, each alone, on torch's fake process groups.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neoxargs.train.process import mesh
from tests.support.collectives import Collective
from tests.support.fake_run import Layout, Seen, run, start_and_step, stuck
from tests.support.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BF16: dict[str, Any] = {"precision": "bfloat16"}
EXPERTS = {"moe_num_experts": 16, "moe_top_k": 2, "moe_router_type": "topk", "moe_expert_interval": 1}
SEQUENCE = {"sequence_parallel": True}


def zero(stage: int, **config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    json = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
    return {**BF16, "zero_optimization.stage": stage, **config}, json


LAYOUTS = {
    "tp8 x pp8 x dp16": Layout(8, 8, 16, *zero(1)),
    "tp8 x pp8 x dp16, sequence parallel": Layout(8, 8, 16, *zero(1, **SEQUENCE)),
    "pp8 x dp2, fp32": Layout(1, 8, 2),
    "tp8 x dp128, sequence parallel": Layout(8, 0, 128, *zero(1, **SEQUENCE)),
    **{f"dp1024, ZeRO-{stage}": Layout(1, 0, 1024, *zero(stage)) for stage in (1, 2, 3)},
    "tp2 x dp64, experts among 8": Layout(2, 0, 64, *zero(1, moe_expert_parallel_size=8, **EXPERTS)),
    "dp12, positions among 4, experts among 6": Layout(
        1, 0, 12, *zero(1, context_parallel_size=4, moe_expert_parallel_size=6, **EXPERTS | {"moe_num_experts": 12})
    ),
    "tp2 x dp2, compiled": Layout(2, 0, 2, *zero(1, compile_layers=True)),
    "tp2 x pp2, compiled, sequence parallel": Layout(2, 2, 1, *zero(1, compile_layers=True, **SEQUENCE)),
    "dp8, LoRA": Layout(1, 0, 8, *zero(1, **{"lora.rank": 4})),
}


def logs(seen: dict[int, Seen]) -> dict[int, list[Collective]]:
    return {rank: [*each.start, *each.step] for rank, each in seen.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_nobody_waits_forever(name: str) -> None:
    layout = LAYOUTS[name]
    seen = run(layout, layout.some_ranks())
    assert all(each.step for each in seen.values())
    assert stuck(logs(seen)) == {}
    assert any(call.operator == "all_reduce_" for call in seen[0].step) == (name == "tp2 x dp2, compiled")
    assert any(call.operator == "reduce_scatter_tensor" for call in seen[0].step) == ("compiled, sequence" in name)
    # That of all ranks and of three axes, two of experts and of positions; in a pipeline a second set of DeepSpeed's.
    most = 10 if layout.pipe else 4 + 2 * ("experts" in name) + 2 * ("positions" in name)
    assert max(each.groups for each in seen.values()) <= most


@pytest.mark.parametrize("planted", [0, 5])
def test_one_more_collective_on_one_rank_is_found(planted: int) -> None:
    layout = Layout(2, 2, 2, *zero(1))
    seen = run(layout, layout.some_ranks(), planted)
    extra = Collective("allreduce", tuple(sorted({planted, planted ^ 2})), None, ((torch.float32, 1),))
    assert stuck(logs(seen))[planted] == extra


def test_a_message_that_is_not_received_is_found() -> None:
    layout = Layout(1, 2, 1)
    found = logs(run(layout, [0, 1]))
    assert stuck(found) == {}
    message = next(each for each in found[1] if each.operator == "recv")
    found[1].remove(message)
    assert set(stuck(found)) == {0, 1}
    later = logs(run(layout, [0, 1]))
    place = next(place for place, each in enumerate(later[0]) if each.operator == "send")
    later[0][place] = later[0][place]._replace(tensors=((torch.float16, 1),))
    assert stuck(later)[0].tensors == ((torch.float16, 1),)


def real(layout: Layout) -> Seen:
    seen = start_and_step(layout)
    mesh.destroy_groups()
    return seen


@pytest.mark.parametrize(
    "layout",
    [Layout(2, 2, 1, *zero(1)), Layout(1, 2, 2), Layout(2, 0, 2, *zero(2)), Layout(1, 0, 4, *zero(3))],
    ids=["tp2 x pp2", "pp2 x dp2", "tp2 x dp2", "dp4, ZeRO-3"],
)
def test_a_rank_alone_calls_what_it_calls_among_others(layout: Layout) -> None:
    """Without sequence parallelism, which reduces in another way over gloo."""
    alone, among = run(layout, range(4)), run_ranks(real, 4, layout)
    for rank, seen in enumerate(among):
        assert (alone[rank].start, alone[rank].step) == (seen.start, seen.step)
