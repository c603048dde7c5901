"""What it means if a run continues a checkpoint with another value of a parameter of the model.

The same weights then compute another function, or do not fit. That is an error for every parameter of the model, unless
a table of this module gives the reason why people change it on purpose, or why a different value means nothing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import cache
from typing import Any, Literal

from neoxargs.registry.declare import Parameter
from neoxargs.registry.post_training import PostTraining
from neoxargs.resolve.compare.impact import IMPACTS, Values, kind_of

#: weights: the weights belong to the old value. adapted: a model can be trained further with another value.
#: training: changes how weights are trained, not what they compute. apart: not compared.
Level = Literal["weights", "adapted", "training", "apart"]

#: Reason for a level other than `weights` -> level, and the parameters or sections.
REASONS: Mapping[str, tuple[Level, str]] = {
    "models adapt to a longer context": (
        "adapted", "rope_scaling. rotary_emb_base rope_local_base_freq rpe_max_distance"
    ),
    "attention to fewer or more tokens uses the same weights": (
        "adapted", "attention_config sparsity_config sparse_attention. sliding_window_width window_attn_skip_freq"
    ),
    "it bounds values, and weights adapt to the bound in a few steps": (
        "adapted", "final_logit_softcapping attn_logit_softcapping softmax_scale layernorm_epsilon rms_norm_epsilon "
        "rms_norm_epsilon_under_root scalenorm_epsilon"
    ),
    "kernels of other libraries compute nearly the same results": (
        "adapted", "bias_gelu_fusion te_layernorm_mlp te_mha"
    ),
    "routing to experts is often changed for finetuning and for inference": (
        "adapted", "moe_top_k moe_router_type moe_normalize_expert_weights moe_token_dropping "
        "moe_eval_capacity_factor moe_min_capacity"
    ),
    "it affects only training, or only the computation of the loss": (
        "training", "seq_length attention_dropout hidden_dropout weight_decay softmax_over_padding "
        "weight_decay_incr_style start_weight_decay end_weight_decay "
        "moe_aux_loss_coeff moe_z_loss_coeff moe_jitter_eps moe_loss_coeff moe_train_capacity_factor"
    ),
    "the weights of a checkpoint replace the initial ones": (
        "apart", "init_method output_layer_init_method init_method_std use_cpu_initialization mup_init_scale"
    ),
    "it is checked together with the frozen model or with the vocabulary": (
        "apart", "lora. soft_prompt_tuning. padded_vocab_size make_vocab_size_divisible_by"
    ),
    "it is an old name, whose replacement is compared": ("apart", "sparsity"),
    "it is a path, and a file with the same content can be elsewhere": ("apart", "base_shapes_file"),
}  # fmt: skip

#: Kinds of parameters that can change the result, but not what a run learns from a step: the model, which `level_of`
#: compares; how a run starts and ends; and what train.py does not support.
NOT_OF_STEPS = ("model", "start", "run", "not built")

#: Parameters, or beginnings of names, whose value matters to weights only with these values of another parameter.
#: Parameters that a run does not read at all are known elsewhere.
MATTER_WITH: Mapping[str, tuple[str, Container[Any]]] = {
    "max_position_embeddings": ("pos_emb", ("learned",)),
    "use_bias_in_norms": ("norm", ("layernorm", "te_layernorm")),
    "mup_": ("use_mup", (True,)),
}


def level_of(parameter: Parameter) -> Level:
    """Return what another value of a parameter means for a checkpoint."""
    if parameter.effect != "model" or IMPACTS[kind_of(parameter)] != "result" or parameter.replaced_by is not None:
        return "apart"
    if parameter.group is PostTraining:
        return "training"  # losses
    name, levels = parameter.name, _levels()
    return levels.get(name) or levels.get(f"{name.partition('.')[0]}.", "weights")


def changes_training(parameter: Parameter) -> bool:
    """Return whether another value changes what a run learns from a step, or the validation losses of its curve."""
    kind = kind_of(parameter)
    if parameter.replaced_by is not None or not parameter.to:
        return False
    if kind == "evaluation":
        return parameter.effect == "data"
    return IMPACTS[kind] == "result" and kind not in NOT_OF_STEPS


def matters(name: str, values: Values) -> bool:
    """Return whether a parameter matters to the weights of a run with these values."""
    conditions = [condition for start, condition in MATTER_WITH.items() if name.startswith(start)]
    return all(values.get(other) in allowed for other, allowed in conditions)


@cache
def _levels() -> dict[str, Level]:
    return {name: level for level, names in REASONS.values() for name in names.split()}
