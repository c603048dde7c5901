"""Maximal update parametrisation (muP): hyperparameters that transfer between widths."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Positive


class Mup(Group, origin="NeoX", effect="model"):
    """Maximal update parametrisation: hyperparameters that can be transferred between widths."""

    use_mup: bool = param(False, megatron="use-mup")
    """Trains with the maximal update parametrisation, in which a learning rate tuned on a narrow model also suits a
    wide one (Yang et al. 2022, arXiv:2203.03466). Needs `base_shapes_file`, Adam, AdamW or SGD, and should have a
    `normal` or `scaled_normal` initialisation. The reported learning rate is that of the weights whose dimensions do
    not grow."""

    coord_check: bool = param(False, effect="run")
    """Instead of training, measures how large the layers' outputs are at three widths over a few steps, to see whether
    `use_mup` keeps them constant; prints them and writes coord_check.json in `run_dir`. Each width is `mup_width_scale`
    times the one before. Without `base_shapes_file`, the narrowest is the base."""

    save_base_shapes: bool = param(False, effect="run")
    """Instead of training, writes to `base_shapes_file` the shapes of this model's weights, and which of their
    dimensions grow when the model is `mup_width_scale` times as wide. One file serves every layout."""

    base_shapes_file: str | None = param(None)
    """File with the shapes of the base model, relative to which muP scales, in the format of the mup package;
    `save_base_shapes` writes it. GPT-NeoX's files (`.0`, `.1` and so on) name other weights and cannot be read."""

    mup_init_scale: Positive = param(1.0)
    """Factor on the standard deviation of initial weights under muP."""

    mup_attn_temp: Positive = param(1.0)
    """Under muP, attention scores are divided by this value, and by the head's width instead of the square root of the
    width."""

    mup_output_temp: Positive = param(1.0)
    """Under muP, logits are divided by this value, and by the ratio of the model's width to the base model's width."""

    mup_embedding_mult: Positive = param(1.0, megatron="mup-embedding-mult")
    """Factor on the sum of token and position embeddings under muP."""

    mup_rp_embedding_mult: Positive = param(1.0)
    """Under muP, factor on the position embeddings: learned, sinusoidal, or those of `pos_emb: rpe`."""

    mup_width_scale: Count = param(2, effect="run")
    """Ratio of the widths of successive models in `save_base_shapes` and `coord_check`; at least 2. The hidden size and
    the feed-forward width grow; the number of heads does not."""
