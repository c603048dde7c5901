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

    @property
    def depends_on_length(self) -> bool:
        """Whether the angle of a position depends on the length of the text around it."""
        return self.scaling is not None and self.scaling.rope_type in BY_LENGTH

    def angles(self, seq: int, length: int, device: torch.device, tables: Tables) -> tuple[Tensor, ...]:
        """Return cosine and sine of positions 0, 1, 2, ..., at least `seq` of them, each (positions, width / 2).

        length: of the text up to now, on which the frequencies of some kinds of scaling depend.
        """
        if self.depends_on_length:
            assert self.scaling is not None
            length = max(length, self.scaling.context)
            if self.scaling.rope_type == "longrope":
                length = min(length, self.scaling.context + 1)  # all longer ones have the same frequencies
        else:
            length = 0
        return tables.rows(
            (self.name, device),
            seq,
            lambda size: self.angles_at(torch.arange(size, device=device), torch.tensor(length, device=device)),
            length,
        )

    def angles_at(self, positions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of positions (…), each (…, width / 2), in fp32: 16 bits make large positions equal.

        lengths: of the text that each position is in, (…), or of all.
        """
        exponents = torch.arange(0, self.width, 2, device=positions.device, dtype=torch.float32) / self.width
        frequency = self.base**-exponents
        if self.scaling is not None:
            frequency = _SCALED[self.scaling.rope_type](frequency, self.scaling, self, lengths.unsqueeze(-1))
        angle = positions.float().unsqueeze(-1) * frequency
        if self.scaling is None:
            return angle.cos(), angle.sin()
        return angle.cos() * self.scaling.multiplier(), angle.sin() * self.scaling.multiplier()


def length_of_same_angles(config: Config) -> int | None:
    """Return the length beyond which a longer text changes the angles of all its positions; None if none does."""
    scaling = Scaling.of(config) if config.embedding.pos_emb == "rotary" else None
    return scaling.context if scaling and scaling.rope_type in BY_LENGTH else None


def each_length(config: Config) -> bool:
    """Whether each length beyond `length_of_same_angles` has angles of its own."""
    return config.embedding.pos_emb == "rotary" and config.rope_scaling.rope_type == "dynamic"


def _mscale(factor: float, scale: float = 1.0) -> float:
    """Return YaRN's factor on queries and keys (arXiv:2309.00071, equation 22)."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _linear(frequency: Tensor, options: Scaling, rotation: Rotation, lengths: Tensor) -> Tensor:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595)."""
    return frequency / options.factor


def _ntk(frequency: Tensor, options: Scaling, rotation: Rotation, lengths: Tensor) -> Tensor:
    """A larger base, with which the slowest frequency is divided by the factor and the fastest stays (bloc97 2023)."""
    return _slower(frequency, torch.tensor(options.factor, device=frequency.device))


def _dynamic(frequency: Tensor, options: Scaling, rotation: Rotation, lengths: Tensor) -> Tensor:
    """The base grows with the length beyond the original context (emozilla 2023): at `factor` 2, as `ntk` has it for
    a factor that is twice the length in contexts, less 1."""
    contexts = lengths.clamp(min=options.context).float() / options.context
    return _slower(frequency, options.factor * contexts - (options.factor - 1))


def _slower(frequency: Tensor, factor: Tensor) -> Tensor:
    """Divide the slowest frequency by the factor (1 or more), the fastest by 1, and those between by powers of it."""
    steps = torch.arange(len(frequency), device=frequency.device, dtype=torch.float32)
    return frequency * factor ** -(steps / max(len(frequency) - 1, 1))


def _yarn(frequency: Tensor, options: Scaling, rotation: Rotation, lengths: Tensor) -> Tensor:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): interpolate what turns rarely within the original context."""

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


def _llama3(frequency: Tensor, options: Scaling, rotation: Rotation, lengths: Tensor) -> Tensor:
    """Llama 3.1 (arXiv:2407.21783): divide what turns rarely within the original context, blend what lies between."""
    turns = frequency * options.context / (2 * math.pi)
    fast = (turns - options.low_freq_factor) / (options.high_freq_factor - options.low_freq_factor)
    fast = fast.clamp(0, 1)
    return frequency * fast + frequency / options.factor * (1 - fast)


def _longrope(frequency: Tensor, options: Scaling, rotation: Rotation, lengths: Tensor) -> Tensor:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): a factor for each frequency, found by search."""
    short, long = (
        torch.tensor(factors, device=frequency.device, dtype=torch.float32)
        for factors in (options.short_factor, options.long_factor)
    )
    return frequency / torch.where(lengths > options.context, long, short)


#: Kinds whose frequencies depend on the length of the text.
BY_LENGTH = ("dynamic", "longrope")
#: `rope_type` -> function of the frequencies, (width / 2), settings, rotation, and the lengths of texts, (…, 1).
_SCALED: dict[str, Callable[[Tensor, Scaling, Rotation, Tensor], Tensor]] = {
    "linear": _linear,
    "ntk": _ntk,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
