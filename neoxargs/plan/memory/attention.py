"""Bytes that attention stores for the backward pass: queries, keys and values, and scores where it is unfused."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from neoxargs.config.config import Config
from neoxargs.facts.attention import score_rule
from neoxargs.facts.attention_kernels import BIASED, Choice, Place, choices, score_bytes
from neoxargs.facts.batch import sequences_per_micro_batch
from neoxargs.facts.context import uses_ring
from neoxargs.facts.data import masks_documents
from neoxargs.facts.layer_kinds import attention_layers
from neoxargs.facts.model import head_norms
from neoxargs.plan.given.assumptions import SINGLE
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.norms import inside_head_norms


def alibi_number(sizes: ActivationSizes) -> int:
    """Bytes per number of ALiBi's bias on a GPU: none if flex_attention computes it from the positions."""
    config = sizes.config
    if attention_layers(config) and share_unfused(config):
        return SINGLE
    return 0 if _all_in_flex(config) else sizes.number_size


def attention(sizes: ActivationSizes, selective: bool) -> int:
    """Bytes that attention stores: output of the fused projection, and the attention output.

    Rotated queries and keys are in one new tensor with the values, and the projection's output is freed. Norms store
    this output; what they return, or its rotation, is new, as are grouped queries that are only copied. Where context
    parallel ranks exchange heads, the output projection stores what comes back from them. selective: all that is
    recomputed from the output.
    """
    config, tensor = sizes.config, sizes.tensor
    shape = config.shape
    queries, keys = sizes.queries, sizes.keys
    group = shape.num_attention_heads // shape.num_kv_heads  # queries per key
    stored = queries + 2 * keys + queries + (queries if sizes.other_heads > 1 else 0)
    rotary, normed = config.embedding.pos_emb == "rotary", bool(head_norms(config.norm))
    if not selective:
        stored += queries + keys if normed or (rotary and sizes.assumed.projection_kept) else 0
        stored += queries if group > 1 and not rotary and not normed else 0
    heads = shape.num_attention_heads // tensor
    stored += inside_head_norms(sizes, heads + heads // group, queries + keys if selective else 0)
    log_sum_exp = heads * sizes.tokens * SINGLE  # flash attention stores one per query and head
    return stored + log_sum_exp + _scores(sizes)


def backward_in_ring(sizes: ActivationSizes) -> int:
    """Bytes that attention in a ring needs in its backward pass besides what it stores (train/ops/ring.py).

    The gradients of its output and, in fp32, of the queries; keys and values of two ranks, of which one is on its way,
    and their gradients in fp32. While these are passed on, there are two of them; before, the output of a pair of
    chunks, its gradient in fp32, and the products of both, or all gradients of the pair.
    """
    if not uses_ring(sizes.config):
        return 0
    queries, keys, wide = sizes.queries, sizes.keys, SINGLE // sizes.number_size
    half = queries // 2  # the queries of one of the two chunks
    pair = half + (wide * half if wide > 1 else 0) + max(half + wide * half, 2 * half + keys)
    return queries + wide * queries + 4 * keys + 2 * wide * keys + max(2 * wide * keys, pair)


def _scores(sizes: ActivationSizes) -> int:
    """Bytes that grow with the square of the sequence: a position bias, or unfused attention.

    On a CPU, torch's attention is unfused with dropout, when it stores probabilities, mask and their product, and with
    any mask but the causal one, when it stores the probabilities. On a GPU it stores the bias of `rpe`, one for all
    samples. Scores that the fused kernels cannot compute are stored in fp32, and so are the probabilities. A ring
    stores nothing of the kind.
    """
    config, heads = sizes.config, sizes.heads
    if uses_ring(config):
        return 0
    statistics = heads * sequences_per_micro_batch(config) * config.shape.seq_length * SINGLE
    square = heads * config.shape.seq_length**2
    mask = config.shape.seq_length**2 if config.embedding.pos_emb == "rpe" else 0  # one byte per pair of tokens
    batch = sequences_per_micro_batch(config)
    dropout = config.regularization.attention_dropout
    if sizes.kind == "cuda" and sizes.assumed.unfused_attention == 1:  # the probabilities; also their mask and product
        kept = sizes.number_size + (1 + sizes.number_size if dropout else 0)
        return int(batch * square * (kept if sizes.assumed.score_memory < 0 else sizes.assumed.score_memory)) + mask
    if sizes.kind == "cpu" and dropout:
        return batch * square * (3 * sizes.number_size)
    chosen = choices(config, Place(sizes.kind))
    unfused = batch * square * score_bytes(chosen[0].asked)
    if not score_rule(config, 0).fused and share_unfused(config, sizes.kind):
        return round(share_unfused(config, sizes.kind) * (unfused - statistics))
    if sizes.kind == "cpu":
        fused = _share_masked(chosen) * (batch * square * sizes.number_size - statistics)
    else:
        fused = square * sizes.number_size if config.embedding.pos_emb == "rpe" else _converted_masks(sizes)
    share = share_unfused(config, sizes.kind)
    return round(share * unfused + (1 - share) * fused) + mask


def _converted_masks(sizes: ActivationSizes) -> float:
    """Bytes of masks on a GPU where flex_attention does not compute them: each layer converts its mask to a bias."""
    config = sizes.config
    if config.embedding.pos_emb in BIASED or _all_in_flex(config):
        return 0.0
    samples = sequences_per_micro_batch(config) if masks_documents(config.data) else 1
    return _share_masked(choices(config, Place())) * samples * config.shape.seq_length**2 * sizes.number_size


def _all_in_flex(config: Config) -> bool:
    """Whether no layer has a mask or a bias as a tensor."""
    return not any(choice.kernel == "sdpa" and choice.asked.masked for choice in choices(config, Place()))


def _share_masked(chosen: Iterable[Choice]) -> float:
    """Share of the layers whose attention mask is not purely causal."""
    return fmean(choice.asked.masked for choice in chosen)


def share_unfused(config: Config, kind: str = "cuda") -> float:
    """Share of the layers with attention whose scores are computed in separate steps."""
    return fmean(choice.kernel == "unfused" for choice in choices(config, Place(kind)))


def unfused_layers(sizes: ActivationSizes) -> float:
    """Share of the layers on a GPU whose attention stores all scores."""
    if sizes.kind != "cuda":
        return 0.0
    return 1.0 if sizes.assumed.unfused_attention else share_unfused(sizes.config)
