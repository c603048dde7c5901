"""Data efficiency: DeepSpeed's sections `curriculum_learning` and `data_efficiency`, which order, shorten and skip
data.

They act on data loaders and layers that DeepSpeed itself builds or wraps.
"""

from __future__ import annotations

from typing import Any, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural

_SAMPLING = (
    "DeepSpeed chooses samples only in its own data loader, by metrics that its data analyzer has computed; train.py "
    "reads token files with a loader of its own, as GPT-NeoX does"
)
_ROUTING = (
    "DeepSpeed drops tokens only in layers that the script has converted with convert_to_random_ltd, which neither "
    "deepy nor GPT-NeoX calls"
)
_NEITHER = (
    "data_sampling needs DeepSpeed's own data loader, and data_routing needs layers that the script has converted"
)


class CurriculumLearning(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only with curriculum_learning, which train.py does not support",
    section="curriculum_learning",
    always_sent=("enabled", "curriculum_type"),
):
    """Begin with short sequences, and lengthen them during training."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=(
            "the sequences would become longer during the run, but DeepSpeed only passes the current length to "
            "the forward pass, and deepy's model does not cut the sequences to this length"
        ),
        instead="train with a shorter seq_length first, then load the checkpoint of that run with the full seq_length",
    )
    """Turn this section on."""

    curriculum_type: Literal["seqlen"] = param("seqlen")
    """What grows during training; only the sequence length is supported."""

    min_difficulty: Count | None = param(None)
    """Sequence length at the start, in tokens; multiples of 8 are faster. Required."""

    max_difficulty: Count | None = param(None)
    """Sequence length at the end, at most `seq_length`. Required."""

    schedule_type: Literal["fixed_linear", "fixed_root", "fixed_discrete", "custom"] | None = param(None)
    """How the sequence length grows: linearly, along a root curve, in listed steps, or by a function that the training
    script installs. Required."""

    schedule_config: dict[str, Any] = param({})
    """Settings of the schedule. fixed_linear and fixed_root need total_curriculum_step and difficulty_step, and
    fixed_root also root_degree. fixed_discrete needs two lists: difficulty, and max_step, which has one item fewer."""


class DataEfficiency(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only by DeepSpeed's data efficiency library, which train.py does not use",
    section="data_efficiency",
):
    """DeepSpeed's data efficiency library."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_NEITHER,
    )
    """Turn this section on."""

    seed: int = param(1234)
    """Seed of the random choices of DeepSpeed's data efficiency library."""


class DataSampling(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only by DeepSpeed's data efficiency library, which train.py does not use",
    section="data_efficiency.data_sampling",
):
    """Which training samples DeepSpeed selects."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_SAMPLING,
    )
    """Let DeepSpeed select the training samples."""

    num_epochs: Count = param(1000)
    """Maximum number of passes over the data."""

    num_workers: Natural = param(0)
    """Number of processes that load data."""

    pin_memory: bool = param(False)
    """Load into page-locked memory."""


class SamplingCurriculum(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only by DeepSpeed's data efficiency library, which train.py does not use",
    section="data_efficiency.data_sampling.curriculum_learning",
    always_sent=("enabled",),
):
    """Select easy samples first, by metrics computed in advance."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_SAMPLING,
    )
    """Turn this section on."""

    data_cluster_path: str | None = param(None)
    """Folder for the lists of samples of equal difficulty. Required."""

    curriculum_metrics: dict[str, Any] = param({})
    """Settings of each metric, by its name: index_to_sample_path, index_to_metric_path, difficulty_type,
    clustering_type, min_difficulty, max_difficulty, schedule_type and schedule_config. Required."""


