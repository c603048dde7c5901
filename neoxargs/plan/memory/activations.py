"""Activations: bytes that the forward pass of one micro batch stores for the backward pass.

Counted tensor by tensor as `train/model` computes, after Korthikanti et al. 2022 ("Reducing Activation Recomputation
in Large Transformer Models", arXiv:2205.05198, section 4): with batch b, sequence s, hidden h and 2 bytes per number,
their layer with dropout and without attention scores stores 34 s b h bytes; ours stores the same: 16 numbers of 2 bytes
and two dropout masks of 1. Sequence parallelism shards what is outside of attention and feed-forward. Attention scores
are not stored: flash attention (Dao et al. 2022, arXiv:2205.14135) stores one fp32 number per query and head instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import has_attention, layer_kind
from neoxargs.facts.layout import Layout
from neoxargs.facts.lora import targets
from neoxargs.facts.model import GATED, mlp_width, norms_after, norms_of_block
from neoxargs.plan.given.assumptions import SINGLE
from neoxargs.plan.memory import experts, recurrent
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.attention import alibi_number, attention, backward_in_ring, unfused_layers
from neoxargs.plan.memory.norms import inside_norm, stores_input_only
from neoxargs.plan.memory.stages import Stage

#: Gated activations that also store the output of the gate's nonlinearity.
NONLINEAR_GATES = tuple(name for name in GATED if name != "bilinear")


def recomputed_groups(config: Config, layers: int) -> int:
    """Return the number of groups of layers that the backward pass recomputes; 0 without recomputation."""
    if config.recompute.checkpoint_activations is not True:  # selective recomputes no matrix products
        return 0
    return -(-layers // config.recompute.checkpoint_num_layers)


def stops_early(config: Config) -> bool:
    """Whether recomputation of a group stops at the last tensor that its backward pass reads.

    torch's non-reentrant checkpointing does; ZeRO-3 and DeepSpeed's own checkpointing recompute everything.
    """
    options = config.recompute
    own = options.partition_activations or options.contiguous_checkpointing or options.checkpoint_in_cpu
    return config.zero_optimization.stage < 3 and (own or not options.deepspeed_activation_checkpointing)


def is_selective(config: Config) -> bool:
    """Whether norms, rotations and activation functions are recomputed (train/ops/selective.py)."""
    return config.recompute.checkpoint_activations == "selective"


def blocks(sizes: ActivationSizes, layers: Iterable[int]) -> list[int]:
    """Bytes that each of these layers stores, its input included. Layers of the same kind store the same."""
    kinds = [layer_kind(sizes.config, layer) for layer in layers]
    memory = {kind: recurrent.MEMORY.get(kind) for kind in set(kinds)}
    selective = is_selective(sizes.config)
    of_kind = {kind: m.stored(sizes) if m else _attention_block(sizes, selective) for kind, m in memory.items()}
    return [of_kind[kind] for kind in kinds]


def selectively_recomputed(sizes: ActivationSizes) -> int:
    """Bytes of a layer with attention that selective recomputation computes again in the backward pass."""
    return _attention_block(sizes, False) - _attention_block(sizes, is_selective(sizes.config))


@lru_cache(maxsize=2)  # of one plan, for all layers of all stages
def _attention_block(sizes: ActivationSizes, selective: bool) -> int:
    config = sizes.config
    norms, after = norms_of_block(config), 2 * norms_after(config.norm)
    parallel = config.attention.gpt_j_residual
    streams = 1 if parallel else 2  # what attention and feed-forward, or their norms, read
    # outputs of the norms before them, and inputs of those after them, which are not recomputed
    normed = norms * inside_norm(sizes) + (after if selective else norms) * sizes.stream
    networks = attention(sizes, selective) + _mlp(sizes, selective) + _adapters(sizes)
    return streams * sizes.stream + normed + 2 * sizes.mask + networks


def _adapters(sizes: ActivationSizes) -> int:
    """Bytes that the adapters of a layer store: `rank` numbers per token, and with dropout their input and its mask.

    Their input without dropout is what the frozen matrix beside them reads.
    """
    options, total = sizes.config.lora, 0
    for target in targets(sizes.config):
        inputs = target.inputs // (sizes.tensor if target.cuts_inputs else 1)
        dropped = inputs * (sizes.number_size + 1) if options.dropout else 0
        total += len(target.adapted) * sizes.tokens * (options.rank * sizes.number_size + dropped)
    return total


def checkpoint(sizes: ActivationSizes) -> int:
    """Bytes of one activation checkpoint: the residual stream that enters the recomputed layers."""
    if sizes.config.recompute.checkpoint_in_cpu:
        return 0
    return sizes.hidden // sizes.tensor if sizes.config.recompute.partition_activations else sizes.stream


def stored(sizes: ActivationSizes, stage: Stage) -> int:
    """Bytes that one micro batch occupies between its forward and its backward pass on this stage."""
    checkpoints = recomputed_groups(sizes.config, len(stage.layers))
    total = checkpoints * checkpoint(sizes) if checkpoints else sum(blocks(sizes, stage.layers))
    return total + _tables(sizes, stage) + _first_and_last_layers(sizes, stage, recomputed=bool(checkpoints))


def _tables(sizes: ActivationSizes, stage: Stage) -> int:
    """What all layers of a stage share: for each pair of tokens the int64 bucket of `rpe`, or the bias of ALiBi."""
    config, kind = sizes.config, sizes.config.embedding.pos_emb
    square = config.shape.seq_length**2
    if kind == "rpe" and stage.layers:
        return 8 * square
    if kind == "alibi" and stage.layers and sizes.kind == "cuda":
        return sizes.heads * square * alibi_number(sizes)
    return 0


def recomputed(sizes: ActivationSizes, stage: Stage) -> int:
    """Bytes of the activations that the backward pass recomputes at a time."""
    if is_selective(sizes.config):
        return _mlp(sizes, False) - _mlp(sizes, True) if _has_attention(sizes, stage) else 0
    if not recomputed_groups(sizes.config, len(stage.layers)):
        return 0
    size, layers = sizes.config.recompute.checkpoint_num_layers, blocks(sizes, stage.layers)
    groups = [sum(layers[start : start + size]) for start in range(0, len(layers), size)]
    return max(groups, default=sizes.stream) - sizes.stream  # the input of the first of them is the checkpoint


def _has_attention(sizes: ActivationSizes, stage: Stage) -> bool:
    return any(has_attention(sizes.config, layer) for layer in stage.layers)


def transient(sizes: ActivationSizes, stage: Stage) -> int:
    """Bytes in addition to what the layers of a stage store, when the backward pass of one of them needs the most."""
    of_recurrent = recurrent.transient(sizes, stage.layers)
    return max(of_recurrent, _attention_transient(sizes)) if _has_attention(sizes, stage) else of_recurrent


@lru_cache(maxsize=1)  # of one plan, for all stages
def _attention_transient(sizes: ActivationSizes) -> int:
    """Bytes in addition to what a layer with attention stores, when its backward pass needs the most.

    That is either at the end of recomputation, or in feed-forward, when the gradient of the activation's output
    replaces what the layer after it stored, and that of its input comes on top: of both halves if it is gated. Unfused
    attention holds gradients of the probabilities and of the scores instead, where they are more. A ring needs its own
    when what feed-forward stored is free again.
    """
    config = sizes.config
    networks = max(1.0, config.moe.moe_top_k * experts.imbalance(config, sizes.assumed)) if experts.share(config) else 1
    wide = int(networks * sizes.tokens * mlp_width(config.shape, config.mlp) // sizes.tensor * sizes.number_size)
    gathered = sizes.hidden if config.parallel.sequence_parallel else 0  # the gradient of the layer's output
    gradients = (2 if config.mlp.activation in GATED else 1) * wide + gathered
    if unfused_layers(sizes):
        heads = config.shape.num_attention_heads // sizes.tensor
        gradients = max(gradients, 2 * heads * sizes.tokens * config.shape.seq_length * sizes.number_size)
    if stores_input_only(config):  # input, gradient and result of the norm in fp32, its output and gradient before
        gradients = max(gradients, (3 * SINGLE // sizes.number_size + 2) * sizes.stream)
    gradients = max(gradients, backward_in_ring(sizes) - _free_for_attention(sizes))
    if config.recompute.checkpoint_activations is not True:
        return gradients
    output = 0 if stops_early(config) else sizes.stream  # it exists until the backward pass of its layers is over
    return max(output + gradients, _end_of_recomputation(sizes))


def _free_for_attention(sizes: ActivationSizes) -> int:
    """Bytes of feed-forward and its norm that are free again when the backward pass reaches attention.

    Those of the norm are none if it is recomputed by itself, or replaced by a gradient that parallel branches share.
    """
    recompute = sizes.config.recompute.checkpoint_activations
    normed = recompute != "selective" and not (recompute and sizes.config.attention.gpt_j_residual)
    return _mlp(sizes, False) + sizes.mask + (sizes.stream if normed else 0)


def at_the_end_of_a_layer(sizes: ActivationSizes, stage: Stage) -> int:
    """Bytes besides what a layer stores when its forward pass ends: with `selective`, outputs are held until then.

    The layer is about to sum what leaves attention and feed-forward; tensor parallel ranks of a parallel residual sum
    both first. Otherwise, they add a bias to the sum over the ranks, which is a new tensor, as is that with dropout.
    """
    config, several = sizes.config, sizes.tensor > 1
    if not (is_selective(config) and _has_attention(sizes, stage)):
        return 0
    parallel, dropped = config.attention.gpt_j_residual, bool(config.regularization.hidden_dropout)
    summed = (1 + several) if parallel else 0
    biased = several and not parallel and config.mlp.use_bias_in_mlp
    return selectively_recomputed(sizes) + (summed + 1 + (dropped or biased)) * sizes.hidden


def _end_of_recomputation(sizes: ActivationSizes) -> int:
    """Bytes that the last operations of a recomputed layer need: what leaves feed-forward, and what it is added to."""
    config = sizes.config
    attended = sizes.hidden if config.attention.gpt_j_residual else 0  # otherwise a norm stores it
    dropped = sizes.hidden if config.regularization.hidden_dropout else 0
    if stops_early(config):
        return attended + 2 * dropped
    return attended + dropped + sizes.hidden + (sizes.hidden if config.parallel.sequence_parallel else sizes.stream)


def micro_batches_in_flight(config: Config, stage: Stage) -> int:
    """Micro batches between their forward and backward pass on a stage (1F1B: Narayanan et al. 2019, PipeDream)."""
    return max(1, min(Layout.of(config).pipe - stage.index, config.batch.gradient_accumulation_steps))


@lru_cache(maxsize=2)  # of one plan, for all stages
def _mlp(sizes: ActivationSizes, selective: bool) -> int:
    """Bytes that feed-forward stores: input and output of the activation; only its input if `selective`.

    If gated, also the linear half of the input and, unless the gate is linear, the activated gate. With experts, this
    is so for every network that a token passes through.
    """
    config, activation = sizes.config, sizes.config.mlp.activation
    width = mlp_width(config.shape, config.mlp) // sizes.tensor
    numbers = int(sizes.tokens * width * experts.networks(config, sizes.assumed))
    wide = numbers * sizes.number_size
    if sizes.assumed.activation_memory >= 0:
        stored = int(numbers * sizes.assumed.activation_memory)
    elif selective:
        stored = (2 if activation in GATED else 1) * wide
    elif activation in GATED:
        stored = (4 if activation in NONLINEAR_GATES else 3) * wide
    else:
        stored = 2 * wide
    if not experts.share(config):
        return stored
    return stored + experts.stored(config, sizes.tokens, sizes.number_size, sizes.assumed)


def _first_and_last_layers(sizes: ActivationSizes, stage: Stage, recomputed: bool) -> int:
    """Bytes of the first stage's token ids (int64) and embedding dropout, and of the last stage's final norm."""
    ids = 8 * sizes.tokens * sizes.context  # of all positions
    first = ids + (0 if recomputed and _uses_pipeline_engine(sizes) else sizes.mask) if stage.first else 0
    if stage.first and recomputed and _uses_pipeline_engine(sizes) and _keeps_embedding(sizes):
        first += checkpoint(sizes)  # the position layer of the pipeline is checkpointed as well
    if not stage.last:
        return first
    return first + sizes.stream + (0 if recomputed and _uses_pipeline_engine(sizes) else inside_norm(sizes))


def _keeps_embedding(sizes: ActivationSizes) -> bool:
    """Whether the checkpoint of the position layer is a tensor of its own: what it adds to is no longer needed."""
    adds = sizes.config.embedding.pos_emb in ("learned", "sinusoidal")
    return bool(sizes.mask) or (adds and not stops_early(sizes.config))


def at_the_loss(sizes: ActivationSizes, stage: Stage) -> int:
    """Bytes of hidden states on the last stage while the loss is computed: its input, and what DeepSpeed still keeps.

    DeepSpeed's pipeline engine keeps the loss of the micro batch before, with whose graph goes the stage's input.
    """
    if not stage.last:
        return 0
    gathered = sizes.hidden if sizes.config.parallel.sequence_parallel else 0
    before = _outputs_before(sizes) * (1 if stage.first else 2)
    return gathered + sizes.stream + before


def kept_output(sizes: ActivationSizes, stage: Stage) -> int:
    """Bytes of the loss's input on the last stage of a pipeline, of this micro batch and of the one before."""
    return sizes.stream + _outputs_before(sizes) if stage.last and _uses_pipeline_engine(sizes) else 0


def _outputs_before(sizes: ActivationSizes) -> int:
    """The loss's input of the micro batch before, in the second of DeepSpeed's two buffers."""
    several = sizes.config.batch.gradient_accumulation_steps > 1
    return sizes.stream if several and _uses_pipeline_engine(sizes) else 0


def _uses_pipeline_engine(sizes: ActivationSizes) -> bool:
    return sizes.config.parallel.pipe_parallel_size >= 1
