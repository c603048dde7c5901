"""The sizes of Mamba layers (Gu and Dao 2023, arXiv:2312.00752), those of GPT-NeoX."""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.facts.recurrent import Recurrence, Tensor

#: Numbers in the state of each inner channel.
STATE = 16
#: Tokens that the convolution reads: the newest and those before it.
TAPS = 4
#: Tokens of a chunk, whose states exist at the same time. The state before each chunk is stored.
CHUNK = 64
#: Operations per number of the state and token: decay, input, their sum, the output and its sum, and an exponential.
SCAN_OPERATIONS = 9


def step_rank(config: Config) -> int:
    """Return the width of the bottleneck from which each token's step sizes are computed."""
    return rank_of_steps(config.shape.hidden_size)


def rank_of_steps(hidden_size: int) -> int:
    """Return what `step_rank` returns for a model with this hidden size."""
    return -(-hidden_size // 16)


def packed_width(config: Config) -> int:
    """Return the rows of `x_proj`, which gives each token's step sizes, input vector and output vector."""
    return step_rank(config) + 2 * STATE


def has_scan_bias(config: Config) -> bool:
    """Return whether `x_proj` has a bias."""
    return config.mamba.mamba_use_bias_in_linears and config.mamba.mamba_use_bias_in_x_proj


def _tensors(config: Config) -> list[Tensor]:
    hidden, inner, packed = config.shape.hidden_size, config.mamba.mamba_inner_size, packed_width(config)
    tensors = [
        Tensor("mixer.in_proj.weight", 2 * inner * hidden, multiplies=True),
        Tensor("mixer.x_proj.weight", packed * inner, multiplies=True),
        Tensor("mixer.dt_proj.weight", inner * step_rank(config), multiplies=True),
        Tensor("mixer.out_proj.weight", hidden * inner, multiplies=True),
        Tensor("mixer.conv1d.weight", TAPS * inner),
        Tensor("mixer.dt_proj.bias", inner),
        Tensor("mixer.A_log", STATE * inner),
        Tensor("mixer.D", inner),
    ]
    if config.mamba.mamba_use_bias_in_conv:
        tensors.append(Tensor("mixer.conv1d.bias", inner))
    if config.mamba.mamba_use_bias_in_linears:
        tensors.append(Tensor("mixer.in_proj.bias", 2 * inner))
        tensors.append(Tensor("mixer.out_proj.bias", hidden, sharded=False))
    if has_scan_bias(config):
        tensors.append(Tensor("mixer.x_proj.bias", packed, sharded=False))
    return tensors


def _norms(config: Config) -> int:
    return 2 if config.norm.norm_placement == "both" else 1


def _operations(config: Config) -> int:
    return config.mamba.mamba_inner_size * (SCAN_OPERATIONS * STATE + 2 * TAPS)


MAMBA = Recurrence(_tensors, _norms, _operations)
