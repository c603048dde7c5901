"""Bytes that norms store for the backward pass."""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.facts.model import head_norms
from neoxargs.plan.given.assumptions import HALF, SINGLE
from neoxargs.plan.memory.activation_sizes import ActivationSizes


def inside_norm(sizes: ActivationSizes) -> int:
    """Bytes that a norm stores besides its input: mean and deviation per token, or unfused the normalised vectors.

    RMSNorm without a fused kernel computes in fp32 what is in 16 bits. Norms whose backward pass starts from their
    input alone (`train/ops/from_inputs.py`) store nothing else.
    """
    name, unfused = sizes.config.norm.norm, unfused_rmsnorm(sizes)
    if stores_input_only(sizes.config):
        return 0
    if unfused and sizes.number_size == HALF:
        return 3 * sizes.stream + sizes.tokens * SINGLE
    if unfused or name == "scalenorm":
        return sizes.stream + sizes.tokens * SINGLE
    return _statistics(sizes.config) * sizes.tokens * SINGLE


def stores_input_only(config: Config) -> bool:
    """Whether the scale is 1 + weight, or epsilon is added to the root: norms that are computed in fp32."""
    norm = config.norm
    outside_root = norm.norm == "rmsnorm" and not norm.__dict__.get("rms_norm_epsilon_under_root", True)
    return norm.apply_layernorm_1p or outside_root


def unfused_rmsnorm(sizes: ActivationSizes) -> bool:
    """Whether the norms are RMSNorm in separate kernels, as on a CPU."""
    return sizes.config.norm.norm == "rmsnorm" and bool(sizes.kind == "cpu" or sizes.assumed.unfused_norms)


def inside_head_norms(sizes: ActivationSizes, heads: int, outputs: int) -> int:
    """Bytes that the norms of queries and keys store. outputs: of those over all heads, which are not recomputed."""
    kind = head_norms(sizes.config.norm)
    if kind == "all_heads":  # one deviation for the queries of a token and one for its keys
        return 2 * sizes.tokens * SINGLE + outputs
    if not kind or stores_input_only(sizes.config):
        return 0
    return _statistics(sizes.config) * heads * sizes.tokens * SINGLE


def _statistics(config: Config) -> int:
    """Numbers that a norm stores per vector: mean and deviation, or for RMSNorm the deviation only."""
    return 1 if config.norm.norm == "rmsnorm" else 2
