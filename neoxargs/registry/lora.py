"""Adapters (LoRA): small trained matrices beside the frozen matrices of a model."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import BelowOne, Natural, Positive

#: Names of the matrices that can have adapters: deepy's, and those of Hugging Face models.
Target = Literal[
    "all-linear", "query_key_value", "q_proj", "k_proj", "v_proj", "dense", "o_proj", "dense_h_to_4h", "up_proj",
    "gate_proj", "dense_4h_to_h", "down_proj",
]  # fmt: skip


class Lora(Group, origin="NeoX", effect="model", section="lora"):
    """LoRA: training low-rank adapters of a frozen model."""

    rank: Natural = param(0, ours=True)
    """Freezes the model and trains adapters of this rank: each adds two narrow matrices, A and B, to a weight matrix W,
    so that the layer computes with W + scale x B A (Hu et al. 2021, arXiv:2106.09685). 0: no adapters. Set
    `base_checkpoint` to the model's checkpoint. The run's own checkpoints contain only the adapters."""

    alpha: Positive = param(16.0, ours=True)
    """Numerator of the adapters' scale, which is `alpha` / `rank`."""

    dropout: BelowOne = param(0.0, ours=True)
    """Probability of dropout on the input of the adapters; the frozen matrices get the input without dropout."""

    targets: list[Target] = param(["all-linear"], ours=True)
    """Matrices with adapters. `query_key_value` (or `q_proj`, `k_proj`, `v_proj` separately) and `dense` (or `o_proj`)
    are those of attention; `dense_h_to_4h` (or `up_proj`; if the MLP is gated, `up_proj` and `gate_proj` separately)
    and `dense_4h_to_h` (or `down_proj`) those of the MLP. `all-linear` means the four matrices of every layer, whose
    parts then share A. A single name needs no brackets."""

    init: Literal["kaiming", "gaussian"] = param("kaiming", ours=True)
    """Distribution of A's initial values: uniform with a bound of 1 / sqrt(inputs) (`kaiming`), or normal with a
    standard deviation of 1 / `rank` (`gaussian`). B starts at zero, so a new adapter changes nothing."""

    rank_stabilized: bool = param(False, ours=True)
    """Sets the scale to `alpha` / sqrt(`rank`), so that adapters of high rank learn as fast as those of low rank
    (rsLoRA, Kalajdzievski 2023, arXiv:2312.03732)."""
