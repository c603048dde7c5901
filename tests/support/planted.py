# mypy: disable-error-code="assignment, attr-defined, method-assign"
"""Runs trials with faults planted in the trainer: `python -m tests.support.planted PID`; PLANTED has their names."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neoxargs.processes.exit_at_once import exit_at_once
from neoxargs.train import local_ranks
from neoxargs.train.trials import main

#: The variable that names the faults.
VARIABLE = "PLANTED"


def another_optimizer() -> None:
    from neoxargs.train.optim import build

    build._BUILDERS["adam"] = build._BUILDERS["sgd"]


def swapped_betas() -> None:
    from neoxargs.train.optim import build, lion_sm3_madgrad

    def swapped(groups: Any, params: Any) -> Any:
        return lion_sm3_madgrad.Lion(groups, params.lr, params.betas[::-1])

    build._BUILDERS["lion"] = swapped


def one_rate_without_its_divisor() -> None:
    from neoxargs.train.model import mup

    divide = mup.divide_groups

    def divided(*arguments: Any) -> Any:
        groups = divide(*arguments)
        next(group for group in groups if group["width_mult"] != 1)["width_mult"] = 1.0
        return groups

    mup.divide_groups = divided


def no_clipping() -> None:
    from neoxargs.train.parallel import gradient_norm

    assert hasattr(gradient_norm, "clip_")
    gradient_norm.clip_ = lambda *_: None


def no_gradient_of_the_router_loss() -> None:
    from neoxargs.train.losses import added_losses

    backward = added_losses._Add.backward

    def without(ctx: Any, gradient: Tensor) -> Any:
        first, second, *rest = backward(ctx, gradient)
        assert second is not None
        return first, torch.zeros_like(second), *rest

    added_losses._Add.backward = staticmethod(without)


def router_losses_of_another_size() -> None:
    """The coefficient of the balance is doubled, and the z loss is halved."""
    from neoxargs.train.model.experts import layer

    original = layer.added_losses

    def changed(*arguments: Any) -> Any:
        terms = original(*arguments)
        balance, z = terms[layer.BALANCE], terms[layer.Z]
        halved = z._replace(value=z.value / 2)
        return {**terms, layer.BALANCE: balance._replace(weight=2 * balance.weight), layer.Z: halved}

    layer.added_losses = changed


def dropout_in_evaluation() -> None:
    from neoxargs.train.model.attention import SelfAttention

    attend: Any = SelfAttention._attend

    def attended(self: Any, *arguments: Any) -> Any:
        *others, _ = arguments
        return attend(self, *others, self.dropout)

    SelfAttention._attend = attended


def a_frozen_layer_moves() -> None:
    from neoxargs.train.engine import frozen

    original = frozen.freeze_all_but
    frozen.freeze_all_but = lambda is_trained, module: original(
        lambda name: is_trained(name) or "final_norm" in name, module
    )


def no_sum_over_replicas() -> None:
    from deepspeed.runtime.engine import DeepSpeedEngine

    DeepSpeedEngine.allreduce_gradients = lambda self, *rest, **names: None


def a_leaking_mask() -> None:
    from neoxargs.train.ops import sdpa

    plain = sdpa.F.scaled_dot_product_attention

    def leaking(*tensors: Any, **options: Any) -> Any:
        return plain(*tensors, **{**options, "is_causal": False})

    sdpa.F = type("F", (), {"scaled_dot_product_attention": staticmethod(leaking)})


def a_mask_that_leaks_one_token() -> None:
    from neoxargs.train.ops import sdpa

    plain = sdpa.F.scaled_dot_product_attention

    def leaking(query: Tensor, *others: Any, **options: Any) -> Any:
        seen = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).tril(1)
        return plain(query, *others[:2], seen, **{**options, "is_causal": False})

    sdpa.F = type("F", (), {"scaled_dot_product_attention": staticmethod(leaking)})


def small_faults() -> None:
    """Four faults of one run: the rate, the log, the mask of documents and what a resumed run restores."""
    from neoxargs.train.checkpoint.save_load import Checkpoints
    from neoxargs.train.model.attention import SelfAttention
    from neoxargs.train.optim.schedule import Schedule
    from neoxargs.train.track.console import Console

    shown, attend, move, load = Console.on_step, SelfAttention._attend, Schedule._move_to, Checkpoints._load_state

    def drawing(self: Any, step: Any) -> None:
        if step.iteration % self.interval == 0:
            torch.rand(1)
        shown(self, step)

    def without_documents(self: Any, query: Tensor, key: Tensor, value: Tensor, starts: Any, dropout: float) -> Any:
        return attend(self, query, key, value, None, dropout)

    def faster(self: Any, iteration: int) -> None:
        move(self, iteration)
        for group in self.optimizer.param_groups:
            group["lr"] *= 1.02

    def without_moments(self: Any, checkpoint: Any) -> Any:
        loaded = load(self, checkpoint)
        for state in self.engine.optimizer.state.values():
            state["exp_avg"].zero_()
        return loaded

    Console.on_step, SelfAttention._attend = drawing, without_documents
    Schedule._move_to, Checkpoints._load_state = faster, without_moments


def labels_are_the_tokens_themselves() -> None:
    from neoxargs.train.batches import loader

    original = loader.collate
    loader.collate = lambda samples: original([{**each, "labels": each["tokens"].clone()} for each in samples])


def a_wrong_backward_pass() -> None:
    from neoxargs.train.ops import rotary

    for each in vars(rotary).values():
        if isinstance(each, type) and issubclass(each, torch.autograd.Function):
            backward = each.backward
            each.backward = staticmethod(lambda ctx, *gradients, backward=backward: _halved(backward(ctx, *gradients)))


def positions_that_begin_in_each_shard() -> None:
    from neoxargs.train.model import embedding
    from neoxargs.train.parallel.positions import Positions

    def of_shard(_: Any, sequence: Any) -> Positions:
        return Positions(sequence=sequence)

    embedding.replace = of_shard


def heads_of_another_rank() -> None:
    from neoxargs.train.parallel.layers import Ranks
    from neoxargs.train.process.mesh import Axis

    right: Any = Ranks.heads.fget
    Ranks.heads = property(lambda self: Axis(right(self).size, (right(self).rank + 1) % right(self).size))


def a_loss_averaged_per_shard() -> None:
    from dataclasses import replace

    from neoxargs.train.losses.cross_entropy import Loss
    from neoxargs.train.parallel.positions import WHOLE

    right = Loss.__call__

    def averaged(self: Any, readout: Any, batch: Any) -> Tensor:
        own = replace(batch, labels=self.positions.of(batch.labels))
        return right(replace(self, positions=WHOLE), readout, own)

    Loss.__call__ = averaged


def no_gradient_from_other_shards() -> None:
    from neoxargs.train.model import attention

    right = attention.heads_to_positions

    def of_own_shard(x: Tensor, axis: Any) -> Tensor:
        y = right(x, axis)
        if y.requires_grad:
            is_own = torch.arange(axis.size).repeat_interleave(y.shape[1] // axis.size) == axis.rank
            y.register_hook(lambda gradient: gradient * is_own[:, None, None])
        return y

    attention.heads_to_positions = of_own_shard


def router_losses_of_each_shard() -> None:
    from neoxargs.train.model.experts import layer

    original = layer.added_losses
    layer.added_losses = lambda *arguments: original(*arguments[:3])


def expert_statistics_of_each_shard() -> None:
    from neoxargs.train.model.experts import layer

    original = layer.added_losses

    def changed(*arguments: Any) -> Any:
        return {**original(*arguments), layer.LOAD: original(*arguments[:3])[layer.LOAD]}

    layer.added_losses = changed


def experts_balanced_in_each_shard() -> None:
    from neoxargs.train.model.experts import layer

    original = layer.choose
    layer.choose = lambda *arguments: original(*arguments[:3])


def capacity_of_each_shard() -> None:
    from neoxargs.train.model.experts.layer import Experts
    from neoxargs.train.parallel.positions import WHOLE

    right: Any = Experts._within_capacity

    def within(self: Any, *arguments: Any) -> Any:
        own, self.positions = self.positions, WHOLE
        try:
            return right(self, *arguments)
        finally:
            self.positions = own

    Experts._within_capacity = within


def the_same_dropout_in_all_shards() -> None:
    from neoxargs.train.process import setup

    setup.seed_by_place = lambda seed, mesh: setup.set_seeds(seed, stream=mesh.pipe.rank)


def other_numbers_when_recomputed() -> None:
    from neoxargs.train.engine import recompute

    recompute.checkpoint = partial(recompute.checkpoint, preserve_rng_state=False)


def documents_that_begin_in_each_shard() -> None:
    from neoxargs.train.model import embedding

    right = embedding.document_starts

    def starts(tokens: Tensor, eod: int) -> Tensor:
        half = tokens.shape[1] // 2
        return torch.cat((right(tokens[:, :half], eod), right(tokens[:, half:], eod) + half), dim=1)

    embedding.document_starts = starts


def lengths_of_a_shard() -> None:
    """Frequencies follow the tokens of a rank, in place of those of the sequence or document."""
    import torch.distributed as dist

    from neoxargs.train.model import attention
    from neoxargs.train.model.rotary import Rotation

    angles, lengths, ranks = Rotation.angles, attention.document_lengths, dist.get_world_size()

    def of_shard(self: Rotation, seq: int, length: int, *others: Any) -> Any:
        return angles(self, seq, length // ranks, *others)

    def within_shards(starts_BS: Tensor) -> Tensor:
        pieces = enumerate(starts_BS.chunk(ranks, dim=1))
        return torch.cat([lengths((x - number * x.shape[1]).clamp(min=0)) for number, x in pieces], dim=1)

    Rotation.angles = of_shard
    attention.document_lengths = within_shards


def parts_of_another_rank() -> None:
    """Ranks that exchange heads in a ring of such ranks have each other's part of their chunks."""
    from dataclasses import replace

    from neoxargs.train.parallel.positions import Positions

    right: Any = Positions.of

    def of(self: Positions, x: Tensor) -> Tensor:
        other = self.context.rank ^ 1 if self.sharing > 1 else self.context.rank
        return right(replace(self, context=replace(self.context, rank=other)), x)  # type: ignore[no-any-return]

    Positions.of = of


