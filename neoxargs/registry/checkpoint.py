"""Checkpoints: when and where a run saves, and what it continues from."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, Positive


class Checkpoint(Group, origin="Meg", effect="checkpoint"):
    """Where, when and what is saved and loaded."""

    save: str | None = param(None, megatron="save")
    """Folder that checkpoints are written to. If not set, nothing is saved."""

    load: str | None = param(None, megatron="load")
    """Folder whose newest checkpoint the run continues from, with any layout: tensor and pipeline parallel sizes,
    number of ranks, ZeRO stage and precision may have changed. If `load` and `save` are the same folder, it may be
    empty; the run then starts from scratch. The folder may contain GPT-NeoX checkpoints, or be a single checkpoint
    itself."""

    base_checkpoint: str | None = param(None, ours=True)
    """Folder with the checkpoint of the model that LoRA or soft prompt tuning leaves frozen. The checkpoint can come
    from deepy or GPT-NeoX, and can have any layout. The run's own checkpoints contain only what the run trains, and
    record which base checkpoint it used. If not set, it is the checkpoint in `load` (with `finetune: true`), or the one
    that the checkpoint in `load` records."""

    load_query_key_value_order: Literal["per_head", "concatenated"] | None = param(None, ours=True)
    """Order of the rows of queries, keys and values in a GPT-NeoX checkpoint whose files do not record it: `per_head`
    (the rows of each query head, then its share of the keys and values) or `concatenated` (all queries, all keys, all
    values). GPT-NeoX changed the order of models with `num_kv_heads` on 2024-11-13. deepy's own checkpoints do not need
    it."""

    checkpoint_factor: Count | Positive | None = param(None, megatron="save-interval", aliases="save_interval")
    """Number of iterations between two checkpoints (a whole number). With `checkpoint_scale: log`, the ratio of
    successive checkpoint iterations, which can be any number above 1. Called `save_interval` until December 2022."""

    checkpoint_scale: Literal["linear", "log"] = param("linear", origin="NeoX")
    """Spacing of checkpoints: `linear` at multiples of `checkpoint_factor`, `log` at powers of `checkpoint_factor`."""

    extra_save_iters: list[Natural] | None = param(None, origin="NeoX")
    """Further iterations at which a checkpoint is saved."""

    save_iters: int | list[int] | None = param(
        None,
        origin="NeoX",
        to=(),
        effect="none",
        no_effect_reason="checkpoint_factor and extra_save_iters determine when checkpoints are saved",
    )
    """Iterations at which checkpoints are saved, in files from December 2022 to September 2024. GPT-NeoX computed the
    list from `checkpoint_factor` and `extra_save_iters` and overwrote any value that was set; setting it has no
    effect."""

    keep_last_n_checkpoints: Count | None = param(None, origin="NeoX")
    """After each save, deletes all checkpoints except the newest N, where N is this number, and those of
    `keep_best_checkpoints`. If not set, all are kept."""

    keep_best_checkpoints: Count | None = param(None, ours=True)
    """Keeps so many checkpoints with the lowest validation loss, besides those of `keep_last_n_checkpoints`. Only those
    count that are saved in an iteration with an evaluation, so `checkpoint_factor` should be a multiple of
    `eval_interval`."""

    on_save_error: Literal["stop", "continue"] = param("stop", ours=True)
    """Reaction to a checkpoint that cannot be written because the disk is full, or the folder has vanished or is
    read-only: `stop` ends the run; `continue` prints a warning, and training continues until the next save. The last
    save of a run must succeed. Metrics and reports that cannot be written are treated in the same way."""

    save_in_background: bool = param(False, ours=True, megatron="async-save")
    """Writes checkpoints while training goes on: a save only copies weights and optimizer states to host memory, which
    must have room for them, and a thread of each rank writes the copies. The next save and the end of the run wait
    until the checkpoint is written. Not possible with weights or optimizer states on NVMe."""

    no_save_optim: bool = param(False, megatron="no-save-optim")
    """Leaves optimizer states out of checkpoints. Checkpoints are then several times smaller, but a run cannot be
    resumed from them exactly."""

    no_save_rng: bool = param(False, megatron="no-save-rng")
    """Leaves the states of random number generators out of checkpoints."""

    no_load_optim: bool = param(False, megatron="no-load-optim")
    """Starts with new optimizer states, even if the checkpoint contains some. The iteration and the learning rate
    schedule are those of the checkpoint; `finetune` starts both anew."""

    no_load_rng: bool = param(False, megatron="no-load-rng")
    """Starts with the random numbers of `seed`, even if the checkpoint contains RNG states."""

    finetune: bool = param(False, megatron="finetune")
    """Loads only the weights from `load`. The run starts at iteration 0, with a new optimizer state, learning rate
    schedule and random numbers."""

    checkpoint_validation_with_forward_pass: bool = param(False, origin="NeoX")
    """Records the loss of a fixed sample in every checkpoint. A run that loads the checkpoint computes this loss again,
    and stops if the two differ by more than 0.01% (1% in 16 bits); different layouts can cause smaller
    differences."""

    s3_path: str | None = param(
        None,
        origin="NeoX",
        effect="not built",
        refused=(
            "GPT-NeoX uploads every checkpoint while the training waits; a separate program can upload it "
            "without a pause, because the folder of a checkpoint gets its name only when it is complete"
        ),
        instead="upload with `aws s3 sync SAVE S3_PATH --exclude '.*'`",
    )
    """S3 address to which checkpoints are uploaded after saving, such as `s3://bucket/run`."""

    s3_chunk_size: Count = param(
        104_857_600,
        origin="NeoX",
        effect="none",
        no_effect_reason="it is used only for uploads to S3, which train.py does not support",
    )
    """Size of the parts of an upload to S3 in bytes; S3 requires at least 5 MiB."""
