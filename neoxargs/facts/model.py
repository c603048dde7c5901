"""Parameters and floating point operations of the GPT that a configuration describes, computed without building it.

A test compares the counts with the modules that `train/model` builds.
"""

from __future__ import annotations

from neoxargs.config.config import Config
from neoxargs.facts.attention import attention_weights, attention_width, head_dim, qkv_rows
from neoxargs.facts.layer_kinds import attention_layers, has_attention, layer_kind
from neoxargs.facts.mamba import MAMBA
from neoxargs.facts.recurrent import Recurrence
from neoxargs.facts.rwkv import RWKV
from neoxargs.facts.vocab import given_rows, padded_vocab_size, vocabulary_size
from neoxargs.registry.model import Mlp, Norm, Shape

#: Activations that multiply two projections, gate and value.
GATED = ("geglu", "geglu_tanh", "reglu", "swiglu", "bilinear", "glu")

#: Kind of a recurrent layer -> its sizes.
RECURRENCES: dict[str, Recurrence] = {"mamba": MAMBA, "rwkv": RWKV}

#: The epsilons of Transformer Engine's LayerNormMLP in GPT-NeoX.
TE_EPSILONS = {"layernorm_epsilon": 1e-5, "rms_norm_epsilon": 1e-8, "rms_norm_epsilon_under_root": True}
#: Parameters that, if they are above 0, make a run draw random numbers in every step.
DRAWS = ("hidden_dropout", "attention_dropout", "moe_jitter_eps")

#: Iterations of Sinkhorn's algorithm (`moe_router_type`). GPT-NeoX stops after one (or, until May 2026, three),
#: megatron-core mostly after two, because their stopping criterion shrinks with the number of tokens; the loads are
#: then far from balanced.
SINKHORN_ROUNDS = 10

#: The name of the head of a reward model, which has one output and replaces the output layer.
REWARD_HEAD = "rm_linear"


def is_reward_model(config: Config) -> bool:
    """Whether the model has a reward in place of the probabilities of tokens."""
    return config.post_training.train_impl == "rm"


def has_own_output(config: Config) -> bool:
    """Whether the output layer has a weight of its own, which it does not share with the embedding."""
    return config.embedding.no_weight_tying or is_reward_model(config)


def output_rows(config: Config, rows: int) -> int:
    """Return the rows of the output layer. rows: of the embedding."""
    return 1 if is_reward_model(config) else rows


