"""The sizes of RWKV-6 layers (Peng et al. 2024, arXiv:2404.05892), those of GPT-NeoX."""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.facts.recurrent import Recurrence, Tensor

#: Ranks of the products of two matrices that change each of the five mixing factors, and the decay, with the token.
MIXING_RANK, DECAY_RANK = 32, 64
#: Tokens of a chunk, in which there is a decay for each channel and pair of tokens.
CHUNK = 16
#: Tokens of a segment of several chunks. The state before each segment is stored.
SEGMENT = 64
#: Tokens for which the effect of a state from another rank is computed at once.
PIECE = 16 * SEGMENT


def rwkv_widths(config: Config) -> tuple[int, int]:
    """Return the widths of time mixing and of channel mixing."""
    time, channel = config.rwkv.dim_att, config.rwkv.ffn_dim
    assert time and channel, "rules derive both if a layer is an RWKV layer"
    return time, channel


def _tensors(config: Config) -> list[Tensor]:
    hidden, (time, channel) = config.shape.hidden_size, rwkv_widths(config)
    matrices = {
        "att.time_maa_w1": hidden * 5 * MIXING_RANK, "att.time_maa_w2": 5 * MIXING_RANK * hidden,
        "att.time_decay_w1": hidden * DECAY_RANK, "att.time_decay_w2": DECAY_RANK * time,
        **{f"att.{name}.weight": hidden * time for name in ("receptance", "key", "value", "gate", "output")},
        "ffn.key.weight": hidden * channel, "ffn.receptance.weight": hidden**2, "ffn.value.weight": channel * hidden,
    }  # fmt: skip
    vectors = {
        **{f"{norm}.{name}": hidden for norm in ("ln1", "ln2") for name in ("weight", "bias")},
        **{f"att.time_maa_{name}": hidden for name in "xwkvrg"},
        **{f"att.{name}": time for name in ("time_decay", "time_faaaa", "ln_x.weight", "ln_x.bias")},
        **{f"ffn.time_maa_{name}": hidden for name in "kr"},
    }
    products = [Tensor(name, numel, sharded=False, multiplies=True) for name, numel in matrices.items()]
    return products + [Tensor(name, numel, sharded=False) for name, numel in vectors.items()]


def _operations(config: Config) -> int:
    """Count the product of key and value, its sum with the decayed state, and the product with the receptance."""
    time = rwkv_widths(config)[0]
    return 6 * time * (time // config.shape.num_attention_heads)


# No norms of the model's kind: ln1 and ln2 are LayerNorm, whatever `norm` says.
RWKV = Recurrence(_tensors, lambda config: 0, _operations)
