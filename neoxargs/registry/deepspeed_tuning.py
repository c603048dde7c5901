"""Autotuning and elastic runs: DeepSpeed's sections `autotuning` and `elasticity`."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural, NonNegative


class Autotuning(Group, origin="DSC", effect="engine", section="autotuning", aliases="autotuning_config"):
    """What DeepSpeed's autotuner tries, each setting in a separate short run; `autotuning_run` starts the autotuner."""

    enabled: bool = param(False)
    """Let the engine measure steps for the autotuner, and end the run after them. Set it to true together with
    `autotuning_run`."""

    fast: bool = param(True)
    """Tune only the ZeRO stage and the micro batch size; false also tries further ZeRO settings."""

    metric: Literal["throughput", "latency", "flops"] = param("throughput")
    """Metric that the autotuner optimises."""

    metric_path: str | None = param(None)
    """File to which the training script writes the metric. If not set, DeepSpeed measures it."""

    start_profile_step: Count = param(3)
    """First step of each run to measure."""

    end_profile_step: Count = param(5)
    """Last step of each run to measure; the run ends with it."""

    tuner_type: Literal["gridsearch", "random", "model_based"] = param("gridsearch")
    """Order of the trials: in sequence (`gridsearch`), at random, or chosen by a model of the results so far
    (`model_based`)."""

    tuner_early_stopping: Natural = param(5)
    """Stop after this number of trials without improvement."""

    tuner_num_trials: Count = param(50)
    """Maximum number of trials per ZeRO stage."""

    results_dir: str = param("autotuning_results")
    """Folder for the results."""

    exps_dir: str = param("autotuning_exps")
    """Folder for the settings of each trial."""

    overwrite: bool = param(True)
    """Repeat trials whose results already exist."""

    arg_mappings: dict[str, str] | None = param(None)
    """Maps a key of the JSON file, such as `train_micro_batch_size_per_gpu`, to the script's flag with the same
    meaning, such as `--batch-size`. For scripts that also take the batch size as a flag."""

    max_train_batch_size: Count | None = param(None)
    """Largest global batch size to try."""

    min_train_batch_size: Count = param(1)
    """Smallest global batch size to try."""

    max_train_micro_batch_size_per_gpu: Count = param(1024)
    """Largest micro batch size to try."""

    min_train_micro_batch_size_per_gpu: Count = param(1)
    """Smallest micro batch size to try."""

    num_tuning_micro_batch_sizes: Count = param(3)
    """Number of micro batch sizes to try."""

    mp_size: Count = param(1)
    """Number of ranks in one replica of the model: tensor parallel size times pipeline parallel size."""

    model_info_path: str | None = param(None)
    """File with the model's size from an earlier run. If not set, the autotuner measures the size."""


class ModelInfo(Group, origin="DSC", effect="engine", section="autotuning.model_info"):
    """The model's size, if the autotuner should not measure it."""

    profile: bool = param(False)
    """Measure the model's size in this run; the autotuner sets this in its first run."""

    num_params: Count | None = param(None)
    """Number of weights in the whole model."""

    hidden_size: Count | None = param(None)
    """Hidden size of the model."""

    num_layers: Count | None = param(None)
    """Number of layers in the model."""


class Elasticity(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only for elastic batch sizes, which train.py does not support",
    section="elasticity",
    always_sent=("max_train_batch_size", "micro_batch_sizes"),
):
    """A global batch size that is valid for many numbers of GPUs; it replaces the batch keys."""

    enabled: bool = param(
        False,
        effect="not built",
        refused="DeepSpeed then computes the batch size itself and rejects the one that train.py passes",
        instead="set train_batch_size, from which the other batch keys are derived for any number of GPUs",
    )
    """Let DeepSpeed choose the batch size."""

    max_train_batch_size: Count = param(2000)
    """Largest acceptable global batch size."""

    micro_batch_sizes: list[Count] = param([2, 4, 6])
    """Acceptable micro batch sizes."""

    min_gpus: Count = param(1)
    """Smallest number of GPUs for which the batch size must be valid."""

    max_gpus: Count = param(10_000)
    """Largest number of GPUs for which the batch size must be valid."""

    min_time: Natural = param(0)
    """Minutes to run before a scheduler may change the number of GPUs; 0 sets no minimum."""

    version: NonNegative = param(0.2)
    """Version of the calculation; 0.2 takes model parallelism into account."""

    prefer_larger_batch: bool = param(True)
    """Among equally good batch sizes, choose the largest."""

    ignore_non_elastic_batch_info: bool = param(False)
    """Ignore batch sizes that are set elsewhere instead of reporting an error."""

    model_parallel_size: Count = param(1)
    """Number of ranks in one replica of the model."""

    num_gpus_per_node: Count = param(1)
    """Number of GPUs in each machine."""
