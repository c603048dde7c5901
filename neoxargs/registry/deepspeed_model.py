"""Model changes by DeepSpeed: sections `sparse_attention` and `progressive_layer_drop`."""

from __future__ import annotations

from neoxargs.registry import data_file

data_file.declare(__name__, "sparse_attention", "progressive_layer_drop")
