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
    """DeepSpeed stores it and does not read it; `pipe_parallel_size` counts."""

    partition: str = param(
        "best", effect="none", no_effect_reason="DeepSpeed does not read it; set pipe_partition_method instead"
    )
    """DeepSpeed stores it and does not read it; `pipe_partition_method` counts."""

    seed_layers: bool = param(False, effect="none", no_effect_reason="DeepSpeed does not read it")
    """DeepSpeed stores it and does not read it."""

    activation_checkpoint_interval: Natural = param(0, effect="memory")
    """Layers per recomputed piece; 0 leaves it to `checkpoint_num_layers`."""

    pipe_partitioned: bool = param(True)
    """Partition activations across the tensor parallel ranks when they are sent to the next stage, and gather them
    there."""

    grad_partitioned: bool = param(True)
    """The same for the gradients on the way back."""

    use_reentrant: bool = param(True, effect="memory")
    """Recompute with torch's reentrant autograd; false allows inputs that need no gradient."""


class TensorParallel(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="only models that DeepSpeed shards read it; train.py shards by model_parallel_size",
    section="tensor_parallel",
):
    """AutoTP: divide the matrices of a model that knows nothing of it."""

    autotp_size: Natural = param(
        0,
        effect="not built",
        refused=(
            "DeepSpeed divides the torch.nn.Linear layers of a Hugging Face model by their names, and deepy's "
            "model has its own tensor parallel layers"
        ),
        instead="set model_parallel_size",
    )
    """Ranks that share each matrix; 0 is off."""

    tp_overlap_comm: bool = param(False)
    """Sum partial results while computation goes on."""

    preset_model: str | None = param(None)
    """Which built-in plan to divide by: llama, bloom, chatglm, mixtral, deepseek_v2, qwen2 or phi3."""

    partition_config: dict[str, Any] | None = param(None)
    """A custom plan: use_default_specs and layer_specs, a list of {patterns, partition_type, shape, partition_dim}."""

    injection_policy_tuple: list[str] | None = param(None)
    """Names of the layers whose output must be summed, where DeepSpeed does not find them."""

    keep_module_on_host: bool = param(False)
    """Leave loaded weights in host memory."""

    replace_with_kernel_inject: bool = param(False, aliases="kernel_inject")
    """Put in DeepSpeed's kernels for generation."""


class TensorParallelGroup(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="only models that DeepSpeed shards read it; train.py shards by model_parallel_size",
    section="tensor_parallel.tp",
    aliases="tensor_parallel.tensor_parallel",
):
    """How matrices are cut."""

    tp_size: Count = param(1)
    """Ranks that share each matrix, when generating."""

    tp_grain_size: Count = param(1)
    """Cut at multiples of this many columns."""


class ExpertParallel(
    Group,
    origin="DSC",
    effect="none",
    no_effect_reason="train.py divides the experts of its own model, as the parameters moe_... say",
    section="expert_parallel",
):
    """AutoEP: share out the experts of a mixture model that knows nothing of it. What is not given is found out from
    the model."""

    enabled: bool = param(
        False,
        effect="not built",
        refused=(
            "DeepSpeed replaces the experts of the Hugging Face models that it knows, and deepy's model has its "
            "own layer of experts"
        ),
        instead="set moe_expert_parallel_size",
    )
    """Turn this section on."""

    autoep_size: Count = param(1)
    """Ranks that share the experts of a layer; a divisor of their number."""

    expert_tensor_parallel_size: Count = param(1)
    """Ranks that share each expert's matrices."""

    validate_folding_routing: bool = param(False)
    """Check on every step that tensor parallel ranks route alike; slow."""

    preset_model: str | None = param(None)
    """Name of a built-in description of the model's family."""

    moe_layer_pattern: str | None = param(None)
    """Regular expression for the names of mixture layers."""

    router_pattern: str | None = param(None)
    """Attribute of a mixture layer that is its router."""

    expert_pattern: str | None = param(None)
    """Attribute of a mixture layer that holds its experts."""

    expert_w1: str | None = param(None)
    """Attribute of an expert that is its first (gate) matrix."""

    expert_w2: str | None = param(None)
    """Attribute of an expert that is its output matrix."""

    expert_w3: str | None = param(None)
    """Attribute of an expert that is its second (up) matrix; an explicit null means that it is part of the first."""

    num_experts_attr: str | None = param(None)
    """Attribute of the model's configuration that says how many experts there are."""

    top_k_attr: str | None = param(None)
    """Attribute of the model's configuration that says how many experts a token goes to."""

    top_k: Count | Literal["auto"] = param("auto")
    """How many experts a token goes to."""

    use_grouped_mm: bool = param(True)
    """Compute all experts of a rank in one grouped product."""

    disable_triton_grouped_mm: bool = param(False)
    """Do not use the Triton kernel for it."""

    route_norm: bool | None = param(None)
    """Make the weights of a token's experts sum to 1."""

    route_scale: float = param(1.0)
    """Factor on these weights."""

    routed_scaling_factor: float | Literal["auto"] = param("auto")
    """Factor on the sum of a token's experts."""

    score_func: Literal["auto", "softmax", "sigmoid"] = param("auto")
    """How the router's outputs become weights."""

    score_apply: Literal["auto", "pre", "post"] = param("auto")
    """Multiply an expert's input (pre) or its output (post) by its weight."""

    combine_impl: Literal["auto", "weighted_sum", "legacy_bmm"] = param("auto")
    """How a token's experts are added up."""

    num_expert_groups: Count | None = param(None)
    """Groups of experts, where a token goes to few groups. Needs `num_limited_groups`."""

    num_limited_groups: Count | None = param(None)
    """How many groups a token goes to."""

    load_balance_coeff: float | None = param(None)
    """Coefficient of load balancing without a loss; current DeepSpeed refuses every value but null."""

    has_shared_experts: bool | None = param(None)
    """The layers have experts that every token goes to."""

    shared_experts_pattern: str | None = param(None)
    """Attribute of a mixture layer that holds them."""

    shared_experts_gate_pattern: str | None = param(None)
    """Attribute of a mixture layer that is their gate."""
