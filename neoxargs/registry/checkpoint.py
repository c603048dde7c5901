"""Saving a run and continuing it, as NeoX and Megatron write it."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, Positive


class Checkpoint(Group, origin="Meg"):
    """Where, when and what is saved and loaded."""

    save: str | None = param(None, megatron="save")
    load: str | None = param(None, megatron="load")
    checkpoint_factor: Count | Positive | None = param(None, megatron="save-interval", renamed_from="save_interval")
    checkpoint_scale: Literal["linear", "log"] = param("linear", origin="NeoX")
    extra_save_iters: list[Natural] | None = param(None, origin="NeoX", renamed_from="save_iters")
    keep_last_n_checkpoints: Count | None = param(None, origin="NeoX")
    no_save_optim: bool = param(False, megatron="no-save-optim")
    no_save_rng: bool = param(False, megatron="no-save-rng")
    no_load_optim: bool = param(False, megatron="no-load-optim")
    no_load_rng: bool = param(False, megatron="no-load-rng")
    finetune: bool = param(False, megatron="finetune")
    checkpoint_validation_with_forward_pass: bool = param(False, origin="NeoX")
    s3_path: str | None = param(None, origin="NeoX")
    s3_chunk_size: Count = param(104_857_600, origin="NeoX")
