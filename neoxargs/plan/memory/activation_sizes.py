"""Sizes of the tensors of one micro batch, from which activations and messages are counted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from neoxargs.config.config import Config
from neoxargs.facts.attention import attention_width
from neoxargs.facts.batch import sequences_per_micro_batch
from neoxargs.facts.context import ranks_with_other_heads, rows_of_rank
from neoxargs.plan.given.assumptions import DEFAULT, HALF, SINGLE, Assumptions


@dataclass(frozen=True, eq=False)  # hashed by identity: what depends on nothing else is computed once
class ActivationSizes:
    """Sizes of the tensors of one micro batch on one rank, in bytes."""

    config: Config
    kind: str = "cuda"
    assumed: Assumptions = DEFAULT

    @cached_property
    def number_size(self) -> int:
        """Bytes per number of an activation."""
        return SINGLE if self.config.precision.precision == "fp32" else HALF

    @cached_property
    def tensor(self) -> int:
        return self.config.parallel.model_parallel_size

    @cached_property
    def context(self) -> int:
        return self.config.parallel.context_parallel_size

    @cached_property
    def tokens(self) -> int:
        """The tokens of a micro batch whose positions this rank has."""
        return sequences_per_micro_batch(self.config) * self.config.shape.seq_length // self.context

    @cached_property
    def rows(self) -> int:
        """The parts of samples, each of `row` consecutive tokens, that this rank has."""
        return sequences_per_micro_batch(self.config) * rows_of_rank(self.context, self.other_heads)

    @cached_property
    def row(self) -> int:
        return self.tokens // self.rows

    @cached_property
    def heads(self) -> int:
        """The query heads for which this rank computes scores."""
        return self.config.shape.num_attention_heads // self.tensor // self.context

    @cached_property
    def other_heads(self) -> int:
        """The context parallel ranks that exchange heads; groups of as many are a ring."""
        return ranks_with_other_heads(self.config.get)

    @cached_property
    def copies(self) -> int:
        """The copies of each key and value head, on as many context parallel ranks."""
        return self.other_heads // gcd(self.config.shape.num_kv_heads // self.tensor, self.other_heads)

    @cached_property
    def queries(self) -> int:
        """The queries of a layer."""
        return self.tokens * attention_width(self.config.shape) // self.tensor * self.number_size

    @cached_property
    def keys(self) -> int:
        """The keys of a layer, or its values, with their copies."""
        return self.queries * self.config.shape.num_kv_heads // self.config.shape.num_attention_heads * self.copies

    @cached_property
    def hidden(self) -> int:
        """The residual stream: (batch, seq / context ranks, hidden)."""
        return self.tokens * self.config.shape.hidden_size * self.number_size

    @cached_property
    def stream(self) -> int:
        """The part of the residual stream that a rank stores: with sequence parallelism its shard of the tokens."""
        return self.hidden // self.tensor if self.config.parallel.sequence_parallel else self.hidden

    @cached_property
    def mask(self) -> int:
        """A dropout mask of the residual stream: one byte per number on a GPU, a full-size factor on a CPU."""
        if not self.config.regularization.hidden_dropout:
            return 0
        return self.stream // self.number_size * (1 if self.kind == "cuda" else self.number_size)
