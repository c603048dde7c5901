"""Causal self-attention over the heads of this tensor parallel rank.

The rows of the fused query, key and value weight are ordered by group: a group's query heads, its key head, its value
head. A contiguous slice of rows is therefore a set of complete groups, and the weight can be partitioned over any
tensor parallel size that divides `num_kv_heads`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neoxargs.base.record import replace
from neoxargs.config.config import Config
from neoxargs.facts.attention import ScoreRule, attention_width, has_qkv_bias, head_dim, layer_window
from neoxargs.facts.attention_kernels import Kernel, asked_of_kernel, choose
from neoxargs.facts.data import masks_documents, resets_positions
from neoxargs.facts.model import head_norms
from neoxargs.train.model import scales
from neoxargs.train.model.bias import RelativeBias, alibi, local_slopes
from neoxargs.train.model.cache import Cache
from neoxargs.train.model.documents import document_lengths, positions_in_document, same_document
from neoxargs.train.model.norm import AllHeadsNorm, norm
from neoxargs.train.model.rotary import Rotation
from neoxargs.train.model.scores import Scores
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.chunks import Chunks
from neoxargs.train.ops.mask_rule import MaskRule
from neoxargs.train.ops.ring import ring_attention
from neoxargs.train.ops.rotary import Angles, rotate_heads
from neoxargs.train.ops.sdpa import place, shared_causal_mask
from neoxargs.train.ops.sparsity import layer_pattern, token_mask, window_mask
from neoxargs.train.ops.tables import Tables
from neoxargs.train.parallel.communicate import heads_to_positions, positions_to_heads
from neoxargs.train.parallel.init import initializer
from neoxargs.train.parallel.layers import Weights


class SelfAttention(nn.Module):
    """Attention with its input and output projections: hidden_BSD -> update_BSD.

    A group is a key and value head with the query heads that share it. N and K count the heads of this rank; with
    sequence parallelism S is a shard before and after the projections. With context parallelism, all ranks' positions
    meet between the projections, where each rank has its share of these heads. layer: its index in the model, from 0.
    partial: return this rank's summand, as of `Weights.row`.
    """

    def __init__(
        self,
        config: Config,
        weights: Weights,
        shared: Shared,
        layer: int = 0,
        relative: RelativeBias | None = None,
        partial: bool = False,
    ) -> None:
        super().__init__()
        shape, embedding, attention, init = config.shape, config.embedding, config.attention, config.init
        self.recompute = shared.recompute
        self.head_dim = head_dim(shape)
        queries_per_group = shape.num_attention_heads // shape.num_kv_heads
        #: Groups that the projection of this tensor parallel rank computes.
        self.projected = projected = shape.num_kv_heads // weights.ranks.tensor.size
        #: Context parallel ranks that exchange heads, and those around which keys and values go.
        self.context, self.ring = weights.ranks.context_heads, weights.ranks.context_ring
        self.attended, parts = weights.ranks.attended, self.context.size
        #: Parts of a group on as many ranks, each with a copy of its key and value head.
        self.copies = parts // math.gcd(projected, parts)
        self.queries_per_group = queries_per_group // self.copies
        self.local_groups = projected * self.copies // parts
        self.exchanges_heads = parts > 1
        self.dropout = config.regularization.attention_dropout
        self.scale = scales.attention_scale(config)
        self.rotation = Rotation.of(config, layer)
        self.rope_fusion = config.fusion.rope_fusion
        self.relative = relative
        self.seq_length = shape.seq_length
        rule = MaskRule(
            layer_pattern(config, layer, weights.seed),
            layer_window(attention, layer),
            local_slopes(shape.num_attention_heads, weights.ranks.heads) if embedding.pos_emb == "alibi" else (),
            weights.ranks.heads,
        )
        self.scores = Scores(config, weights.at("scores"), layer, rule, shared.tables)
        self.masks = Masks(rule, relative, self.scores.rule, shared.tables)
        self.reset_positions, self.reset_mask = resets_positions(config.data), masks_documents(config.data)
        bias = attention.use_bias_in_attn_linear
        init_in = initializer(init.init_method, init, shape)
        init_out = initializer(init.output_layer_init_method, init, shape)
        rows = shape.num_kv_heads * (queries_per_group + 2) * self.head_dim
        qkv_bias = has_qkv_bias(attention)
        self.query_key_value = weights.column("query_key_value", shape.hidden_size, rows, init_in, qkv_bias)
        self.dense = weights.row("dense", attention_width(shape), shape.hidden_size, init_out, bias, partial)
        self.norms: nn.ModuleList | None = None
        self.over_all_heads = head_norms(config.norm) == "all_heads"
        if head_norms(config.norm):
            counts = enumerate((queries_per_group, 1))
            self.norms = nn.ModuleList(
                AllHeadsNorm((projected, count, self.head_dim), config.norm, weights.at(f"norms.{number}"))
                if self.over_all_heads
                else norm(self.head_dim, config.norm, weights.ranks.tensor)
                for number, count in counts
            )
        self.asked = asked_of_kernel(config, layer)
        #: Whether `Scores` always computes this layer: no other kernel is asked for, or better.
        self.is_plain = self.asked.backend not in ("flex", "varlen") and self.asked.words in ([], ["documents"])
        self.kernels: dict[tuple[object, ...], Kernel] = {}
        #: Set during text generation only.
        self.cache: Cache | None = None
        #: `_attend` outside of compiled graphs, where these layers need it.
        self.attend_outside: Callable[..., Tensor] | None = None

    def forward(self, hidden_BSD: Tensor, starts_BS: Tensor | None = None) -> Tensor:
        """starts_BS: the position where each token's document begins; None if no layer needs it."""
        mixed = self.query_key_value(hidden_BSD)
        if self.exchanges_heads:
            mixed = self._of_all_positions(mixed)
        query_BNSH, key_BKCH, value_BKCH = self._heads(mixed, starts_BS)
        if self.cache is not None:
            key_BKCH, value_BKCH = self.cache.add(key_BKCH, value_BKCH)
        dropout = self.dropout if self.training else 0.0
        kernel = self.attend_outside or self._attend
        context_BNSH = kernel(query_BNSH, key_BKCH, value_BKCH, starts_BS if self.reset_mask else None, dropout)
        if self.exchanges_heads:
            context_BSNH = heads_to_positions(context_BNSH.transpose(1, 2), self.context)
            return self.dense(context_BSNH.flatten(2))  # type: ignore[no-any-return]
        return self.dense(self.recompute(_by_token, context_BNSH))  # type: ignore[no-any-return]

    def _of_all_positions(self, mixed: Tensor) -> Tensor:
        """Return `mixed` of all positions and this context parallel rank's heads, from that of its positions."""
        mixed_BSKGH = mixed.unflatten(-1, (self.projected, -1, self.head_dim))
        if self.over_all_heads or self.copies > 1:
            queries = mixed_BSKGH.shape[3] - 2
            query_BSKGH, key_BSKGH, value_BSKGH = mixed_BSKGH.split((queries, 1, 1), dim=3)
            if self.norms is not None and self.over_all_heads:  # while all heads are here
                query_BSKGH, key_BSKGH = self.norms[0](query_BSKGH), self.norms[1](key_BSKGH)
            # K x copies groups, of which each has a part of the queries.
            query_BSKGH = query_BSKGH.unflatten(3, (self.copies, -1)).flatten(2, 3)
            shared = (x.repeat_interleave(self.copies, dim=2) for x in (key_BSKGH, value_BSKGH))
            mixed_BSKGH = torch.cat((query_BSKGH, *shared), dim=3)
        return positions_to_heads(mixed_BSKGH, self.context).flatten(2)

    def _heads(self, mixed: Tensor, starts_BS: Tensor | None) -> tuple[Tensor, ...]:
        """Return query_BNSH, key_BKSH and value_BKSH. mixed: what the projection has computed, (B, S, K x G x H).

        Selective recomputation keeps `mixed`, or what `rotate_heads` makes of it, and computes the rest again.
        """
        mixed_BSKGH = mixed.unflatten(-1, (self.local_groups, self.queries_per_group + 2, self.head_dim))
        angles = self._angles(self.rotation, starts_BS, mixed.shape[1], mixed.device) if self.rotation else None
        counts = (self.queries_per_group, 1, 1)
        # Those over all heads have run before ranks exchanged heads.
        norms = None if self.over_all_heads and self.exchanges_heads else self.norms
        if angles is not None and norms is None:
            return rotate_heads(mixed_BSKGH, angles, counts, self.scale, self._fuses_rotation)
        # One split: its backward pass is one concatenation, where three slices would each fill a tensor with zeros.
        query_BSKGH, key_BSKGH, value_BSKGH = mixed_BSKGH.split(counts, dim=3)
        query_norm, key_norm = norms if norms is not None else (None, None)
        if query_norm and key_norm and self.over_all_heads:  # they communicate, which is not done again
            query_BSKGH, key_BSKGH = query_norm(query_BSKGH), key_norm(key_BSKGH)
            query_norm = key_norm = None
        query_BNSH = self.recompute(lambda x: self._prepared(x, query_norm, self.scale, angles), query_BSKGH)
        key_BKSH = self.recompute(lambda x: self._prepared(x, key_norm, 1.0, angles), key_BSKGH)
        return query_BNSH, key_BKSH, _by_head(value_BSKGH)

    def _angles(self, rotation: Rotation, starts_BS: Tensor | None, seq: int, device: torch.device) -> Angles:
        """Return the cosines and sines that `rotate_heads` takes, for the tokens of this pass."""
        cache = self.cache
        if cache is not None:
            positions, bound, length = cache.positions, cache.capacity, max(seq, cache.length)
        else:
            positions = positions_in_document(starts_BS) if starts_BS is not None and self.reset_positions else None
            bound = length = seq
            if self.ring.size > 1:
                bound = length = seq * self.ring.size
                positions = self._own_positions(seq, device) if positions is None else self.attended.of(positions)
            if starts_BS is not None and positions is not None and self.reset_positions and rotation.depends_on_length:
                return self.masks.tables.derived(
                    ("angles by length", rotation.name),
                    starts_BS,
                    lambda: rotation.angles_at(positions, self.attended.of(document_lengths(starts_BS))),
                )
        cosine, sine = rotation.angles(bound, length, device, self.masks.tables)
        if positions is None:
            return cosine[:seq], sine[:seq]
        if self.ring.size > 1:  # the same for all layers
            source = positions if starts_BS is None else starts_BS
            key = ("own angles", rotation.name)
            return self.masks.tables.derived(key, source, lambda: (cosine[positions], sine[positions]))
        if cache is None:
            return cosine[positions], sine[positions]
        return cache.once(rotation.name, lambda: (cosine[positions], sine[positions]))

    def _own_positions(self, seq: int, device: torch.device) -> Tensor:
        """Return the positions of this rank's tokens in a ring, the same for all layers."""
        return self.masks.tables.get(("own positions", seq, device), lambda: self.attended.numbers(seq, device))

    @property
    def _fuses_rotation(self) -> bool:
        """Whether `rope_fusion` applies: not to prompts, for each of whose lengths there would be another kernel."""
        return self.rope_fusion and self.training

    def _prepared(self, x_BSKGH: Tensor, norm: nn.Module | None, scale: float, angles: Angles | None) -> Tensor:
        """Return queries or keys as attention takes them: normalised, scaled, rotated.

        x_BSKGH -> x_BNSH. angles: None if not rotated.
        """
        if norm is not None:
            # Before heads move, for which grouped queries are copied: the norm stores its input.
            x_BSKGH = norm(x_BSKGH)
        if angles is None:
            return scales.scale_by(_by_head(x_BSKGH), scale)
        return rotate_heads(x_BSKGH, angles, x_BSKGH.shape[3:4], scale, self._fuses_rotation)[0]

    def _attend(
        self, query_BNSH: Tensor, key_BKCH: Tensor, value_BKCH: Tensor, starts_BS: Tensor | None, dropout: float
    ) -> Tensor:
        """Run the kernel that fits the mask, and return context_BNSH."""
        if self.ring.size > 1:
            size = query_BNSH.shape[2] // len(self.attended.chunks)
            chunks = Chunks(self.masks.rule, self.scores.rule.softcap, size, starts_BS, self.masks.tables)
            return ring_attention(query_BNSH, key_BKCH, value_BKCH, self.ring, chunks.attend, chunks.see)[0]
        later_pass = self.cache if self.cache is not None and self.cache.positions is not None else None
        kernel = self._kernel(query_BNSH, starts_BS, dropout) if later_pass is None else "sdpa"
        if kernel == "flex":
            return self.scores.in_flex(query_BNSH, key_BKCH, value_BKCH, starts_BS)
        if kernel == "varlen":
            return self.scores.in_varlen(query_BNSH, key_BKCH, value_BKCH, starts_BS)
        mask = self.masks.mask(query_BNSH, key_BKCH.shape[2], starts_BS, later_pass)
        return self.scores(query_BNSH, key_BKCH, value_BKCH, mask, dropout)  # type: ignore[no-any-return]

    def prepare_for_compilation(self, device: torch.device) -> None:
        """Keep what layers share out of their compiled graphs.

        Masks other than the causal one are made outside, where the kernel is called too; flex_attention is compiled by
        itself. Rotations are made now: a layer that makes them is another graph than the same layer when recomputed.
        """
        if self.rotation:
            self.rotation.angles(self.seq_length, self.seq_length, device, self.masks.tables)
        if self.reset_mask or not self.is_plain or not self.masks.is_causal(self.seq_length):
            self.attend_outside = torch.compiler.disable(self._attend)

    def _kernel(self, query_BNSH: Tensor, starts_BS: Tensor | None, dropout: float) -> Kernel:
        """Return the kernel for samples, or the prompts of a first pass; `Scores` computes those but flex and varlen.

        Raises RuntimeError in training if the configuration names a kernel that cannot do this; evaluation and
        generation take what `auto` takes.
        """
        if self.is_plain and starts_BS is None:
            return "sdpa"
        whole = query_BNSH.shape[2] == self.seq_length
        key = (whole, starts_BS is not None, dropout, is_half(query_BNSH), query_BNSH.device, self.training)
        if key not in self.kernels:
            given = {"whole": whole, "documents": key[1], "dropout": dropout, "half": key[3]}
            asked, here = replace(self.asked, **given), place(query_BNSH.device)
            choice = choose(asked, here)
            if choice.refused and self.training:
                raise RuntimeError(f"attention_backend ({asked.backend}): {choice.refused}")
            self.kernels[key] = choose(replace(asked, backend="auto"), here).kernel if choice.refused else choice.kernel
        return self.kernels[key]


