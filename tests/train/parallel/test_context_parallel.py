"""Ranks that divide the positions of a sequence: the same losses and gradients as one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.stages import pipeline_stages
from neoxargs.plan.time.communication import context_messages, router_messages
from neoxargs.train.coord_check import save_base_shapes
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.generation.logprobs import Scorer
from neoxargs.train.generation.paused import paused
from neoxargs.train.losses.added_losses import AddedLosses
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.experts import layer as experts
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Ranks, Weights
from neoxargs.train.process import mesh
from tests.support.experts import BY_FOUR, BY_TWO
from tests.support.layouts import BF16, DOCUMENTS, PIPE, RECOMPUTE, RPE, SHARDS, SPARSE, TENSOR, TWO_STAGES, zero
from tests.support.planted import FAULTS
from tests.support.ranks import run_ranks
from tests.support.small_gpt import VOCABULARY, batch, randomised, small
from tests.support.trials import Losses, Trial, curves, resumed, saved_after_three, staged, started, train

ByName = dict[str, Tensor]
RWKV = {"dim_att": 32, "head_size": 8, "ffn_dim": 96}
KINDS: dict[str, dict[str, Any]] = {
    "causal": {"pos_emb": "rotary"},
    "learned": {},
    "waves": {"pos_emb": "sinusoidal"},
    "window": {"pos_emb": "rotary", "sliding_window_width": 5},
    "documents": {"pos_emb": "rotary", **DOCUMENTS},
    "learned documents": DOCUMENTS,
    "bounded": {"pos_emb": "rotary", "attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0},
    "alibi": {"pos_emb": "alibi"},
    "rpe": RPE,
    "grouped": {"pos_emb": "rotary", "num_kv_heads": 2},
    "grouped documents": {"pos_emb": "rotary", "num_kv_heads": 2, **DOCUMENTS},
    "one key": {"pos_emb": "rotary", "num_kv_heads": 1},
    "bigbird": {"attention_config": ["global", "bigbird"], "sparsity_config": SPARSE},
    "normed": {"use_qk_layernorm": True, "pos_emb": "rotary", "num_kv_heads": 2},
    "normed over all heads": {
        "use_qk_layernorm": True, "qk_layernorm_scope": "all_heads", "norm": "rmsnorm", "num_kv_heads": 2,
    },
    "z loss": {"z_loss": 0.1},
    "side by side": {"gpt_j_residual": True, "pos_emb": "rotary"},
}  # fmt: skip
MOE: dict[str, Any] = {
    "moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk", "moe_aux_loss_coeff": 0.5, "moe_z_loss_coeff": 0.1,
}  # fmt: skip
#: With experts, which context parallel ranks choose, balance and fill together.
EXPERTS: dict[str, dict[str, Any]] = {
    "experts": MOE | {"moe_normalize_expert_weights": True, "moe_num_shared_experts": 1},
    "sinkhorn": MOE | {"moe_top_k": 1, "moe_router_type": "sinkhorn", "moe_expert_interval": 2},
    "capacity": MOE | {"moe_token_dropping": True, "moe_min_capacity": 1, "moe_train_capacity_factor": 0.75},
    "capacity beside a network": MOE
    | {"moe_token_dropping": True, "moe_min_capacity": 1, "moe_type": "deepspeed", "gpt_j_residual": True},
}
#: Compared in double precision: in fp32, rounding changes their gradients by up to 5e-5.
STATES: dict[str, dict[str, Any]] = {
    "mamba": {"attention_config": ["mamba", "global"], "mamba_inner_size": 48, "pos_emb": "rotary", **DOCUMENTS},
    "rwkv": {"attention_config": ["rwkv", "global"], **RWKV, **DOCUMENTS},
    "no attention": {"attention_config": ["rwkv", "mamba"], "mamba_inner_size": 48, **RWKV, "pos_emb": "none"},
}
STYLES = ("all_to_all", "ring", "hybrid")
#: Those that a ring computes.
ROUND = {name: config for name, config in KINDS.items() if name not in ("rpe", "bigbird")}
SCALING = {"pos_emb": "rotary", "rope_scaling.original_max_position_embeddings": 6}
#: Positions scaled by the length of the sequence, or of a document: some have at most six tokens, some have more.
SCALED: dict[str, dict[str, Any]] = {
    f"{kind}{name}": SCALING | {f"rope_scaling.{key}": value for key, value in settings.items()} | documents
    for name, documents in (("", {}), (" documents", DOCUMENTS))
    for kind, settings in (
        ("yarn", {"rope_type": "yarn", "factor": 4.0}),
        ("dynamic", {"rope_type": "dynamic", "factor": 4.0}),
        ("longrope", {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]}),
    )
}
CP2, CP4 = (
    {"context_parallel_size": 2, "context_parallel_style": "all_to_all"},
    {"context_parallel_size": 4, "context_parallel_style": "all_to_all"},
)
RING, HYBRID = {"context_parallel_style": "ring"}, {"context_parallel_style": "hybrid"}
PROMPT = {"soft_prompt_tuning.enabled": True, "soft_prompt_tuning.num_tokens": 5}


def unevenly(labels_BS: Tensor) -> Tensor:
    """Labels of which the first positions count least: of the first four, none."""
    positions = torch.arange(labels_BS.shape[1])
    return labels_BS.masked_fill((positions < 4) | ((positions < 10) & (positions % 2 == 0)), IGNORED)


def ranks_of(style: str) -> Ranks:
    """All ranks, which divide sequences; with `hybrid`, two exchange heads, whatever the model."""
    sizes = {"context_parallel_size": dist.get_world_size(), "context_parallel_style": style, "num_kv_heads": 2}
    return Ranks.of(mesh.build_mesh(small(**sizes)))


def gradients(config: dict[str, Any], ranks: Ranks, micro_batch: MicroBatch) -> tuple[float, ByName]:
    torch.manual_seed(3)
    given = small(**config)
    shared = Shared(losses=AddedLosses(experts.terms(given)))
    model = randomised(GPT(given, VOCABULARY, Weights(ranks=ranks), shared))
    loss = model(**vars(micro_batch))
    loss.backward()
    terms = shared.losses.means.over_ranks(mesh.Mesh(), torch.device("cpu"))
    found = {name: weight.grad for name, weight in named_weights(model).items()}
    return loss.item(), found | {name: torch.tensor(value) for name, value in terms.items()}


def averaged(loss: float, found: ByName) -> tuple[float, ByName]:
    """Means over all ranks, as DeepSpeed makes them."""
    for gradient in found.values():
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    mean = torch.tensor(loss, dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size(), found


def largest_difference(one: tuple[float, ByName], other: tuple[float, ByName]) -> float:
    """Of the losses, of what layers add to them, and of each gradient, relative to its norm."""
    assert one[1].keys() == other[1].keys()
    apart = [float((one[1][name] - x).norm() / x.norm().clamp(min=1e-3)) for name, x in other[1].items()]
    return max(abs(one[0] - other[0]) / abs(other[0]), *apart)


def both_ways(kinds: dict[str, dict[str, Any]], fault: str = "", style: str = "all_to_all") -> dict[str, float]:
    tokens, labels = batch(2)
    given = MicroBatch(tokens, unevenly(labels))
    alone = {name: gradients(config, Ranks(), given) for name, config in kinds.items()}
    if fault:
        FAULTS[fault]()
    ranks = ranks_of(style)
    here = {name: averaged(*gradients(kinds[name], ranks, given)) for name in kinds}
    return {name: largest_difference(here[name], alone[name]) for name in kinds}


def in_double_precision(kinds: dict[str, dict[str, Any]], style: str) -> dict[str, float]:
    torch.set_default_dtype(torch.float64)
    return both_ways(kinds, style=style)


def bound(kind: str) -> float:
    """The gradient of a bias of shares that sum to 1 is a small difference."""
    return 1e-5 if kind == "capacity beside a network" else 2e-6


@pytest.mark.shows("context-parallel-size")
def test_two_ranks_have_the_gradients_of_one() -> None:
    for rank in run_ranks(both_ways, 2, KINDS | EXPERTS | SCALED):
        assert {name: value for name, value in rank.items() if not value < bound(name)} == {}


@pytest.mark.slow
def test_four_ranks_have_the_gradients_of_one() -> None:
    for rank in run_ranks(both_ways, 4, KINDS | EXPERTS):
        assert {name: value for name, value in rank.items() if not value < bound(name)} == {}


@pytest.mark.parametrize(
    ("ranks", "style"), [(2, "ring"), *(pytest.param(4, each, marks=pytest.mark.slow) for each in ("ring", "hybrid"))]
)
@pytest.mark.shows("context_parallel_style")
def test_in_a_ring_ranks_have_the_gradients_of_one(ranks: int, style: str) -> None:
    """Sums of exponentials are divided in another order, so rounding differs by more than in `all_to_all`."""
    for rank in run_ranks(both_ways, ranks, ROUND | EXPERTS | SCALED | {"prompt": PROMPT}, "", style):
        assert {name: value for name, value in rank.items() if not value < 1.5e-5} == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "style"), [(2, "all_to_all"), (4, "all_to_all"), (2, "ring"), (4, "ring"), (4, "hybrid")]
)
def test_but_for_rounding_ranks_have_the_gradients_of_one(ranks: int, style: str) -> None:
    """In double precision. The loss itself is in fp32, which bounds how well gradients agree."""
    kinds = (KINDS if style == "all_to_all" else ROUND) | EXPERTS | SCALED
    for rank in run_ranks(in_double_precision, ranks, kinds, style):
        assert {name: value for name, value in rank.items() if not value < 1e-6} == {}


def of_states() -> list[dict[str, float]]:
    return [in_double_precision(STATES, style) for style in STYLES]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_states_pass_between_layers_with_attention(ranks: int) -> None:
    """The loss itself is in fp32. On four ranks in a ring, chunks are shorter than what a convolution reads."""
    for rank in run_ranks(of_states, ranks):
        assert all(value < 1e-7 for style in rank for value in style.values()), rank


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "style", "ranks"),
    [
        ("positions_that_begin_in_each_shard", "learned", "ring", 2),
        ("positions_that_begin_in_each_shard", "prompt", "ring", 2),
        ("a_loss_averaged_per_shard", "causal", "ring", 2),
        ("documents_that_begin_in_each_shard", "documents", "ring", 2),
        ("documents_that_begin_in_each_shard", "documents", "hybrid", 4),
        ("lengths_of_a_shard", "dynamic", "ring", 2),
        ("lengths_of_a_shard", "longrope", "ring", 4),
        ("lengths_of_a_shard", "longrope documents", "ring", 2),
        ("lengths_of_a_shard", "dynamic documents", "hybrid", 4),
        ("parts_of_another_rank", "causal", "hybrid", 4),
        ("capacity_of_each_shard", "capacity", "hybrid", 4),
    ],
)
def test_a_fault_planted_in_a_ring_is_seen(fault: str, kind: str, style: str, ranks: int) -> None:
    given = (KINDS | EXPERTS | SCALED | {"prompt": PROMPT | {"pos_emb": "rotary"}})[kind]
    assert run_ranks(both_ways, ranks, {kind: given}, fault, style)[0][kind] > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("positions_that_begin_in_each_shard", "learned"),
        ("heads_of_another_rank", "alibi"),
        ("a_loss_averaged_per_shard", "causal"),
        ("no_gradient_from_other_shards", "causal"),
        ("documents_that_begin_in_each_shard", "documents"),
        ("router_losses_of_each_shard", "experts"),
        ("expert_statistics_of_each_shard", "sinkhorn"),
        ("experts_balanced_in_each_shard", "sinkhorn"),
        ("capacity_of_each_shard", "capacity"),
    ],
)
def test_a_planted_fault_is_seen(fault: str, kind: str) -> None:
    found = run_ranks(both_ways, 2, {kind: (KINDS | EXPERTS)[kind]}, fault)[0]
    assert found[kind] > 1e-3


def packed_and_not(style: str, kind: dict[str, Any]) -> float:
    """The largest difference between three documents in one sample, and each in a sample of its own."""
    lengths, size = (3, 7, 6), 16
    tokens, labels = batch(1)
    starts = torch.tensor([[sum(lengths[:i]) for i, length in enumerate(lengths) for _ in range(length)]])
    alone = tokens.new_zeros(3, size), labels.new_full((3, size), IGNORED)
    for row, length in enumerate(lengths):
        own = slice(sum(lengths[:row]), sum(lengths[: row + 1]))
        alone[0][row, :length], alone[1][row, :length] = tokens[0, own], labels[0, own]
    config = {"pos_emb": "rotary"} | kind | {"pack_impl": "best_fit"}
    here = averaged(*gradients(config, ranks_of(style), MicroBatch(tokens, labels, starts)))
    return largest_difference(here, gradients(config, Ranks(), MicroBatch(*alone)))


@pytest.mark.parametrize("style", ["all_to_all", pytest.param("hybrid", marks=pytest.mark.slow)])
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_packed_documents_are_as_far_apart_as_unpacked_ones(world: int, style: str) -> None:
    assert max(run_ranks(packed_and_not, world, style, {})) < (2e-6 if style == "all_to_all" else 1e-5)


def states_packed_and_not() -> float:
    torch.set_default_dtype(torch.float64)
    kinds = (STATES[kind] | {name: False for name in DOCUMENTS} for kind in ("mamba", "rwkv"))
    return max(packed_and_not(style, kind) for kind in kinds for style in STYLES)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_states_do_not_pass_between_packed_documents(world: int) -> None:
    assert max(run_ranks(states_packed_and_not, world)) < 1e-7


@contextmanager
def sent() -> Iterator[list[int]]:
    """Collect the bytes of what is exchanged, and of what is gathered on each rank."""
    sizes: list[int] = []
    really = dist.all_to_all_single

    def counted(arrived: Tensor, pieces: Tensor, *arguments: Any, **options: Any) -> Any:
        sizes.append(pieces.numel() * pieces.element_size())
        return really(arrived, pieces, *arguments, **options)

    def counted_sends(operations: Any) -> Any:
        sizes.extend(each.tensor.nbytes for each in operations if each.op is dist.isend)
        return send(operations)

    def counted_sum(x: Tensor, *arguments: Any, **options: Any) -> Any:
        # Not those that wait at once: the sums of gradients.
        sizes.extend([x.nbytes] if options.get("async_op") else [])
        return add(x, *arguments, **options)

    def counted_gather(shards: list[Tensor], *arguments: Any, **options: Any) -> Any:
        sizes.append(sum(x.nbytes for x in shards))
        return gather(shards, *arguments, **options)

    send, add, gather = dist.batch_isend_irecv, dist.all_reduce, dist.all_gather
    counting = {
        "all_to_all_single": counted, "batch_isend_irecv": counted_sends, "all_gather": counted_gather,
        "all_reduce": counted_sum,
    }  # fmt: skip
    with patch.multiple(dist, **counting):
        yield sizes


def exchanged(config: dict[str, Any], style: str) -> list[int]:
    tokens, labels = batch(2)
    with sent() as sizes:
        gradients(config, ranks_of(style), MicroBatch(tokens, labels))
    return sizes


@pytest.mark.parametrize(
    ("style", "kind", "ranks"),
    [
        *((style, kind, 2) for style in ("all_to_all", "ring") for kind in ("causal", "one key")),
        ("ring", "sinkhorn", 2),
        ("all_to_all", "capacity", 2),
        *(pytest.param(style, kind, 2, marks=pytest.mark.slow) for style in ("all_to_all", "ring") for kind in STATES),
        pytest.param("hybrid", "grouped", 4, marks=pytest.mark.slow),
    ],
)
def test_the_messages_are_those_of_the_plan(style: str, kind: str, ranks: int) -> None:
    given = (KINDS | EXPERTS | STATES)[kind]
    config = small(
        **given, context_parallel_size=ranks, context_parallel_style=style, world_size=ranks,
        train_micro_batch_size_per_gpu=2, precision="fp32", gradient_accumulation_steps=1,
    )  # fmt: skip
    (stage,) = pipeline_stages(config, VOCABULARY.padded)
    sizes_of = ActivationSizes(config)
    planned = sum((*context_messages(sizes_of, stage), router_messages(sizes_of, stage)), Counter())
    for sizes in run_ranks(exchanged, ranks, given, style):
        assert sorted(sizes) == sorted(size for (_, size), count in planned.items() for _ in range(count))


# -- engines ----------------------------------------------------------------------------------------------------------

STEPS = 2  # the loss of the second depends on the gradients of the first, and that of the validation on those of both
LORA = {"lora.rank": 4}
OTHERS = {
    "by token": {"loss_average": "tokens"},
    "recomputed": RECOMPUTE,
    "selective": {"checkpoint_activations": "selective", "pos_emb": "rotary", "norm": "rmsnorm"},
    "lamb": {"optimizer.type": "Lamb"},
    "LoRA": LORA,
    "prompt": PROMPT,
    "watched": {"on_spike": "skip", "log_grad_norm": True},
}


#: Ranks -> the layouts of each kind with experts.
BY_EXPERT: dict[int, dict[str, dict[str, Any]]] = {
    1: {"alone": {}},
    2: {"cp2, ring": CP2 | RING, "cp2, ep2": CP2 | BY_TWO},
    4: {
        "cp4, ep2, ring": CP4 | BY_TWO | RING,
        "cp2 x tp2, shards": CP2 | SHARDS,
        "cp2 x pp2, ep2, recomputed": CP2 | TWO_STAGES | BY_TWO | RECOMPUTE,
    },
}
#: Kinds that are trained on every layout; others with two ranks, and with tensor parallelism outside of a ring.
EVERYWHERE = ("causal", "window", "documents", "bounded", "alibi", "grouped")
#: Ranks -> the layouts of each kind.
LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"alone": {}},
    2: {"cp2": CP2, "cp2, ring": CP2 | RING},
    4: {
        name: layout | style
        for name_of_style, style in (("", {}), (", ring", RING))
        for name, layout in (
            (f"cp4{name_of_style}", CP4),
            (f"cp2 x tp2{name_of_style}", CP2 | TENSOR),
            (f"cp2 x pp2{name_of_style}", CP2 | TWO_STAGES),
        )
    },
}


WHOLE = {"pipeline": {"pipe_partitioned": False, "grad_partitioned": False}}


def with_states(world: int) -> dict[str, Trial]:
    """Trials of recurrent layers; those of RWKV have no tensor parallel ranks."""
    mamba, rwkv, neither = STATES.values()
    ring, selective = CP2 | RING, {"checkpoint_activations": "selective"}
    if world == 1:
        return {f"{kind}, alone": Trial(config) for kind, config in STATES.items()}
    if world == 2:
        return {f"{kind}, cp2": Trial(config | CP2) for kind, config in STATES.items()} | {
            "mamba, cp2, ring, recomputed": Trial(mamba | ring | RECOMPUTE),
            "rwkv, cp2, ring, selective": Trial(rwkv | ring | selective),
        }
    return {
        "mamba, cp4, hybrid": Trial(mamba | CP4 | HYBRID),
        "rwkv, cp4, ring": Trial(rwkv | CP4 | RING),
        "mamba, cp2 x tp2": Trial(mamba | CP2 | TENSOR),
        "mamba, cp2 x tp2, ring, shards": Trial(mamba | ring | SHARDS, WHOLE),
        "mamba, cp2 x pp2": Trial(mamba | CP2 | TWO_STAGES),
        "mamba, cp2 x dp2, ring, ZeRO-1": staged(1, mamba | ring),
        "mamba, cp2 x dp2, ZeRO-3": staged(3, mamba | CP2),
        "no attention, cp4": Trial(neither | CP4),
        "rwkv, cp2 x pp2, ring": Trial(rwkv | ring | TWO_STAGES),
        "rwkv, cp2 x dp2, ZeRO-1": staged(1, rwkv | CP2),
        "rwkv, cp2 x dp2, ring, ZeRO-3": staged(3, rwkv | ring),
        "no attention, cp2 x dp2, ZeRO-3, recomputed": staged(3, neither | CP2 | RECOMPUTE),
    }


def trials(world: int, base: str) -> dict[str, Trial]:
    """base: a file of base shapes for muP."""
    found = {
        f"{kind}, {name}": Trial(config | layout)
        for kind, config in (KINDS | OTHERS).items()
        for name, layout in LAYOUTS[world].items()
        if not ("ring" in name and kind in ("rpe", "bigbird"))
        and not ("tp2" in name and kind == "one key")
        and (kind in EVERYWHERE or not ("cp4" in name or (kind in KINDS and ("pp2" in name or "tp2, ring" in name))))
    }
    wide = {"hidden_size": 64, "intermediate_size": 384, "use_mup": True, "base_shapes_file": base}
    found |= {f"muP, {name}": Trial(wide | layout) for name, layout in LAYOUTS[world].items() if "cp4" not in name}
    for kind in EXPERTS if world < 4 else ("experts",):
        found |= {f"{kind}, {name}": Trial(EXPERTS[kind] | layout) for name, layout in BY_EXPERT[world].items()}
    found |= with_states(world)
    if world == 1:
        found["bf16, alone"] = Trial({}, BF16)
    if world == 2:
        found["learned, cp2, pipeline"] = Trial(CP2 | PIPE)
        found["learned, cp2, ZeRO-2"] = staged(2, CP2)
        found["bf16, cp2, buckets"] = Trial(CP2, BF16)
    if world == 4:
        for stage, layout in {1: BY_TWO | CP2, 3: CP2 | RING}.items():
            found[f"experts, cp2 x dp2, ZeRO-{stage}"] = staged(stage, EXPERTS["experts"] | layout)
            found[f"muP, cp2 x dp2, ZeRO-{stage}"] = staged(stage, wide | CP2)
        found["experts, cp2 x dp2, ep4, ZeRO-2"] = staged(2, EXPERTS["experts"] | CP2 | BY_FOUR)
        for kind in EVERYWHERE:
            found[f"{kind}, cp2 x dp2, ZeRO-1"] = staged(1, KINDS[kind] | CP2)
            found[f"{kind}, cp2 x dp2, ZeRO-3"] = staged(3, KINDS[kind] | CP2)
            found[f"{kind}, cp2 x tp2, shards"] = Trial(KINDS[kind] | CP2 | SHARDS, WHOLE)
            found[f"{kind}, cp2 x dp2, ZeRO-1, ring"] = staged(1, KINDS[kind] | CP2 | RING)
            found[f"{kind}, cp2 x dp2, ZeRO-3, ring"] = staged(3, KINDS[kind] | CP2 | RING)
            found[f"{kind}, cp2 x tp2, shards, ring"] = Trial(KINDS[kind] | CP2 | RING | SHARDS, WHOLE)
        for kind in ("grouped", "grouped documents"):
            found[f"{kind}, cp4, hybrid"] = Trial(KINDS[kind] | CP4 | HYBRID)
        found["learned, cp2 x dp2"] = Trial(CP2)
        found["learned, cp2 x dp2, pipeline, ZeRO-1"] = Trial(CP2 | PIPE, zero(1))
        found["by token, cp2 x dp2"] = Trial(OTHERS["by token"] | CP2)
        found["recomputed, cp2 x pp2, shared"] = Trial(RECOMPUTE | CP2 | TENSOR | {"partition_activations": True})
        found["bf16, cp2 x dp2, buckets"] = Trial(CP2, BF16)
        found["bf16, cp2 x dp2, ZeRO-3"] = staged(3, CP2, **BF16)
    return found


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Losses]:
    base = str(tmp_path_factory.mktemp("mup") / "base.yml")
    save_base_shapes(small(base_shapes_file=base))
    return curves({world: trials(world, base) for world in (1, 2, 4)}, STEPS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_is_the_same_on_every_layout(losses: dict[str, Losses]) -> None:
    """Adam divides by the root of squared gradients, which multiplies what rounding changes of small ones."""
    for name, here in losses.items():
        alone = losses[f"{name.split(', ')[0]}, alone"]
        half = name.startswith("bf16")
        assert here.train[0] == pytest.approx(alone.train[0], rel=1e-3 if half else 1e-6), name
        assert here.norms[0] == pytest.approx(alone.norms[0], rel=1e-2 if half else 2e-6), name
        assert here.train == pytest.approx(alone.train, rel=5e-3 if half else 5e-6), name
        assert here.norms == pytest.approx(alone.norms, rel=3e-2 if half else 3e-5), name
        assert here.held_out == pytest.approx(alone.held_out, rel=5e-3 if half else 5e-6), name


def unsummed() -> list[float | None]:
    """Losses and gradient norms of two steps in which ranks keep their own gradients."""
    FAULTS["no_sum_over_replicas"]()
    _, training = next(started({"": Trial(CP2)}))
    results = [training.engine.train_step(training.batches) for _ in range(2)]
    return [value for result in results for value in (result.loss, result.grad_norm)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_missing_sum_over_context_ranks_is_seen(losses: dict[str, Losses]) -> None:
    first, norm, second, _ = run_ranks(unsummed, 2)[0]
    alone = losses["learned, alone"]
    assert first == pytest.approx(alone.train[0], rel=1e-6)
    assert norm != pytest.approx(alone.norms[0], rel=1e-2)
    assert second != pytest.approx(alone.train[1], rel=1e-4)


MASKED = {
    1: {"alone": Trial(), "alone, by token": Trial({"loss_average": "tokens"}), "alone, cut": Trial()},
    2: {"cp2": Trial(CP2), "cp2, by token": Trial(CP2 | {"loss_average": "tokens"}), "cp2, cut": Trial(CP2)},
    4: {"cp2 x pp2, by token": Trial(CP2 | TWO_STAGES | {"loss_average": "tokens"})},
}  # fmt: skip


def masked(trials: dict[str, Trial]) -> dict[str, list[float | None]]:
    found = {}
    for name, training in started(trials):
        batches = training.micro_batches(0)
        uneven = None if batches is None else (replace(each, labels=unevenly(each.labels)) for each in batches)
        length = 8 if "cut" in name else None
        results = [training.engine.train_step(uneven, length=length) for _ in range(3)]
        found[name] = [value for result in results for value in (result.loss, result.grad_norm)]
    return found


@pytest.mark.slow
def test_masked_labels_and_shorter_sequences() -> None:
    found = {name: curve for world in MASKED for name, curve in run_ranks(masked, world, MASKED[world])[0].items()}
    for name, curve in found.items():
        kind = name.partition(", ")[2]
        assert curve == pytest.approx(found[f"alone, {kind}" if kind else "alone"], rel=5e-6), name


def scored(trials: dict[str, Trial]) -> dict[str, list[float]]:
    """The log-probability of each label of a micro batch, in training."""
    found = {}
    for name, training in started(trials):
        tokens, labels = batch(2)
        scorer = Scorer(training.engine, training.mesh, 2)
        with paused(training.engine):
            scores = scorer.run(iter([MicroBatch(tokens, unevenly(labels))]), 1)
        found[name] = [x for each in scores for x in each.logs.flatten().tolist()]
    return found


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_log_probabilities_of_labels(world: int) -> None:
    trials = {"cp": Trial(CP2), "ring": Trial(CP2 | RING), "shards": Trial(SHARDS)}
    if world == 4:
        trials = {"cp x tp, shards": Trial(CP2 | SHARDS), "cp x pp": Trial(CP2 | TWO_STAGES)}
        trials |= {"grouped, hybrid": Trial(KINDS["grouped"] | CP4 | HYBRID)}
    alone = run_ranks(scored, 1, {"": Trial(), "grouped": Trial(KINDS["grouped"])})[0]
    ranks = run_ranks(scored, world, trials)
    for name in trials:
        reported = [rank[name] for rank in ranks if rank[name]]
        assert len(reported) == 1
        assert reported[0] == pytest.approx(alone["grouped" if "grouped" in name else ""], abs=2e-6), name


DROPOUT = {"hidden_dropout": 0.5, "attention_dropout": 0.5, "attn_logit_softcapping": 9.0, "moe_jitter_eps": 0.1, **MOE}
IN_RING = {"attention_dropout": 0.0, **RING}
RECOMPUTED: dict[str, dict[str, Any]] = {
    "kept": {},
    "each layer": RECOMPUTE,
    "two layers": RECOMPUTE | {"checkpoint_num_layers": 2},
    "selective": {"checkpoint_activations": "selective"},
    "deepspeed": RECOMPUTE | {"deepspeed_activation_checkpointing": True},
    "partitioned": RECOMPUTE | {"partition_activations": True},
    "contiguous": RECOMPUTE | {"partition_activations": True, "contiguous_checkpointing": True},
    "in main memory": RECOMPUTE | {"checkpoint_in_cpu": True},
    "profiled": RECOMPUTE | {"profile_backward": True},
}


def masks(trials: dict[str, Trial], fault: str = "") -> dict[str, list[Tensor]]:
    """What this rank draws in a forward pass: masks of hidden states, of scores, and factors of the routers' input."""
    if fault:
        FAULTS[fault]()
    found: dict[str, list[Tensor]] = {}
    dropout, uniform = F.dropout, Tensor.uniform_
    for name, training in started(trials):
        drawn = found.setdefault(name, [])

        def masked(x: Tensor, *arguments: Any, drawn: list[Tensor] = drawn) -> Tensor:
            y = dropout(x, *arguments)
            drawn.append(y != 0)
            return y

        def factors(x: Tensor, *bounds: float, drawn: list[Tensor] = drawn) -> Tensor:
            drawn.append(uniform(x, *bounds).clone())
            return x

        tokens, labels = batch(2)
        with patch.object(F, "dropout", masked), patch.object(Tensor, "uniform_", factors), torch.no_grad():
            training.engine.deepspeed.module.train()(tokens, labels)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "the_same_dropout_in_all_shards"])