def weights_of_layers(shape: Shape) -> list[int]:
    """Return for each layer the index of the weights that it uses: 0, 1, 2, ... unless layers share weights."""
    unique, depth = shape.num_unique_layers or shape.num_layers, shape.num_layers
    if shape.param_sharing_style == "spaced":
        return [layer * unique // depth for layer in range(depth)]
    return [layer % unique for layer in range(depth)]


def mlp_width(shape: Shape, mlp: Mlp) -> int:
    """Return the number of features between the two matrices of the MLP."""
    return width_of_mlp(shape.intermediate_size, mlp.activation, shape.mlp_multiple_of, shape.exact_mlp_width)


def width_of_mlp(intermediate_size: int, activation: str, mlp_multiple_of: int, exact_mlp_width: bool) -> int:
    """Return what `mlp_width` does, of the parameters.

    GPT-NeoX defines the intermediate_size of a gated MLP as the total width of its three matrices; gate and value have
    a third of it each. With `exact_mlp_width`, intermediate_size is the width.
    """
    if exact_mlp_width:
        return intermediate_size
    # Rounded in this order by GPT-NeoX: first 2/3, then half of it for each of gate and value, then up to a multiple.
    width = int(intermediate_size * 2 / 3) // 2 if activation in GATED else intermediate_size
    return -(-width // mlp_multiple_of) * mlp_multiple_of


def has_experts(config: Config, layer: int) -> bool:
    """Whether the feed-forward of a layer is a mixture of experts."""
    chosen = config.moe.moe_num_experts > 1 and layer % config.moe.moe_expert_interval == 0
    return chosen and has_attention(config, layer)


def layers_with_experts(config: Config) -> list[int]:
    """Return the layers whose feed-forward is a mixture of experts."""
    if config.moe.moe_num_experts <= 1:  # a search of layouts calls this very often
        return []
    return [layer for layer in range(config.shape.num_layers) if has_experts(config, layer)]


def vocabulary_rows(config: Config) -> int | None:
    """Return the rows of the embedding including padding, or None if they cannot be known without the tokenizer."""
    if given := given_rows(config):
        return given
    size = vocabulary_size(config.tokenizer.tokenizer_type, config.tokenizer.vocab_file)
    return None if size is None else rows_for(size, config)


def rows_for(tokens: int, config: Config) -> int:
    """Return the rows of the embedding including padding. tokens: size of the tokenizer's vocabulary."""
    padding = config.embedding.make_vocab_size_divisible_by, config.parallel.model_parallel_size
    return given_rows(config) or padded_vocab_size(tokens, *padding)


def tokens_at_once(logits: int, rows: int) -> int:
    """Return how many tokens the loss computes the logits of at once. logits: their limit. rows: those of this rank."""
    tokens = max(1, logits // rows)
    # Whole tiles of a GPU's matrix product.
    return tokens // 256 * 256 or tokens


def parameters(config: Config, rows: int, active: bool = False) -> int:
    """Return the trainable parameters of the model over all ranks; tied and shared weights count once.

    rows: of the embedding, as returned by `vocabulary_rows`. active: count only those experts that process a token.
    """
    shape, embedding = config.shape, config.embedding
    # In rows of hidden_size numbers, by which the sum is multiplied at the end.
    tables = rows + (output_rows(config, rows) if has_own_output(config) else 0)
    if embedding.pos_emb == "learned":
        tables += shape.max_position_embeddings + embedding.opt_pos_emb_offset
    used = weights_of_layers(shape)
    first_uses = [used.index(index) for index in set(used)]
    if config.soft_prompt.enabled:
        tables += config.soft_prompt.num_tokens
    relative = embedding.rpe_num_buckets * shape.num_attention_heads if embedding.pos_emb == "rpe" else 0
    inside = sum(matrices_of_layer(config, layer, active) + _vectors_of_layer(config, layer) for layer in first_uses)
    return tables * shape.hidden_size + relative + norm_size(config) + inside


def flops_per_token(config: Config, rows: int, length: int | None = None) -> float:
    """Return the floating point operations of forward and backward pass per token, without recomputation.

    length: of the sequences; None for `seq_length`.

    6 x parameters of the matrix products (4 x if they are frozen; adapters are not counted) + 12 x layers x heads x
    head dimension x sequence for the two products of attention (Chowdhery et al. 2022, "PaLM", appendix B). As in
    Megatron, attention is counted as if it were not causal. A recurrence counts three times, once for the forward pass.
    """
    shape, attention = config.shape, attention_layers(config)
    in_layers = sum(matrices_of_layer(config, layer, active=True) for layer in range(shape.num_layers))
    matrices = in_layers + output_rows(config, rows) * shape.hidden_size
    # 2 in the forward pass, 2 for the gradients of the inputs, and 2 for those of the weights, which a frozen model
    # lacks.
    frozen = config.lora.rank or config.soft_prompt.enabled
    scores = 12.0 * len(attention) * attention_width(shape) * (length or shape.seq_length)
    recurrent = [layer_kind(config, layer) for layer in set(range(shape.num_layers)) - set(attention)]
    recurrences = 3.0 * sum(RECURRENCES[kind].operations(config) for kind in recurrent)
    return (4.0 if frozen else 6.0) * matrices + scores + recurrences


def matrices_of_layer(config: Config, layer: int, active: bool = False) -> int:
    """Return the matrix elements of one layer: query, key, value, output, and those of the feed-forward.

    active: count only those experts that process a token.
    """
    if not has_attention(config, layer):
        return RECURRENCES[layer_kind(config, layer)].matrices(config)
    hidden = config.shape.hidden_size
    attention = hidden * (qkv_rows(config) + attention_width(config.shape))
    network = hidden * (mlp_rows(config) + mlp_width(config.shape, config.mlp))
    if not has_experts(config, layer):
        return attention + network
    moe, dense = config.moe, has_dense_network(config)
    networks = (moe.moe_top_k if active else moe.moe_num_experts) + moe.moe_num_shared_experts + dense
    # The router has a row for each expert.
    return attention + networks * network + hidden * (moe.moe_num_experts + 2 * dense)


def has_dense_network(config: Config) -> bool:
    """Whether the layers with experts have a dense network in parallel, with two rows that weigh both."""
    return config.moe.moe_type == "deepspeed" and config.moe.moe_use_residual


def _vectors_of_layer(config: Config, layer: int) -> int:
    """Return the elements of one layer's norms and biases, and whatever else is not the matrix of a product."""
    if not has_attention(config, layer):
        recurrence = RECURRENCES[layer_kind(config, layer)]
        return recurrence.others(config) + recurrence.norms(config) * norm_size(config)
    biases = mlp_rows(config) + config.shape.hidden_size if config.mlp.use_bias_in_mlp else 0
    if has_experts(config, layer):
        biases = biases + 2 if has_dense_network(config) else 0
    biases += sum(weight.numel for weight in attention_weights(config) if not weight.multiplies)
    return biases + norms_of_block(config) * norm_size(config) + head_norms_size(config)


def compiles_cross_entropy(config: Config) -> bool:
    """Whether the cross entropy is compiled on GPUs; tensor parallel ranks communicate between its kernels."""
    one_rank = config.parallel.model_parallel_size == 1
    return config.fusion.compile_layers and one_rank and not config.precision.fp16_lm_cross_entropy


def mlp_rows(config: Config) -> int:
    """Return the rows of the MLP's first matrix."""
    return mlp_width(config.shape, config.mlp) * (2 if config.mlp.activation in GATED else 1)


def norm_size(config: Config, width: int | None = None) -> int:
    """Return the parameters of one norm; `width` is the normalised dimension, by default hidden_size."""
    width = width or config.shape.hidden_size
    sizes = {"non_parametric_layernorm": 0, "scalenorm": 1, "rmsnorm": width}
    return sizes.get(config.norm.norm, width * (2 if config.norm.use_bias_in_norms else 1))


def head_norms(norm: Norm) -> str:
    """Return what each norm of queries and keys normalises together: a `head`, or `all_heads`; "" without them."""
    return norm.qk_layernorm_scope if norm.use_qk_layernorm else ""


def head_norms_size(config: Config) -> int:
    """Return the parameters of a layer's norms of queries and keys."""
    kind, shape, width = head_norms(config.norm), config.shape, head_dim(config.shape)
    if kind == "all_heads":
        return width * (shape.num_attention_heads + shape.num_kv_heads)
    return 2 * norm_size(config, width) if kind else 0


def norms_before(norm: Norm) -> bool:
    """Return whether norms normalise what attention and MLP read."""
    return norm.norm_placement in ("before", "both")


def norms_after(norm: Norm) -> bool:
    """Return whether norms normalise what attention and MLP add to the residual stream."""
    return norm.norm_placement in ("after", "both")


def mlp_norm_options(config: Config) -> Norm:
    """Return the options of the norm before the MLP; that of Transformer Engine's LayerNormMLP has fixed epsilons."""
    if not config.transformer_engine.te_layernorm_mlp:
        return config.norm
    return Norm(**vars(config.norm) | TE_EPSILONS)


def norms_of_block(config: Config) -> int:
    """Return the number of norms per layer with attention; with gpt_j_tied, attention and MLP share one."""
    if config.attention.gpt_j_residual and config.attention.gpt_j_tied:
        return 1
    return 2 * norms_before(config.norm) + 2 * norms_after(config.norm)