def no_state_of_the_chunk_before() -> None:
    from neoxargs.train.ops import scan, wkv

    scan.carried = wkv.carried = lambda ends, decays, own: torch.zeros_like(ends)


def no_inputs_of_the_chunk_before() -> None:
    from neoxargs.train.model.blocks import mamba, rwkv

    mamba.inputs_before = rwkv.inputs_before = lambda x, count, own: x.new_zeros(len(x), count, *x.shape[2:])


def no_gradient_of_the_state_before() -> None:
    from neoxargs.train.parallel import carried

    right: Any = carried.apply

    def apply(function: Any, *inputs: Any) -> Any:
        first, *rest = inputs
        return right(function, first.detach() if function is carried._Carried else first, *rest)

    carried.apply = apply


def states_of_other_documents() -> None:
    """Tokens of a document that begins within a chunk read the state before that chunk."""
    from neoxargs.train.ops import scan, wkv

    of_scan, of_wkv = scan._effect, wkv._effect
    scan._effect = lambda resets, *tensors: of_scan(None, *tensors)
    wkv._effect = lambda fresh, *tensors: of_wkv(torch.zeros_like(fresh), *tensors)


def documents_that_go_on_across_borders() -> None:
    """A document that begins at the first token of a chunk reads the chunk before."""
    from neoxargs.train.model.blocks import mamba, rwkv

    right = rwkv.starts_in_rows

    def starts(starts_BS: Tensor, own: Any) -> Tensor:
        found = right(starts_BS, own)
        return found.masked_fill(found == 0, -1)

    mamba.starts_in_rows = rwkv.starts_in_rows = starts