def test_ranks_with_other_positions_draw_other_numbers(fault: str) -> None:
    """And ranks with the same ones the same numbers. Ranks are numbered: tensor, then context."""
    layouts = {"": CP2 | TENSOR, "ring": CP2 | TENSOR | IN_RING, "shards": CP2 | SHARDS}
    ranks = run_ranks(masks, 4, {name: Trial(DROPOUT | layout) for name, layout in layouts.items()}, fault)
    for name in layouts:
        for drawn in zip(*(rank[name] for rank in ranks), strict=True):
            alike = {(i, j) for i, j in combinations(range(4), 2) if torch.equal(drawn[i], drawn[j])}
            of_scores = drawn[0].ndim == 4
            if fault:
                assert alike, name  # as many as possible
            else:
                assert alike == (set() if of_scores or name == "shards" else {(0, 1), (2, 3)}), name
        assert {each.ndim for each in ranks[0][name]} == ({3} if name == "ring" else {3, 4})


def recomputed(trials: dict[str, Trial], fault: str = "") -> dict[str, Losses]:
    if fault:
        FAULTS[fault]()
    return train(trials, 2)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "other_numbers_when_recomputed"])
def test_recomputation_draws_the_same_numbers(fault: str) -> None:
    layouts = {"": CP2 | TENSOR, "ring, ": CP2 | TENSOR | IN_RING}
    # torch itself sees that tokens go to other experts.
    names, config = (("kept", "each layer"), DROPOUT | {"moe_num_experts": 1}) if fault else (RECOMPUTED, DROPOUT)
    trials = {
        f"{style}{name}": Trial(config | layouts[style] | RECOMPUTED[name]) for style in layouts for name in names
    }
    found = run_ranks(recomputed, 4, trials, fault)[0]
    for name, losses in found.items():
        kept = found["ring, kept" if name.startswith("ring") else "kept"]
        same = losses.train == pytest.approx(kept.train, rel=1e-6) and losses.norms == pytest.approx(
            kept.norms, rel=1e-5
        )
        assert same == (not fault or name.endswith("kept")), name


