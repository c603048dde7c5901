"""bf16: sums of gradients in fp32 stay fp32 when they are reduced over data parallel ranks, on every path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from neoxargs.train.deepspeed.optimizer_view import Holdings, before_step
from tests.support.layouts import PIPE
from tests.support.ranks import run_ranks
from tests.support.trials import Trial, started

#: Elements of the smallest weight matrix of a trial; collectives of less are norms and flags.
MATRIX = 32 * 32


def bf16(stage: int = 0, zero: dict[str, Any] | None = None, **config: Any) -> Trial:
    json: dict[str, Any] = {"bf16": {"enabled": True}}
    if stage:
        json["zero_optimization"] = {"stage": stage} | (zero or {})
    return Trial({"zero_optimization.stage": stage, **config}, json)


def chosen(trial: Trial, **json: Any) -> Trial:
    return Trial(trial.config, trial.deepspeed | json)


EXPERTS = {"moe_num_experts": 4, "moe_expert_parallel_size": 2, "expert_interval": 1}
IN_FP32 = {
    "plain": bf16(),
    "pipeline": bf16(**PIPE),
    "ZeRO-1": bf16(1),
    "ZeRO-1, pipeline": bf16(1, **PIPE),
    "ZeRO-2": bf16(2),
    "ZeRO-2, overlap": bf16(2, {"overlap_comm": True}),
    "ZeRO-2, all-reduce": bf16(2, {"reduce_scatter": False}),
    "ZeRO-2, small buckets": bf16(2, {"reduce_bucket_size": 2000}),
    "ZeRO-2, not contiguous": bf16(2, {"contiguous_gradients": False}),
    "ZeRO-3": bf16(3),
    "ZeRO-3, all-reduce": bf16(3, {"reduce_scatter": False}),
    "LoRA": bf16(**{"lora.rank": 4}),
    "an optimizer that DeepSpeed builds": chosen(
        bf16(**{"optimizer.type": "RMSprop"}), optimizer={"type": "RMSprop", "params": {"lr": 1e-2}}
    ),
    "immediate": chosen(bf16(), bf16={"enabled": True, "immediate_grad_update": True}),
}
IN_BF16 = {
    "chosen": chosen(bf16(), communication_data_type="bf16"),
    "chosen, ZeRO-2": chosen(bf16(2), communication_data_type="bf16"),
    "chosen, ZeRO-3": chosen(bf16(3), communication_data_type="bf16"),
    "sums in bf16": chosen(bf16(), data_types={"grad_accum_dtype": "bf16"}),
}


class Seen(NamedTuple):
    """What one rank of a trial sent, and the gradients before the step."""

    sent: set[torch.dtype]
    gradients: dict[str, torch.Tensor]


def reduced(trials: dict[str, Trial]) -> dict[str, Seen]:
    """Return of each trial the types of the reduced gradients, and this rank's shards of the means."""
    found = {}
    for name, built in started(trials):
        holdings = Holdings(built.engine.deepspeed, built.mesh)
        gradients: dict[str, torch.Tensor] = {}
        before_step(
            built.engine.deepspeed,
            lambda holdings=holdings, gradients=gradients: gradients.update(
                {name: x.detach().clone() for name, x in holdings.gradients().items()}
            ),
        )
        with _listening() as sent:
            built.engine.train_step(built.batches)
        found[name] = Seen(sent, gradients)
    return found


@contextmanager
def _listening() -> Iterator[set[torch.dtype]]:
    """Record the type of every tensor that is reduced and could be a gradient."""
    from deepspeed import comm
    from deepspeed.runtime.comm import coalesced_collectives

    sent: set[torch.dtype] = set()

    def recording(inner: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            # Of a reduce-scatter, the output comes first and has the same type.
            tensor = next(x for x in (*arguments, *keywords.values()) if torch.is_tensor(x))
            if tensor.numel() >= MATRIX // 2:
                sent.add(tensor.dtype)
            return inner(*arguments, **keywords)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "reduce", "reduce_scatter_fn"):
            patch.setattr(comm, name, recording(getattr(comm, name)))
        name = "_torch_reduce_scatter_fn"
        patch.setattr(coalesced_collectives, name, recording(getattr(coalesced_collectives, name)))
        yield sent


@pytest.fixture(scope="module")
def by_two() -> list[dict[str, Seen]]:
    return run_ranks(reduced, 2, IN_FP32 | IN_BF16, timeout=500)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", IN_FP32)
def test_fp32_sums_are_reduced_in_fp32(by_two: list[dict[str, Seen]], name: str) -> None:
    seen = by_two[0][name]
    assert seen.sent == {torch.float32}
    # A mean of two sums that was rounded to bf16 anywhere has no bits below those of bf16.
    assert not all(torch.equal(x, x.bfloat16().to(x.dtype)) for x in seen.gradients.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_BF16)
def test_the_users_choice_of_the_type_is_kept(by_two: list[dict[str, Seen]], name: str) -> None:
    assert by_two[0][name].sent == {torch.bfloat16}
