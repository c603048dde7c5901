"""Parallelism in DeepSpeed's JSON: sections `pipeline`, `tensor_parallel` and `expert_parallel`.

train.py has its own tensor parallel layers (`model_parallel_size`); the last two sections are for Hugging Face models
in a user script.
"""

from __future__ import annotations

from typing import Any, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Natural


class Pipeline(Group, origin="DSC", effect="engine", section="pipeline"):
    """DeepSpeed's own settings of pipeline parallelism; the layout comes from `pipe_parallel_size`."""

    stages: Count | Literal["auto"] = param(
        "auto", effect="none", no_effect_reason="DeepSpeed does not read it; set pipe_parallel_size instead"
    )
    """Not used: DeepSpeed stores this value but does not read it. Set `pipe_parallel_size` instead."""

    partition: str = param(
        "best", effect="none", no_effect_reason="DeepSpeed does not read it; set pipe_partition_method instead"
    )
    """Not used: DeepSpeed stores this value but does not read it. Set `pipe_partition_method` instead."""

    seed_layers: bool = param(False, effect="none", no_effect_reason="DeepSpeed does not read it")
    """Not used: DeepSpeed stores this value but does not read it."""

    activation_checkpoint_interval: Natural = param(0, effect="memory")
    """Number of layers that are recomputed together; 0 means that `checkpoint_num_layers` sets it."""

    pipe_partitioned: bool = param(True)
    """Partition activations across the tensor parallel ranks when they are sent to the next stage, and gather them
    there."""

    grad_partitioned: bool = param(True)
    """Partition gradients across the tensor parallel ranks when they are sent to the previous stage, and gather them
    there."""

    use_reentrant: bool = param(True, effect="memory")
    """Recompute with torch's reentrant checkpointing; false selects the non-reentrant variant, which works even
    if no input needs a gradient."""


class TensorParallel(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="DeepSpeed uses it only for models that it shards itself; train.py uses model_parallel_size",
    section="tensor_parallel",
):
    """AutoTP: DeepSpeed divides the matrices of a model that has no tensor parallelism of its own."""

    autotp_size: Natural = param(
        0,
        effect="not built",
        refused=(
            "DeepSpeed divides the torch.nn.Linear layers of a Hugging Face model by their names, and deepy's "
            "model has its own tensor parallel layers"
        ),
        instead="set model_parallel_size to the same number",
    )
    """Number of ranks among which DeepSpeed divides each matrix; 0 turns this off."""

    tp_overlap_comm: bool = param(False)
    """Overlap the summation of partial results with computation."""

    preset_model: str | None = param(None)
    """Built-in plan for dividing the model: llama, bloom, chatglm, mixtral, deepseek_v2, qwen2 or phi3."""

    partition_config: dict[str, Any] | None = param(None)
    """Custom plan for dividing the model: a mapping with the keys use_default_specs and layer_specs, a list of
    {patterns, partition_type, shape, partition_dim}."""

    injection_policy_tuple: list[str] | None = param(None)
    """Names of the layers whose output must be summed over the ranks, if DeepSpeed does not find these layers
    itself."""

    keep_module_on_host: bool = param(False)
    """Leave loaded weights in host memory."""

    replace_with_kernel_inject: bool = param(False, aliases="kernel_inject")
    """Replace layers with DeepSpeed's kernels for generation."""


class TensorParallelGroup(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="DeepSpeed uses it only for models that it shards itself; train.py uses model_parallel_size",
    section="tensor_parallel.tp",
    aliases="tensor_parallel.tensor_parallel",
):
    """How AutoTP divides matrices."""

    tp_size: Count = param(1)
    """Number of ranks among which each matrix is divided during generation."""

    tp_grain_size: Count = param(1)
    """Divide matrices only at multiples of this number of columns."""


class ExpertParallel(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="train.py divides the experts of its own model, according to the moe_* parameters",
    section="expert_parallel",
):
    """AutoEP: DeepSpeed divides the experts of a mixture-of-experts model that has no expert parallelism of its own.
    Settings that are not set are inferred from the model."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=(
            "DeepSpeed replaces the experts of the Hugging Face models that it knows, and deepy's model has its "
            "own mixture-of-experts layer"
        ),
        instead="set moe_expert_parallel_size",
    )
    """Turn this section on."""

    autoep_size: Count = param(1)
    """Number of ranks among which the experts of a layer are divided; must divide the number of experts."""

    expert_tensor_parallel_size: Count = param(1)
    """Number of ranks among which each expert's matrices are divided."""

    validate_folding_routing: bool = param(False)
    """Check in every step that all tensor parallel ranks route tokens to the same experts; slow."""

    preset_model: str | None = param(None)
    """Name of a built-in description of the model's family."""

    moe_layer_pattern: str | None = param(None)
    """Regular expression for the names of mixture-of-experts layers."""

    router_pattern: str | None = param(None)
    """Attribute of a mixture-of-experts layer that is its router."""

    expert_pattern: str | None = param(None)
    """Attribute of a mixture-of-experts layer that holds its experts."""

    expert_w1: str | None = param(None)
    """Attribute of an expert that holds its first (gate) matrix."""

    expert_w2: str | None = param(None)
    """Attribute of an expert that holds its output matrix."""

    expert_w3: str | None = param(None)
    """Attribute of an expert that holds its second (up) matrix; null means that the first matrix contains
    it."""

    num_experts_attr: str | None = param(None)
    """Attribute of the model's configuration that says how many experts there are."""

    top_k_attr: str | None = param(None)
    """Attribute of the model's configuration that says how many experts a token goes to."""

    top_k: Count | Literal["auto"] = param("auto")
    """How many experts a token goes to."""

    use_grouped_mm: bool = param(True)
    """Compute all experts of a rank in one grouped matrix multiplication."""

    disable_triton_grouped_mm: bool = param(False)
    """Do not use the Triton kernel for the matrix multiplication of `use_grouped_mm`."""

    route_norm: bool | None = param(None)
    """Normalise the routing weights of each token's experts so that they sum to 1."""

    route_scale: float = param(1.0)
    """Factor by which the routing weights of each token's experts are multiplied."""

    routed_scaling_factor: float | Literal["auto"] = param("auto")
    """Factor by which the sum of the outputs of each token's experts is multiplied."""

    score_func: Literal["auto", "softmax", "sigmoid"] = param("auto")
    """Function that turns the router's outputs into routing weights."""

    score_apply: Literal["auto", "pre", "post"] = param("auto")
    """Multiply an expert's input (`pre`) or its output (`post`) by its routing weight."""

    combine_impl: Literal["auto", "weighted_sum", "legacy_bmm"] = param("auto")
    """How the outputs of a token's experts are combined."""

    num_expert_groups: Count | None = param(None)
    """Number of groups of experts, if each token may use only a few groups. Needs `num_limited_groups`."""

    num_limited_groups: Count | None = param(None)
    """Number of groups whose experts a token may use."""

    load_balance_coeff: float | None = param(None)
    """Coefficient for load balancing without an auxiliary loss; current DeepSpeed rejects every value except null."""

    has_shared_experts: bool | None = param(None)
    """Whether the layers have shared experts, which process every token."""

    shared_experts_pattern: str | None = param(None)
    """Attribute of a mixture-of-experts layer that holds the shared experts."""

    shared_experts_gate_pattern: str | None = param(None)
    """Attribute of a mixture-of-experts layer that is the gate of the shared experts."""
