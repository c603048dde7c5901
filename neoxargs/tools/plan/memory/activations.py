"""What the forward pass keeps for the backward pass, in bytes for one micro batch.

Counted tensor by tensor as `train/model` computes, after Korthikanti et al. 2022 ("Reducing Activation Recomputation
in Large Transformer Models", arXiv:2205.05198, section 4): with batch b, sequence s, hidden h and 2 bytes a number,
their layer without attention scores and with dropout keeps 34 s b h bytes; ours keeps the same 16 numbers of 2 bytes
and two masks of one. Sequence parallelism divides what lies outside of attention and feed-forward. Attention scores
are never stored: flash attention (Dao et al. 2022, arXiv:2205.14135) keeps one number for each query instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout
from neoxargs.sizes.model import GATED, mlp_rows, mlp_width, norms_of_block
from neoxargs.tools.plan.assumptions import HALF, SINGLE
from neoxargs.tools.plan.memory.stages import Stage

#: Gated activations whose gate goes through a nonlinearity with a result of its own to keep.
NONLINEAR_GATES = tuple(name for name in GATED if name != "bilinear")
#: Positions that reach attention as numbers added to the scores.
BIASED = ("alibi", "rpe")
#: Kinds of attention that see all tokens before.
PLAIN = ("global", "flash")


@dataclass(frozen=True)
class ActivationSizes:
    """The tensors of one micro batch on one rank, in bytes."""

    config: Config
    kind: str = "cuda"

    @property
    def number_size(self) -> int:
        """Bytes of one number of an activation."""
        return SINGLE if self.config.precision.precision == "fp32" else HALF

    @property
    def tensor(self) -> int:
        return self.config.parallel.model_parallel_size

    @property
    def tokens(self) -> int:
        return self.config.batch.train_micro_batch_size_per_gpu * self.config.shape.seq_length

    @property
    def hidden(self) -> int:
        """The residual stream: (batch, seq, hidden)."""
        return self.tokens * self.config.shape.hidden_size * self.number_size

    @property
    def stream(self) -> int:
        """What a rank keeps of the residual stream: with sequence parallelism its share of the tokens."""
        return self.hidden // self.tensor if self.config.parallel.sequence_parallel else self.hidden

    @property
    def mask(self) -> int:
        """A dropout mask of the residual stream: one byte a number on a GPU, a factor of full size on a CPU."""
        if not self.config.regularization.hidden_dropout:
            return 0
        return self.stream // self.number_size * (1 if self.kind == "cuda" else self.number_size)


def block(sizes: ActivationSizes) -> int:
    """One layer, its input included."""
    config = sizes.config
    norms = norms_of_block(config)
    side_by_side = config.attention.gpt_j_residual
    streams = 1 if side_by_side else 2  # what the norms read: the input, and its sum with attention
    normed = norms * (sizes.stream + _inside_norm(sizes))
    return streams * sizes.stream + normed + 2 * sizes.mask + _attention(sizes) + _mlp(sizes)


def checkpoint(sizes: ActivationSizes) -> int:
    """What is kept instead of the layers between two checkpoints: the residual stream that enters them."""
    if sizes.config.recompute.checkpoint_in_cpu:
        return 0
    return sizes.hidden // sizes.tensor if sizes.config.recompute.partition_activations else sizes.stream


def stored(sizes: ActivationSizes, stage: Stage) -> int:
    """Bytes of one micro batch between its forward and its backward pass on this stage."""
    checkpoints = _checkpoints(sizes.config, stage)
    total = checkpoints * checkpoint(sizes) if checkpoints else len(stage.layers) * block(sizes)
    return total + _distances(sizes.config, stage) + _ends(sizes, stage, recomputed=bool(checkpoints))


def _distances(config: Config, stage: Stage) -> int:
    """Which bucket of `rpe` each pair of tokens belongs to: one table of 8 bytes a pair, whatever the layers."""
    return 8 * config.shape.seq_length**2 if config.embedding.pos_emb == "rpe" and stage.layers else 0


def recomputed(sizes: ActivationSizes, stage: Stage) -> int:
    """Bytes that the backward pass recomputes at one time."""
    every = sizes.config.recompute.checkpoint_num_layers
    return min(every, len(stage.layers)) * block(sizes) if _checkpoints(sizes.config, stage) else 0


def transient(sizes: ActivationSizes) -> int:
    """Gradients that pass through one layer: of the widest tensor and of what it was computed from."""
    config = sizes.config
    wide = mlp_rows(config)
    return 2 * sizes.tokens * wide // sizes.tensor * sizes.number_size + 2 * sizes.hidden


def micro_batches_in_flight(config: Config, stage: Stage) -> int:
    """Micro batches that a stage has begun and not finished (1F1B: Narayanan et al. 2019, PipeDream)."""
    return max(1, min(Layout.of(config).pipe - stage.index, config.batch.gradient_accumulation_steps))


def _checkpoints(config: Config, stage: Stage) -> int:
    if not config.recompute.checkpoint_activations:
        return 0
    return -(-len(stage.layers) // config.recompute.checkpoint_num_layers)


def _inside_norm(sizes: ActivationSizes) -> int:
    """Beside its input: mean and deviation of each token; where torch has no fused kernel, the vectors it scales.

    RMSNorm without a kernel computes 16-bit numbers in fp32.
    """
    unfused = ("scalenorm", "rmsnorm") if sizes.kind == "cpu" else ("scalenorm",)
    name = sizes.config.norm.norm
    if name == "rmsnorm" and sizes.kind == "cpu" and sizes.number_size == HALF:
        return 3 * sizes.stream + sizes.tokens * SINGLE
    if name in unfused:
        return sizes.stream + sizes.tokens * SINGLE
    return _statistics(sizes.config) * sizes.tokens * SINGLE


def _attention(sizes: ActivationSizes) -> int:
    """The fused projection, the gathered values.

    Rotated queries and keys are new tensors beside those, and what attention then gathers lies head by head, so that
    its copy, token by token, is kept too.
    """
    config, tensor = sizes.config, sizes.tensor
    shape, queries = config.shape, sizes.hidden // tensor
    shared = shape.num_attention_heads // shape.num_kv_heads
    keys = queries // shared
    kept = queries + 2 * keys + queries
    rotary, normed = config.embedding.pos_emb == "rotary", config.norm.use_qk_layernorm
    if rotary or normed:
        kept += queries + keys + queries
    if shared > 1 and not rotary:
        kept += queries  # grouped queries are copied next to each other
    heads = shape.num_attention_heads // tensor
    if normed:  # mean and deviation of each head's vector
        kept += _statistics(config) * (heads + heads // shared) * sizes.tokens * SINGLE
    return kept + heads * sizes.tokens * SINGLE + _scores(sizes, heads)


def _statistics(config: Config) -> int:
    """Numbers that a norm keeps of each vector."""
    return 1 if config.norm.norm == "rmsnorm" else 2


def _scores(sizes: ActivationSizes, heads: int) -> int:
    """What depends on the square of the sequence: a bias of the positions, or attention computed step by step.

    On a CPU torch has no fused attention with dropout: it keeps the probabilities, the mask and their product; nor
    with anything but the order of tokens to decide who sees whom: it keeps the probabilities. On a GPU it keeps the
    bias that it was given, one for all samples.
    """
    config = sizes.config
    square = heads * config.shape.seq_length**2
    chosen = config.shape.seq_length**2 if config.embedding.pos_emb == "rpe" else 0  # one byte: who sees whom
    batch = config.batch.train_micro_batch_size_per_gpu
    dropout = config.regularization.attention_dropout
    if sizes.kind == "cpu" and dropout:
        return batch * square * (3 * sizes.number_size)
    if sizes.number_size == HALF and _unfused_softmax(config):
        return batch * square * (SINGLE + HALF + (1 if dropout else 0)) + chosen
    if sizes.kind == "cpu":
        return round(_masked(config) * (batch * square * sizes.number_size - heads * sizes.tokens * SINGLE)) + chosen
    return chosen + (square * sizes.number_size if config.embedding.pos_emb in BIASED else 0)


def _masked(config: Config) -> float:
    """The share of layers in which more than the order of tokens decides who sees whom."""
    attention = config.attention
    if config.embedding.pos_emb in BIASED or attention.sliding_window_width or config.data.reset_attention_mask:
        return 1.0
    kinds = attention.__dict__.get("attention_config") or ["global"]
    return sum(kind not in PLAIN for kind in kinds) / len(kinds)


def _unfused_softmax(config: Config) -> bool:
    """Softmax in fp32 is asked for and no fused kernel is."""
    wanted = config.attention.attention_softmax_in_fp32 or config.attention.apply_query_key_layer_scaling
    if config.embedding.pos_emb in BIASED:
        return wanted and not config.fusion.scaled_masked_softmax_fusion
    return wanted and not config.fusion.scaled_upper_triang_masked_softmax_fusion


def _mlp(sizes: ActivationSizes) -> int:
    """Before and after the activation; with a gate also the gate once it has been through its function."""
    config = sizes.config
    wide = sizes.tokens * mlp_width(config.shape, config.mlp) // sizes.tensor * sizes.number_size
    if config.mlp.activation not in GATED:
        return 2 * wide
    return (4 if config.mlp.activation in NONLINEAR_GATES else 3) * wide


def _ends(sizes: ActivationSizes, stage: Stage, recomputed: bool) -> int:
    """The embedding's tokens and dropout, and the final norm's input."""
    first = sizes.tokens * 8 + (0 if recomputed and _pipeline(sizes) else sizes.mask) if stage.first else 0
    if stage.first and recomputed and _pipeline(sizes) and sizes.mask:
        first += checkpoint(sizes)  # positions are a layer of the pipeline, with a checkpoint if there is what to keep
    if not stage.last:
        return first
    return first + sizes.stream + (0 if recomputed and _pipeline(sizes) else _inside_norm(sizes))


def _pipeline(sizes: ActivationSizes) -> bool:
    return sizes.config.parallel.pipe_parallel_size >= 1
