"""Memory traffic of a layer's kernels besides matrix products and attention, in passes over the residual stream.

One pass reads or writes as many bytes as the residual stream has without sequence parallelism. Counted kernel by kernel
as `train/model` computes, and compared with a trace of its operators by bench/traffic_against_trace.py.
"""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.facts.attention import attention_width, has_qkv_bias
from neoxargs.facts.model import GATED, head_norms, mlp_width, norms_of_block
from neoxargs.plan.given.assumptions import SINGLE
from neoxargs.plan.memory import experts
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.norms import stores_input_only, unfused_rmsnorm

#: Residual sums of a layer.
SUMS = 2
#: Passes of a residual sum, and of dropout: it reads and writes, and writes or reads a mask of one byte per number.
SUM, DROPOUT = 3, 2.5
#: Times that a copy of a token for an expert is read or written: gathered, weighted and added to the output.
DISPATCH = 7
#: Passes of a copy: it reads and writes.
COPY = 2
#: Passes of an activation function over its output, in the forward and in the backward pass. If gated, the function and
#: the product with the other half; the gradients of both, which are concatenated.
ACTIVATION, GATED_ACTIVATION = (2, 3), (5, 13)


def passes(sizes: ActivationSizes) -> tuple[float, float]:
    """Return the passes of a layer's kernels: in the forward and in the backward pass."""
    config = sizes.config
    # width of the feed-forward networks that a token passes through, relative to the residual stream
    width = experts.networks(config, sizes.assumed) * mlp_width(config.shape, config.mlp) / config.shape.hidden_size
    ratio = width / sizes.tensor
    stream = 1 / sizes.tensor if config.parallel.sequence_parallel else 1.0
    activation = GATED_ACTIVATION if config.mlp.activation in GATED else ACTIVATION
    dispatched = DISPATCH * experts.dispatched(config, sizes.assumed)
    both = zip(_norm_passes(sizes), _sum_passes(config), activation, _head_passes(sizes), strict=True)
    forward, backward = (
        stream * (norms_of_block(config) * norm + SUMS * each_sum) + ratio * wide + heads + dispatched
        for norm, each_sum, wide, heads in both
    )
    added = COPY * stream * _output_biases(config) if sizes.tensor > 1 else 0.0  # to the sum over the ranks
    return forward + added, backward + _bias_passes(config, stream, ratio, sizes)


def _sum_passes(config: Config) -> tuple[float, float]:
    """Return the passes of a residual sum with dropout; one kernel for both writes only the mask in addition."""
    if not config.regularization.hidden_dropout:
        return SUM, SUM
    return SUM + (0.5 if config.fusion.bias_dropout_fusion else DROPOUT), SUM + DROPOUT


def _output_biases(config: Config) -> int:
    """Return how many biases attention and feed-forward add to what leaves them."""
    return config.attention.use_bias_in_attn_linear + config.mlp.use_bias_in_mlp


def _heads(sizes: ActivationSizes) -> tuple[float, float]:
    """Return the width of queries, and of keys or values, relative to the residual stream."""
    shape = sizes.config.shape
    queries = attention_width(shape) / shape.hidden_size / sizes.tensor
    return queries, queries * shape.num_kv_heads / shape.num_attention_heads


def _head_passes(sizes: ActivationSizes) -> tuple[float, float]:
    """Return the passes between the projection to queries, keys and values and attention.

    Where these are rotated without norms, train/ops/rotary.py writes each of them once in both directions. In all
    other cases the backward pass concatenates their gradients; grouped queries that nothing has changed are copied.
    """
    config, (queries, keys) = sizes.config, _heads(sizes)
    rotated = config.embedding.pos_emb == "rotary"
    rotation = _rotation_passes(sizes) * (queries + keys) if rotated else 0.0
    if not head_norms(config.norm):
        if rotated:
            return rotation + COPY * keys, rotation + COPY * keys
        return COPY * queries if keys < queries else 0.0, COPY * (queries + 2 * keys)
    # over all heads, a norm consists of separate kernels in fp32
    norms = (20, 47) if head_norms(config.norm) == "all_heads" else _norm_passes(sizes)
    forward, backward = (norm * (queries + keys) + rotation for norm in norms)
    return forward, backward + COPY * (queries + 2 * keys)


def _rotation_passes(sizes: ActivationSizes) -> float:
    """Return the passes over queries or keys that rotate them, or rotate them back.

    One kernel reads and writes them once. torch's kernels copy what is not rotated; they multiply the half of each pair
    in fp32, and then read both halves and write the result.
    """
    config = sizes.config
    if config.fusion.rope_fusion and sizes.kind == "cuda" and not config.fusion.compile_layers:
        return COPY
    share, in_fp32 = config.embedding.rotary_pct, SINGLE / sizes.number_size
    return COPY * (1 - share) + (3 + 2 * in_fp32) * share


def _norm_passes(sizes: ActivationSizes) -> tuple[int, int]:
    """Return the passes of a norm. Backward it reads its input and gradient twice and writes once."""
    if sizes.kind == "cuda" and unfused_rmsnorm(sizes):
        return 18, 36  # converts to fp32, squares, averages, multiplies twice and converts back
    if stores_input_only(sizes.config):
        return 10, 26  # converts to fp32 and back around the kernel; the backward pass repeats this first
    return 2, 5


def _bias_passes(config: Config, stream: float, ratio: float, sizes: ActivationSizes) -> float:
    """Return the passes for gradients of biases, which are sums over all tokens."""
    queries, keys = _heads(sizes)
    halves = 2 if config.mlp.activation in GATED else 1
    inside = halves * ratio if config.mlp.use_bias_in_mlp else 0.0
    of_heads = queries + 2 * keys if has_qkv_bias(config.attention) else 0.0
    return stream * _output_biases(config) + inside + of_heads