def states_in_the_order_of_ranks() -> None:
    from neoxargs.train.parallel import carried
    from neoxargs.train.parallel.positions import Positions

    class Unordered(Positions):
        def in_order(self, x: Tensor) -> Tensor:
            return x

    right: Any = carried._of_all_chunks
    carried._of_all_chunks = lambda x, own: right(x, Unordered(own.context, own.sequence, own.ring))


def _halved(gradients: Any) -> Any:
    first, *rest = gradients
    return first * 0.5, *rest


FAULTS = {
    each.__name__: each
    for each in (
        another_optimizer, swapped_betas, one_rate_without_its_divisor, no_clipping, no_gradient_of_the_router_loss,
        router_losses_of_another_size, dropout_in_evaluation, a_frozen_layer_moves, no_sum_over_replicas,
        a_leaking_mask, a_mask_that_leaks_one_token, small_faults,
        labels_are_the_tokens_themselves, a_wrong_backward_pass,
        positions_that_begin_in_each_shard, heads_of_another_rank, a_loss_averaged_per_shard,
        no_gradient_from_other_shards, documents_that_begin_in_each_shard,
        lengths_of_a_shard, parts_of_another_rank,
        router_losses_of_each_shard, expert_statistics_of_each_shard, experts_balanced_in_each_shard,
        capacity_of_each_shard, the_same_dropout_in_all_shards, other_numbers_when_recomputed,
        no_state_of_the_chunk_before, no_inputs_of_the_chunk_before, no_gradient_of_the_state_before,
        states_of_other_documents, documents_that_go_on_across_borders, states_in_the_order_of_ranks,
    )
}  # fmt: skip


if __name__ == "__main__":
    once = local_ranks.import_once

    def imported(*arguments: Any) -> None:
        """Plant the faults after everything is imported, before the ranks are forked."""
        once(*arguments)
        for name in os.environ[VARIABLE].split():
            FAULTS[name]()

    main.import_once = imported
    exit_at_once(main.main())
