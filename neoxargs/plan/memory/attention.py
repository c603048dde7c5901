"""Bytes that attention stores for the backward pass: queries, keys and values, and scores where it is unfused."""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.facts.batch import sequences_per_micro_batch
from neoxargs.facts.data import masks_documents
from neoxargs.facts.model import attention_width, head_dim, layer_window
from neoxargs.plan.given.assumptions import HALF, SINGLE
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.norms import inside_head_norms

#: Position embeddings that are added to the attention scores.
BIASED = ("alibi", "rpe")
#: Kinds of attention whose mask is purely causal.
CAUSAL = ("global", "flash")
#: Head dimensions for which `train/ops/flex.py` runs on a GPU.
FLEX_WIDTHS = (16, 32, 64, 128, 256)


def alibi_number(sizes: ActivationSizes) -> int:
    """Bytes per number of ALiBi's bias on a GPU: none if flex_attention computes it from the positions."""
    config = sizes.config
    if sizes.number_size == HALF and unfused_softmax(config):
        return SINGLE
    return 0 if fits_flex(config) else sizes.number_size


def attention(sizes: ActivationSizes, selective: bool) -> int:
    """Bytes that attention stores: output of the fused projection, and the attention output.

    Rotated queries and keys are in one new tensor with the values, and the projection's output is freed. Norms store
    this output; what they return, or its rotation, is new, as are grouped queries that are only copied. selective: all
    that is recomputed from the output.
    """
    config, tensor = sizes.config, sizes.tensor
    shape = config.shape
    queries = sizes.tokens * attention_width(shape) // tensor * sizes.number_size
    group = shape.num_attention_heads // shape.num_kv_heads  # queries per key
    keys = queries // group
    stored = queries + 2 * keys + queries
    rotary, normed = config.embedding.pos_emb == "rotary", config.norm.use_qk_layernorm
    if not selective:
        stored += queries + keys if normed or (rotary and sizes.assumed.projection_kept) else 0
        stored += queries if group > 1 and not rotary and not normed else 0
    heads = shape.num_attention_heads // tensor
    stored += inside_head_norms(sizes, heads + heads // group, queries + keys if selective else 0)
    log_sum_exp = heads * sizes.tokens * SINGLE  # flash attention stores one per query and head
    return stored + log_sum_exp + _scores(sizes, heads)


def _scores(sizes: ActivationSizes, heads: int) -> int:
    """Bytes that grow with the square of the sequence: a position bias, or unfused attention.

    On a CPU, torch's attention is unfused with dropout, when it stores probabilities, mask and their product, and with
    any mask but the causal one, when it stores the probabilities. On a GPU it stores the bias of `rpe`, one for all
    samples. Bounded scores (`attn_logit_softcapping`) are stored in fp32, and so are the probabilities.
    """
    config = sizes.config
    square = heads * config.shape.seq_length**2
    mask = config.shape.seq_length**2 if config.embedding.pos_emb == "rpe" else 0  # one byte per pair of tokens
    batch = sequences_per_micro_batch(config)
    dropout = config.regularization.attention_dropout
    if sizes.kind == "cuda" and sizes.assumed.unfused_attention == 1:  # the probabilities; also their mask and product
        kept = sizes.number_size + (1 + sizes.number_size if dropout else 0)
        return int(batch * square * (kept if sizes.assumed.score_memory < 0 else sizes.assumed.score_memory)) + mask
    if sizes.kind == "cpu" and dropout:
        return batch * square * (3 * sizes.number_size)
    unfused = batch * square * (SINGLE + HALF + (1 if dropout else 0))
    if _stores_bounded_scores(sizes):
        cast = HALF if sizes.number_size == HALF else 0
        return batch * square * (2 * SINGLE + cast + (1 if dropout else 0)) - heads * sizes.tokens * SINGLE
    if sizes.kind == "cpu":
        fused = _masked(config) * (batch * square * sizes.number_size - heads * sizes.tokens * SINGLE)
    else:
        fused = square * sizes.number_size if config.embedding.pos_emb == "rpe" else _converted_masks(sizes)
    share = unfused_softmax(config) if sizes.number_size == HALF else 0.0
    return round(share * unfused + (1 - share) * fused) + mask


def _converted_masks(sizes: ActivationSizes) -> float:
    """Bytes of masks on a GPU where flex_attention does not fit: each layer converts its mask to a bias."""
    config = sizes.config
    if config.embedding.pos_emb in BIASED or fits_flex(config):
        return 0.0
    samples = sequences_per_micro_batch(config) if masks_documents(config.data) else 1
    return _masked(config) * samples * config.shape.seq_length**2 * sizes.number_size


def _stores_bounded_scores(sizes: ActivationSizes) -> bool:
    """Whether scores are bounded by separate operations: on a CPU, and on a GPU if flex_attention cannot do it."""
    config = sizes.config
    if config.attention.attn_logit_softcapping is None:
        return False
    return sizes.kind == "cpu" or not fits_flex(config)


def fits_flex(config: Config) -> bool:
    """Whether flex_attention computes masks and biases from positions on a GPU."""
    return head_dim(config.shape) in FLEX_WIDTHS and not config.regularization.attention_dropout


def _masked(config: Config) -> float:
    """Share of the layers whose attention mask is not purely causal."""
    attention = config.attention
    if config.embedding.pos_emb in BIASED or masks_documents(config.data):
        return 1.0
    layers = config.shape.num_layers
    kinds = attention.__dict__.get("attention_config") or ["global"] * layers
    masked = [kind not in CAUSAL or layer_window(attention, layer) > 0 for layer, kind in enumerate(kinds)]
    return sum(masked) / len(masked)


def unfused_softmax(config: Config) -> float:
    """Share of the layers with softmax in fp32 and without its fused kernel, which `flash` layers always have."""
    wanted = config.attention.attention_softmax_in_fp32 or config.attention.apply_query_key_layer_scaling
    fusion, biased = config.fusion, config.embedding.pos_emb in BIASED
    kept = fusion.scaled_masked_softmax_fusion if biased else fusion.scaled_upper_triang_masked_softmax_fusion
    if not wanted or kept:
        return 0.0
    kinds: list[str] = config.attention.__dict__.get("attention_config") or ["global"]
    return sum(kind != "flash" for kind in kinds) / len(kinds)
