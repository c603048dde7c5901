"""The run itself: how long, how often evaluated, with which processes."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural


class Training(Group, origin="NeoX"):
    """Length of the run, evaluation, seeds and process setup."""

    train_iters: Count = param(derived=True, origin="Meg", megatron="train-iters")
    train_epochs: Count | None = param(None)
    eval_interval: Natural = param(1000, origin="Meg", megatron="eval-interval")
    eval_iters: Natural = param(100, origin="Meg", megatron="eval-iters")
    exit_interval: Count | None = param(None, origin="Meg", megatron="exit-interval")
    char_level_ppl: bool = param(False)
    seed: Natural = param(1234, origin="Meg", megatron="seed")
    dialect: str | None = param(None, to=())
    user_script: str | None = param(None)
    config_files: dict[str, str] | None = param(None)
    iteration: Natural | None = param(None)
    do_train: bool | None = param(None)
    do_valid: bool | None = param(None)
    do_test: bool | None = param(None)
    distributed_backend: Literal["nccl", "gloo", "mpi"] = param("nccl", origin="Meg", megatron="distributed-backend")
    DDP_impl: Literal["local", "torch"] = param("local", origin="Meg")
    lazy_mpu_init: bool = param(False, origin="Meg", megatron="lazy-mpu-init")
    local_rank: int | None = param(None, origin="Meg", megatron="local-rank")
    rank: Natural | None = param(None)
    deepspeed_mpi: bool = param(False, origin="Meg")
    deepspeed_slurm: bool = param(False)
    deepscale: bool = param(False)
    deepscale_config: str | None = param(None)
    adlr_autoresume: bool = param(False, origin="Meg", megatron="adlr-autoresume")
    adlr_autoresume_interval: Count = param(1000, origin="Meg", megatron="adlr-autoresume-interval")