def is_half(x: Tensor) -> bool:
    return x.dtype != torch.float32


def _by_head(x_BSKGH: Tensor) -> Tensor:
    """x_BSKGH -> x_BNSH, with N = K x G."""
    return x_BSKGH.flatten(2, 3).transpose(1, 2)


def _by_token(context_BNSH: Tensor) -> Tensor:
    """context_BNSH -> (B, S, N x H)."""
    return context_BNSH.transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Masks:
    """The masks of one layer, for every kernel but flex_attention.

    All layers of a model share those that have no weights in them, so that each is built, and stored for the backward
    pass, only once.
    """

    rule: MaskRule
    relative: RelativeBias | None
    score_rule: ScoreRule
    tables: Tables

    def mask(self, query_BNSH: Tensor, seq: int, starts_BS: Tensor | None, later_pass: Cache | None) -> Tensor | None:
        """Return what `attend` takes: None, a bool mask, or a bias with -inf where the mask is false.

        seq: number of keys. starts_BS: where documents begin, if attention must not cross them. later_pass: the cache
        in a pass of generation after the first one, where queries are the new tokens only.
        """
        device = query_BNSH.device
        if later_pass is not None:
            return self._later_mask(seq, device, later_pass)
        if self.rule.slopes:
            # Only separate steps add the bias to scores in fp32.
            steps = self.score_rule.asks_for_steps(is_half(query_BNSH), masked=True)
            dtype = torch.float32 if steps else query_BNSH.dtype
            return self._alibi(seq, starts_BS, dtype, device)
        allowed = self.allowed(seq, starts_BS, device)
        if self.relative is None:
            return allowed
        bias = self.relative(seq) if self.relative.bias is None else self.relative.bias
        return self._masked(bias, allowed)

    def is_causal(self, seq: int) -> bool:
        """Whether there is nothing but the causal mask, for which torch has faster kernels."""
        return not (self.rule.pattern or self.rule.slopes or self.relative or self._is_window_narrow(seq))

    def allowed(self, seq: int, starts_BS: Tensor | None, device: torch.device) -> Tensor | None:
        """Boolean mask of the pairs that attend, broadcast to (B, N, S, C); None if it is only causal."""
        static = self._static(seq, device)
        if starts_BS is None:
            return static

        def build() -> Tensor:
            return same_document(starts_BS) & (self._causal(seq, device) if static is None else static)

        return self.tables.derived(("documents", self.rule, device), starts_BS, build)

    def _static(self, seq: int, device: torch.device) -> Tensor | None:
        """Return the mask of pattern and window, the same for every sample."""
        rule = self.rule
        pattern = None if rule.pattern is None else self._pattern(device)[:, :seq, :seq]
        if not self._is_window_narrow(seq):
            return pattern

        def build(size: int) -> Tensor:
            window = window_mask(size, rule.window, device)
            return window if pattern is None else pattern & window

        return self.tables.square(("static mask", rule, device), seq, build)

    def _alibi(self, seq: int, starts_BS: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor:
        key = ("alibi", self.rule, dtype, device)

        def build(size: int) -> Tensor:
            allowed = self.allowed(size, starts_BS, device)
            return self._masked(alibi(size, self.rule.slopes, device), allowed).to(dtype)

        if starts_BS is not None:
            return self.tables.derived(key, starts_BS, lambda: build(seq))
        return self.tables.square(key, seq, build)

    def _later_mask(self, seq: int, device: torch.device, cache: Cache) -> Tensor:
        """Return the rows of the S new tokens: (B, N or 1, S, C)."""
        rule, size = self.rule, cache.capacity
        allowed = cache.visible(rule.window)
        if rule.pattern is not None:
            allowed = allowed & cache.select(self._pattern(device))
        if self.relative is not None:
            bias = self.relative(size, cache.positions)[..., :seq].transpose(0, 1)
            return self._masked(bias, allowed)
        if not rule.slopes:
            return allowed
        full = self.tables.square(("whole alibi", device), size, lambda size: alibi(size, rule.slopes, device))
        return self._masked(cache.select(full), allowed)

    def _masked(self, bias: Tensor, allowed: Tensor | None) -> Tensor:
        allowed = self._causal(bias.shape[-1], bias.device) if allowed is None else allowed
        return bias.masked_fill(~allowed, -torch.inf)

    def _causal(self, seq: int, device: torch.device) -> Tensor:
        return shared_causal_mask(seq, device, self.tables)

    def _pattern(self, device: torch.device) -> Tensor:
        """As of `token_mask`."""
        pattern = self.rule.pattern
        assert pattern is not None
        return self.tables.get(("pattern", pattern, device), lambda: token_mask(pattern, self.rule.axis, device))

    def _is_window_narrow(self, seq: int) -> bool:
        """Whether the window is narrower than the sequence."""
        return 0 < self.rule.window < seq - 1