class DynamicBatching(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only by DeepSpeed's data efficiency library, which train.py does not use",
    section="data_efficiency.data_sampling.dynamic_batching",
):
    """Batches with about the same number of tokens, whatever the lengths of the sequences are."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_SAMPLING,
    )
    """Turn this section on."""

    max_tokens: Count | None = param(None)
    """Maximum number of tokens per batch. Required."""

    metrics_path: str | None = param(None)
    """Folder with the sequences' lengths, which the data analyzer writes. Required unless the script provides the
    lengths."""

    lr_scaling_method: Literal["linear", "sqrt", "none"] = param("linear")
    """How the learning rate scales with the number of sequences in a batch."""

    min_batch_size: Count = param(1)
    """Minimum number of sequences per batch."""

    max_batch_size: Count | None = param(None)
    """Maximum number of sequences per batch. None: no limit."""

    sequence_picking_order: Literal["dataloader", "random", "seqlen"] = param("dataloader")
    """Fill batches in the order of the data, at random or by length."""

    verbose: bool = param(False)
    """Print the batches."""


class DataRouting(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only by DeepSpeed's data efficiency library, which train.py does not use",
    section="data_efficiency.data_routing",
):
    """Which tokens go through which layers."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_ROUTING,
    )
    """Turn this section on."""


class RandomLtd(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only by DeepSpeed's data efficiency library, which train.py does not use",
    section="data_efficiency.data_routing.random_ltd",
    always_sent=("enabled", "model_type", "hidden_state_order"),
):
    """Random layerwise token dropping: middle layers process a random part of each sequence; the part grows during
    training."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=_ROUTING,
    )
    """Turn this section on."""

    total_layer_num: Count | None = param(None)
    """Number of layers in the model. Required."""

    random_ltd_layer_num: Count | None = param(None)
    """Number of layers that drop tokens. Required."""

    random_ltd_layer_id: list[Natural] | None = param(None)
    """Indices of the layers that drop tokens, counted from 0. Required."""

    model_mask_name: str | None = param(None)
    """Name of the layers' argument that holds the attention mask."""

    model_type: Literal["decoder", "encoder"] = param("decoder")
    """Kind of model: the attention mask is causal in a `decoder`, but not in an `encoder`."""

    hidden_state_order: Literal["batch_seq_dim", "seq_batch_dim"] = param("seq_batch_dim")
    """Order of the dimensions of the hidden states."""


class RandomLtdSchedule(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only by DeepSpeed's data efficiency library, which train.py does not use",
    section="data_efficiency.data_routing.random_ltd.random_ltd_schedule",
    always_sent=("schedule_type",),
):
    """How much of each sequence the middle layers process, and how this part grows."""

    min_value: Count | None = param(None)
    """Number of tokens of each sequence that the layers process when training starts. Required."""

    max_value: Count | None = param(None)
    """Number of tokens of each sequence that the layers process when the growth ends, usually the sequence length.
    Required."""

    schedule_type: Literal["fixed_linear"] = param("fixed_linear")
    """Shape of the growth; only linear growth is supported."""

    schedule_config: dict[str, Any] = param({})
    """Settings of the schedule: require_steps, the number of steps until `max_value` is reached, and seq_per_step, the
    number of tokens per increase. Required."""


class LayerTokenLr(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="it is used only by DeepSpeed's data efficiency library, which train.py does not use",
    section="data_efficiency.data_routing.random_ltd.layer_token_lr_schedule",
    always_sent=("enabled",),
):
    """A learning rate that depends on the number of tokens that the layers have processed; DeepSpeed's implementation
    is unfinished."""

    enabled: bool = param(
        False,
        effect="not built",
        refused="its implementation in DeepSpeed is unfinished and stops with an error",
    )
    """Turn this section on; true is an error in current DeepSpeed."""

    total_layer_tokens: Count | None = param(None)
    """Sum over all layers of the tokens that each layer processes in the whole run."""

    warmup_type: str | None = param(None)
    """Shape of the warm-up."""

    warmup_layer_tokens: Natural | None = param(None)
    """Length of the warm-up in tokens, counted as for `total_layer_tokens`."""