GROUPED = KINDS["grouped"]
RESUMED = {
    1: {"alone": Trial(GROUPED)},
    2: {
        "cp2": Trial(GROUPED | CP2),
        "cp2, ring": Trial(GROUPED | CP2 | RING),
        "tp2": Trial(GROUPED | TENSOR),
        "dp2": Trial(GROUPED),
        "cp2, ZeRO-3": staged(3, GROUPED | CP2),
    },
    4: {
        "cp4": Trial(GROUPED | CP4),
        "cp4, hybrid": Trial(GROUPED | CP4 | HYBRID),
        "cp2 x pp2": Trial(GROUPED | CP2 | TWO_STAGES),
        "cp2 x dp2, ZeRO-1": staged(1, GROUPED | CP2),
    },
}
#: Of a run with experts that context parallel ranks divide.
RESUMED_EXPERTS = {
    1: {"alone": Trial(MOE)},
    4: {"cp2 x dp2, ep4, ring": staged(1, MOE | CP2 | RING | BY_FOUR), "cp4": Trial(MOE | CP4)},
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("config", "layouts"), [(GROUPED, RESUMED), (MOE | BY_TWO, RESUMED_EXPERTS)])
def test_a_checkpoint_is_independent_of_the_axis(
    tmp_path: Path, config: dict[str, Any], layouts: dict[int, dict[str, Trial]]
) -> None:
    unbroken = run_ranks(saved_after_three, 2, staged(1, config | CP2), str(tmp_path))[0]
    for world, trials in layouts.items():
        for name, curve in run_ranks(resumed, world, trials, str(tmp_path))[0].items():
            assert curve == pytest.approx(unbroken, rel=5e-6), name
