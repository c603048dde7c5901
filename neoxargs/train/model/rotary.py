"""The angles of rotary position embedding (Su et al. 2021, arXiv:2104.09864), for a part of the head dimension.

As in GPT-NeoX, dimension i is rotated together with dimension i + width / 2, where width is `rotary_pct` of the head
dimension. The dimensions beyond width are not rotated. `rope_scaling` changes the frequencies for longer contexts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.facts.attention import head_dim, layer_window
from neoxargs.train.ops.tables import Tables


@dataclass(frozen=True)
class Scaling:
    """A change of the frequencies, with the settings of `rope_scaling`; `context` is the original one, in tokens."""

    rope_type: str
    factor: float
    context: int
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @classmethod
    def of(cls, config: Config) -> Scaling | None:
        """Return what the configuration describes; None if frequencies stay as they are."""
        options, longest = config.rope_scaling, config.shape.max_position_embeddings
        if options.rope_type == "default":
            return None
        context = options.original_max_position_embeddings or longest
        return cls(
            options.rope_type, options.factor or longest / context, context, options.attention_factor,
            options.low_freq_factor, options.high_freq_factor, options.beta_fast, options.beta_slow, options.truncate,
            options.mscale, options.mscale_all_dim, tuple(options.short_factor or ()), tuple(options.long_factor or ()),
        )  # fmt: skip

    def multiplier(self) -> float:
        """Return the factor on cosines and sines, and so on rotated queries and keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.rope_type == "yarn":
            if self.mscale and self.mscale_all_dim:
                return _mscale(self.factor, self.mscale) / _mscale(self.factor, self.mscale_all_dim)
            return _mscale(self.factor)
        if self.rope_type == "longrope" and self.factor > 1:
            return math.sqrt(1 + math.log(self.factor) / math.log(self.context))
        return 1.0


@dataclass
class Rotation:
    """The rotation of one layer. width: number of rotated dimensions of a head."""

    width: int
    base: float
    scaling: Scaling | None = None
    name: str = field(init=False)
    """Equal for equal rotations: torch's compiler can compare strings, but not objects of this class."""

    def __post_init__(self) -> None:
        self.name = f"rotary {self.width} {self.base} {self.scaling}"

    @classmethod
    def of(cls, config: Config, layer: int) -> Rotation | None:
        """Return the rotation of a layer, counted from 0; None if `pos_emb` is not rotary."""
        embedding = config.embedding
        if embedding.pos_emb != "rotary":
            return None
        width = int(head_dim(config.shape) * embedding.rotary_pct)
        if embedding.rope_local_base_freq is not None and layer_window(config.attention, layer):
            return cls(width, embedding.rope_local_base_freq)
        return cls(width, embedding.rotary_emb_base, Scaling.of(config))

    def angles(self, seq: int, length: int, device: torch.device, tables: Tables) -> tuple[Tensor, ...]:
        """Return cosine and sine of positions 0, 1, 2, ..., at least `seq` of them, each (positions, width / 2).

        length: of the text up to now, by which `longrope` chooses its factors.
        """
        scaling = self.scaling
        is_long = scaling is not None and scaling.rope_type == "longrope" and length > scaling.context
        key = (self.name, is_long, device)
        return tables.rows(key, seq, lambda size: self._angles(size, is_long, device))

    def _angles(self, seq: int, is_long: bool, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, each (S, width / 2), in fp32: in 16 bits large positions would become equal."""
        frequency = self.base ** -(torch.arange(0, self.width, 2, device=device, dtype=torch.float32) / self.width)
        if self.scaling is not None:
            frequency = _SCALED[self.scaling.rope_type](frequency, self, is_long)
        angle = torch.arange(seq, device=device, dtype=torch.float32).outer(frequency)
        if self.scaling is None:
            return angle.cos(), angle.sin()
        return angle.cos() * self.scaling.multiplier(), angle.sin() * self.scaling.multiplier()


def longrope_context(config: Config) -> int | None:
    """Return the length beyond which `longrope` changes all angles; None with another `rope_type`."""
    is_longrope = config.embedding.pos_emb == "rotary" and config.rope_scaling.rope_type == "longrope"
    return scaling.context if is_longrope and (scaling := Scaling.of(config)) else None


def _mscale(factor: float, scale: float = 1.0) -> float:
    """Return YaRN's factor on queries and keys (arXiv:2309.00071, equation 22)."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _linear(frequency: Tensor, rotation: Rotation, is_long: bool) -> Tensor:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595)."""
    return frequency / _scaling(rotation).factor


def _ntk(frequency: Tensor, rotation: Rotation, is_long: bool) -> Tensor:
    """A larger base, with which the slowest frequency is divided by the factor and the fastest stays (bloc97 2023)."""
    exponents = torch.arange(0, rotation.width, 2, device=frequency.device, dtype=torch.float32) / (rotation.width - 2)
    return frequency * _scaling(rotation).factor ** -exponents


def _yarn(frequency: Tensor, rotation: Rotation, is_long: bool) -> Tensor:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): interpolate what turns rarely within the original context."""
    options = _scaling(rotation)

    def dimension(turns: float) -> float:
        """Return the dimension whose frequency makes this number of turns within the original context."""
        wavelength = options.context / (turns * 2 * math.pi)
        return rotation.width * math.log(wavelength) / (2 * math.log(rotation.base))

    first, last = dimension(options.beta_fast), dimension(options.beta_slow)
    if options.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotation.width - 1)
    index = torch.arange(len(frequency), device=frequency.device, dtype=torch.float32)
    slow = ((index - first) / (last - first or 0.001)).clamp(0, 1)
    return frequency * (1 - slow) + frequency / options.factor * slow


def _llama3(frequency: Tensor, rotation: Rotation, is_long: bool) -> Tensor:
    """Llama 3.1 (arXiv:2407.21783): divide what turns rarely within the original context, blend what lies between."""
    options = _scaling(rotation)
    turns = frequency * options.context / (2 * math.pi)
    fast = (turns - options.low_freq_factor) / (options.high_freq_factor - options.low_freq_factor)
    fast = fast.clamp(0, 1)
    return frequency * fast + frequency / options.factor * (1 - fast)


def _longrope(frequency: Tensor, rotation: Rotation, is_long: bool) -> Tensor:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): a factor for each frequency, found by search."""
    options = _scaling(rotation)
    factors = options.long_factor if is_long else options.short_factor
    return frequency / torch.tensor(factors, device=frequency.device, dtype=torch.float32)


def _scaling(rotation: Rotation) -> Scaling:
    assert rotation.scaling is not None
    return rotation.scaling


#: `rope_type` -> function of the frequencies, the rotation, and whether the text exceeds the original context.
_SCALED: dict[str, Callable[[Tensor, Rotation, bool], Tensor]] = {
    "linear": _linear,
    "ntk": _ntk,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
