"""Generation of text with a model that may be distributed over many ranks.

The first forward pass processes the full prompts; each later pass processes one token per row and reads the keys and
values of earlier tokens from a cache. Rows of a batch may differ in length: they are padded on the right, where causal
attention does not see the padding, and each row is read at its own last token. Once a row is longer than `seq_length`,
its window slides and the position of every token changes, so each later pass processes full rows, as with `recompute`.
With `longrope`, all keys are rotated again when the longest row exceeds the original context; with `dynamic`, at every
token from there on, so that nothing is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.data.tokenizer import Tokenizer
from neoxargs.registry.generation import Generation
from neoxargs.train.generation.sampling import choose
from neoxargs.train.losses.cross_entropy import Loss, Readout
from neoxargs.train.model.cache import Cache, attach
from neoxargs.train.model.documents import LayerInput, pack
from neoxargs.train.model.gpt import GPT
from neoxargs.train.parallel.layers import is_expert
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.process.mesh import Axis, Mesh


class PlainModel:
    """A model without pipeline parallelism (DeepSpeed's plain engine)."""

    def __init__(self, gpt: GPT, run: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self.module, self.run, self.device = gpt, run, device
        self.documents = gpt.embedding.eod is not None

    def logits(self, tokens_BS: Tensor, last_B: Tensor) -> Tensor:
        """Return logits_BV at each row's last position. last_B: positions in tokens_BS."""
        positions_B = last_B.to(self.device)

        # The output layer is the largest layer, so it is applied to the last position of each row only.
        def pick_last(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (_select_positions(inputs[0], positions_B), *inputs[1:])

        hook = self.module.output.register_forward_pre_hook(pick_last)
        try:
            return self.run(tokens_BS.to(self.device))[:, 0]
        finally:
            hook.remove()


class PipelinedModel:
    """A model with pipeline stages, which send their activations to the next stage."""

    def __init__(
        self,
        pipeline: Any,
        loss: Loss,
        mesh: Mesh,
        device: torch.device,
        hidden_size: int,
        documents: bool = False,
    ) -> None:
        """documents: whether stages also send the position at which each token's document starts."""
        self.module, self.loss, self.axis, self.device = pipeline, loss, mesh.pipe, device
        self.hidden_size, self.documents = hidden_size, documents
        self.dtype = next(pipeline.parameters()).dtype

    def logits(self, tokens_BS: Tensor, last_B: Tensor) -> Tensor | None:
        """Return what `PlainModel.logits` returns on the last stage; None on the others."""
        first, end = self.axis.rank == 0, self.axis.rank == self.axis.size - 1
        entered = tokens_BS.to(self.device) if first else self._receive(tokens_BS.shape)
        left = self._stage_output(entered)
        if end:
            return self.loss.logits(Readout(_select_positions(left.hidden, last_B.to(self.device)), left.weight))[:, 0]
        for tensor in (left,) if isinstance(left, Tensor) else left:
            dist.send(tensor.contiguous(), member(self.axis, self.axis.rank + 1), group=self.axis.group)
        return None

    def _stage_output(self, entered: LayerInput) -> Any:
        """Return what leaves this stage, hidden states or a Readout, without recomputation of activations."""
        interval, self.module.activation_checkpoint_interval = self.module.activation_checkpoint_interval, 0
        try:
            return self.module(entered)
        finally:
            self.module.activation_checkpoint_interval = interval

    def _receive(self, shape: torch.Size) -> LayerInput:
        """Receive the previous stage's output. shape: (B, S)."""
        carried = [torch.empty((*shape, self.hidden_size), dtype=self.dtype, device=self.device)]
        if self.documents:
            carried.append(torch.empty(shape, dtype=torch.int64, device=self.device))
        for tensor in carried:
            dist.recv(tensor, member(self.axis, self.axis.rank - 1), group=self.axis.group)
        return pack(*carried) if self.documents else carried[0]


def member(axis: Axis, rank: int) -> int:
    """Return the global rank of a rank in an axis of the mesh."""
    assert axis.group is not None
    return dist.get_global_rank(axis.group, rank)


def _select_positions(hidden_BSD: Tensor, last_B: Tensor) -> Tensor:
    """Select one position of each row: (B, 1, D)."""
    return hidden_BSD[torch.arange(len(last_B), device=hidden_BSD.device), last_B].unsqueeze(1)


@dataclass
class Sample:
    """A prompt and its continuation."""

    context: str
    """Text of the prompt."""
    prompt: list[int]
    """Tokens of the prompt; the tokenizer's first token of a text for an empty prompt."""
    random: torch.Generator
    """A separate generator, so that the text does not depend on the other samples of the batch."""
    ids: list[int] = field(default_factory=list)
    """Generated tokens, without the token that ended the document."""
    logits: list[float] = field(default_factory=list)
    """Logit of each generated token."""
    finished: bool = False
    """Whether the model ended the document before `maximum_tokens`."""


class Generator:
    """Continues prompts, which are distributed over the data parallel ranks.

    Collective: every rank makes the same calls and gets all results.
    """

    def __init__(
        self,
        model: PlainModel | PipelinedModel,
        tokenizer: Tokenizer,
        options: Generation,
        seq_length: int,
        mesh: Mesh,
        seed: int,
        context: int | None = None,
        each_length: bool = False,
    ) -> None:
        """context: the length beyond which keys are rotated by other angles; None if there is none. each_length:
        whether each longer length has angles of its own."""
        self.context, self.each_length = seq_length if context is None else context, each_length
        #: The longest row whose keys remain as they are when a token is added.
        self.longest_cached = min(seq_length, self.context) if each_length else seq_length
        self.model, self.tokenizer, self.options, self.seq_length = model, tokenizer, options, seq_length
        self.mesh, self.data, self.seed, self.count = mesh, mesh.data, seed, 0
        #: Every forward pass needs all ranks if each holds a partition of the weights (ZeRO-3), or other experts.
        self.together = mesh.data.size > 1 and any(
            hasattr(weight, "ds_id") or is_expert(weight) for weight in model.module.parameters()
        )
        #: Tokens at the beginning of every row, whose embeddings a soft prompt replaces.
        self.prefix: list[int] = []
        #: Whether to cache keys and values. Document masks need all tokens of a row in every pass.
        self.caches = not (options.recompute or model.documents)

    def sample(self, context: str, prompt: list[int] | None = None) -> Sample:
        """Return a prompt for `finish` to continue, with a generator of its own, seeded by the number of the sample.

        prompt: the tokens, if they are not those of `context`.
        """
        # A stride, so that sample 1 of one seed is not sample 0 of the next one.
        random = torch.Generator().manual_seed(self.seed + 1_000_003 * self.count)
        self.count += 1
        return Sample(context, prompt or self.tokenizer.tokenize(context) or [self.tokenizer.start], random)

    def overlong(self, samples: Sequence[Sample]) -> Iterator[str]:
        """Yield a warning for each sample of which the model does not see all tokens at the end."""
        room, new = self.seq_length - len(self.prefix), self.options.maximum_tokens
        less = f" less {len(self.prefix)} of the soft prompt" if self.prefix else ""
        for sample in samples:
            # The last new token is never an input.
            if (count := len(sample.prompt)) + new - 1 > room:
                start = sample.context[:40] + " …" * (len(sample.context) > 40)
                needed = len(self.prefix) + count + new - 1
                # Scaling begins at the original context, which is derived from seq_length if nothing states it.
                scaled = f"; dynamic scaling covers it with seq_length: {needed} and max_position_embeddings: "
                scaled += f"{self.context}, unless rope_scaling.original_max_position_embeddings is set"
                yield (
                    f"warning: the prompt {start!r} has {count} token{'s' * (count > 1)}; with up to {new} new tokens "
                    f"(maximum_tokens), it exceeds the context of {room} tokens (seq_length{less}), so the model sees "
                    f"only the last {room} tokens{scaled * self.each_length}"
                )

    @torch.no_grad()
    def finish(self, samples: Sequence[Sample], added: Callable[[Sample], None] = lambda sample: None) -> None:
        """Generate, in place, until every sample has ended its document or has `maximum_tokens` new tokens.

        added: called after each token of a sample of this rank's replica.
        """
        # In turn, so that each data parallel rank has as many as the others or one fewer.
        local = samples[self.data.rank :: self.data.size]
        with self._cache(local) as cache:
            self._finish(local, cache, added)
        if self.data.size > 1:
            by_rank = of_all_ranks([(s.ids, s.logits, s.finished) for s in local], self.data.group)
            for rank, results in enumerate(by_rank):
                for sample, (ids, logits, finished) in zip(samples[rank :: self.data.size], results, strict=True):
                    sample.ids, sample.logits, sample.finished = ids, logits, finished

    @contextmanager
    def _cache(self, samples: Sequence[Sample]) -> Iterator[Cache | None]:
        """Attach a cache large enough for these samples to the model; yield None if none is used."""
        longest = len(self.prefix) + max((len(sample.prompt) for sample in samples), default=0)
        # The first pass would cut off tokens of a longer prompt, and the cache knows no shift.
        if not (self.caches and samples) or longest > self.longest_cached:
            yield None
            return
        cache = Cache(min(self.longest_cached, longest + self.options.maximum_tokens))
        attach(self.model.module, cache)
        try:
            yield cache
        finally:
            attach(self.model.module, None)

    def _finish(self, samples: Sequence[Sample], cache: Cache | None, added: Callable[[Sample], None]) -> None:
        active, beyond = list(samples), False
        for _ in range(self.options.maximum_tokens):
            if not self._any_active(active):
                return
            if not active:
                # Other ranks need this rank's partition of the weights (ZeRO-3).
                attach(self.model.module, None)
                self.model.logits(*padded([[self.tokenizer.eod]]))
                continue
            rows = [[*self.prefix, *sample.prompt, *sample.ids] for sample in active]
            longest = max(map(len, rows))
            was_beyond, beyond = beyond, longest > self.context
            if cache and longest > self.longest_cached:
                attach(self.model.module, None)
                cache = None
            elif cache and cache.started and beyond != was_beyond:
                # Empty, so that the next pass computes the keys of all tokens anew.
                cache = Cache(cache.capacity)
                attach(self.model.module, cache)
            for sample, token, logit in zip(active, *self._next_tokens(rows, active, cache), strict=True):
                sample.finished = token == self.tokenizer.eod or token in self.tokenizer.ends
                if not sample.finished:
                    sample.ids.append(token)
                    sample.logits.append(logit)
                    added(sample)
            unfinished = [row for row, sample in enumerate(active) if not sample.finished]
            if cache and len(unfinished) < len(active):
                cache.keep_rows(unfinished)
            active = [active[row] for row in unfinished]

    def _any_active(self, active: Sequence[Sample]) -> bool:
        """Whether a sample is unfinished on this rank or, under ZeRO-3, on any data parallel rank."""
        if not self.together:
            return bool(active)
        most = torch.tensor(len(active), device=self.model.device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.data.group)
        return bool(most)

    def _next_tokens(
        self, rows: list[list[int]], samples: Sequence[Sample], cache: Cache | None
    ) -> tuple[list[int], list[float]]:
        """Return the next token of each row, drawn with its sample's generator, and the token's logit."""
        logits_BV = self.model.logits(*self._pass_inputs(rows, cache))
        # fp64 holds token ids and fp32 logits exactly, so that one broadcast sends both.
        chosen = torch.zeros(len(rows), 2, dtype=torch.float64, device=self.model.device)
        if logits_BV is not None:
            logits_BV = logits_BV.float().cpu()  # one transfer for all rows
            if self.options.temperature == 0:  # nothing is drawn
                tokens_B = choose(logits_BV, self.options, samples[0].random)
            else:
                pairs = zip(logits_BV, samples, strict=True)
                tokens_B = torch.cat([choose(row.unsqueeze(0), self.options, sample.random) for row, sample in pairs])
            of_tokens_B = logits_BV.gather(1, tokens_B.unsqueeze(1))[:, 0]
            chosen = torch.stack((tokens_B, of_tokens_B), 1).double().to(chosen)
            # The logits of tensor parallel ranks may differ in the last bit; all ranks must draw the same token.
            _broadcast(chosen, self.mesh.tensor, 0)
        # Ranks of earlier stages have no logits, but the token enters their next pass.
        _broadcast(chosen, self.mesh.pipe, self.mesh.pipe.size - 1)
        return chosen[:, 0].long().tolist(), chosen[:, 1].tolist()

    def _pass_inputs(self, rows: list[list[int]], cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Return tokens_BS that this pass processes, and each row's last position in them, (B)."""
        if cache is None:
            room = self.seq_length - len(self.prefix)
            # The window slides over the text, and the soft prompt stays in front of it.
            return padded([[*self.prefix, *row[len(self.prefix) :][-room:]] for row in rows])
        if not cache.started:
            cache.started = True
            tokens_BS, last_B = padded(rows)
            cache.lengths = last_B.to(self.model.device) + 1
            return tokens_BS, last_B
        newest_B = torch.tensor([len(row) - 1 for row in rows], device=self.model.device)
        # length: the longest row; `Cache.visible` masks what shorter rows do not have.
        cache.begin(newest_B.unsqueeze(1), max(map(len, rows)))
        return torch.tensor([row[-1:] for row in rows]), torch.zeros(len(rows), dtype=torch.int64)


def _broadcast(tensor: Tensor, axis: Axis, rank: int) -> None:
    if axis.size > 1:
        dist.broadcast(tensor, member(axis, rank), group=axis.group)


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Pad rows on the right to tokens_BS; return them and each row's last position, (B)."""
    tokens_BS = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for row_S, ids in zip(tokens_BS, rows, strict=True):
        row_S[: len(ids)] = torch.tensor(ids)
    return tokens_BS, torch.tensor([len(ids) - 1 for ids in rows])
