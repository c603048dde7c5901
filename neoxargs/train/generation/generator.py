"""Continuing token sequences with a model that may be spread over many ranks.

The first pass takes whole prompts, later ones a token of each row, with the keys and values of all before kept in a
cache. Rows of a batch may differ in length: later positions cannot influence earlier ones, so they are padded on the
right and each row is read at its own last token. When a row is beyond `seq_length` its window slides: every token then
stands at another place, so from there on each pass takes whole rows, as it does with `recompute`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.registry.generation import Generation
from neoxargs.train.data.tokenizer import Tokenizer
from neoxargs.train.generation.sampling import choose
from neoxargs.train.kernels.cross_entropy import Loss, Readout
from neoxargs.train.model.cache import Cache, attach
from neoxargs.train.model.documents import LayerInput, pack
from neoxargs.train.model.gpt import GPT
from neoxargs.train.process.mesh import Axis, Mesh


class Whole:
    """The model in one piece on every tensor parallel rank (the plain engine)."""

    def __init__(self, gpt: GPT, run: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self.module, self.run, self.device = gpt, run, device
        self.documents = gpt.embedding.eod is not None
        # Only the last position of a row is of interest, and the output layer is the largest of all.
        self.last: Tensor | None = None
        gpt.output.register_forward_pre_hook(self._pick_last)

    def logits(self, tokens: Tensor, last: Tensor) -> Tensor:
        """(batch, seq) and each row's last position (batch) -> (batch, vocabulary)."""
        self.last = last.to(self.device)
        found = self.run(tokens.to(self.device))[:, 0]
        self.last = None
        return found

    def _pick_last(self, _: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return inputs if self.last is None else (_pick(inputs[0], self.last), *inputs[1:])


class Stages:
    """The model cut into pipeline stages; activations go from one to the next."""

    def __init__(
        self,
        pipeline: Any,
        loss: Loss,
        mesh: Mesh,
        device: torch.device,
        hidden_size: int,
        documents: bool = False,
    ) -> None:
        """documents: do their beginnings travel beside the hidden states?"""
        self.module, self.loss, self.axis, self.device = pipeline, loss, mesh.pipe, device
        self.hidden_size, self.documents = hidden_size, documents
        self.dtype = next(pipeline.parameters()).dtype
        pipeline.activation_checkpoint_interval = 0

    def logits(self, tokens: Tensor, last: Tensor) -> Tensor | None:
        """As Whole's on the last stage; None on the others."""
        first, end = self.axis.rank == 0, self.axis.rank == self.axis.size - 1
        entered = tokens.to(self.device) if first else self._receive(tokens.shape)
        left = self.module(entered)
        if end:
            return self.loss.logits(Readout(_pick(left.hidden, last.to(self.device)), left.weight))[:, 0]
        for tensor in (left,) if isinstance(left, Tensor) else left:
            dist.send(tensor.contiguous(), member(self.axis, self.axis.rank + 1), group=self.axis.group)
        return None

    def _receive(self, shape: torch.Size) -> LayerInput:
        """What the stage before has left of tokens (batch, seq)."""
        carried = [torch.empty((*shape, self.hidden_size), dtype=self.dtype, device=self.device)]
        if self.documents:
            carried.append(torch.empty(shape, dtype=torch.int64, device=self.device))
        for tensor in carried:
            dist.recv(tensor, member(self.axis, self.axis.rank - 1), group=self.axis.group)
        return pack(*carried) if self.documents else carried[0]


def member(axis: Axis, rank: int) -> int:
    """The rank in the world of one in the axis."""
    assert axis.group is not None
    return dist.get_global_rank(axis.group, rank)


def _pick(hidden: Tensor, last: Tensor) -> Tensor:
    """(batch, seq, hidden) at one position of each row -> (batch, 1, hidden)."""
    return hidden[torch.arange(len(last), device=hidden.device), last].unsqueeze(1)


@dataclass
class Sample:
    """A prompt and what the model made of it."""

    context: str
    prompt: list[int]
    """Never empty: without a prompt, the token after which documents begin."""
    random: torch.Generator
    """Its own, so that it does not matter which others are generated beside it."""
    ids: list[int] = field(default_factory=list)
    """Generated tokens, without the end of the document."""
    logits: list[float] = field(default_factory=list)
    """The logit of each of them."""
    finished: bool = False
    """Did the document end before `maximum_tokens`?"""


class Generator:
    """Continues prompts, which data parallel ranks share out. Every rank makes the same calls and has all results."""

    def __init__(
        self, model: Whole | Stages, tokenizer: Tokenizer, options: Generation, seq_length: int, mesh: Mesh, seed: int
    ) -> None:
        self.model, self.tokenizer, self.options, self.seq_length = model, tokenizer, options, seq_length
        self.mesh, self.data, self.seed, self.count = mesh, mesh.data, seed, 0
        #: Under ZeRO-3 each pass needs all ranks, because each has a share of the weights.
        self.together = mesh.data.size > 1 and any(hasattr(weight, "ds_id") for weight in model.module.parameters())
        #: Where documents begin is read from all tokens of a sample.
        self.caches = not (options.recompute or model.documents)

    def sample(self, context: str) -> Sample:
        random = torch.Generator().manual_seed(self.seed + 1_000_003 * self.count)
        self.count += 1
        return Sample(context, self.tokenizer.tokenize(context) or [self.tokenizer.eod], random)

    @torch.no_grad()
    def finish(self, samples: Sequence[Sample]) -> None:
        """Generate until every document has ended or has `maximum_tokens` new tokens."""
        mine = samples[self.data.rank :: self.data.size]
        with self._cache(mine) as cache:
            self._finish(mine, cache)
        if self.data.size > 1:
            found: list[Any] = [None] * self.data.size
            dist.all_gather_object(found, [(s.ids, s.logits, s.finished) for s in mine], self.data.group)
            for rank, theirs in enumerate(found):
                for sample, (ids, logits, finished) in zip(samples[rank :: self.data.size], theirs, strict=True):
                    sample.ids, sample.logits, sample.finished = ids, logits, finished

    @contextmanager
    def _cache(self, samples: Sequence[Sample]) -> Iterator[Cache | None]:
        """With room for all that these samples can become; None where none is kept."""
        longest = max((len(sample.prompt) for sample in samples), default=0)
        if not (self.caches and samples) or longest > self.seq_length:
            yield None
            return
        cache = Cache(min(self.seq_length, longest + self.options.maximum_tokens))
        attach(self.model.module, cache)
        try:
            yield cache
        finally:
            attach(self.model.module, None)

    def _finish(self, samples: Sequence[Sample], cache: Cache | None) -> None:
        going = list(samples)
        for _ in range(self.options.maximum_tokens):
            if not self._goes_on(going):
                return
            if not going:
                self._accompany()
                continue
            rows = [[*sample.prompt, *sample.ids] for sample in going]
            if cache and max(map(len, rows)) > self.seq_length:
                attach(self.model.module, None)
                cache = None
            for sample, token, logit in zip(going, *self._next(rows, going, cache), strict=True):
                sample.finished = token == self.tokenizer.eod
                if not sample.finished:
                    sample.ids.append(token)
                    sample.logits.append(logit)
            left = [row for row, sample in enumerate(going) if not sample.finished]
            if cache and len(left) < len(going):
                cache.keep_rows(left)
            going = [going[row] for row in left]

    def _goes_on(self, going: Sequence[Sample]) -> bool:
        """Is there a document that has not ended, here or on a rank that needs this one?"""
        if not self.together:
            return bool(going)
        most = torch.tensor(len(going), device=self.model.device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.data.group)
        return bool(most)

    def _accompany(self) -> None:
        """A pass for nobody here: the others need this rank's share of the weights."""
        attach(self.model.module, None)
        self.model.logits(*padded([[self.tokenizer.eod]]))

    def _next(
        self, rows: list[list[int]], samples: Sequence[Sample], cache: Cache | None
    ) -> tuple[list[int], list[float]]:
        """The next token of each row, drawn as its sample is, and its logit."""
        logits = self.model.logits(*self._entering(rows, cache))
        chosen = torch.zeros(len(rows), 2, dtype=torch.float64, device=self.model.device)
        if logits is not None:
            logits = logits.float().cpu()  # all rows at once
            pairs = zip(logits, samples, strict=True)
            tokens = torch.cat([choose(row.unsqueeze(0), self.options, sample.random) for row, sample in pairs])
            found = logits.gather(1, tokens.unsqueeze(1))[:, 0]
            chosen = torch.stack((tokens, found), 1).double().to(chosen)
            # Even if tensor parallel ranks, which should agree, differed in the last bit, one text comes out.
            _broadcast(chosen, self.mesh.tensor, 0)
        _broadcast(chosen, self.mesh.pipe, self.mesh.pipe.size - 1)
        return chosen[:, 0].long().tolist(), chosen[:, 1].tolist()

    def _entering(self, rows: list[list[int]], cache: Cache | None) -> tuple[Tensor, Tensor]:
        """The tokens (batch, seq) that this pass takes, and the last position of each row among them."""
        if cache is None:
            return padded([row[-self.seq_length :] for row in rows])
        if not cache.started:
            cache.started = True
            return padded(rows)
        newest = torch.tensor([len(row) - 1 for row in rows], device=self.model.device)
        cache.begin(newest.unsqueeze(1), max(map(len, rows)))
        return torch.tensor([row[-1:] for row in rows]), torch.zeros(len(rows), dtype=torch.int64)


def _broadcast(tensor: Tensor, axis: Axis, rank: int) -> None:
    if axis.size > 1:
        dist.broadcast(tensor, member(axis, rank), group=axis.group)


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as tokens (batch, longest), and each row's last position (batch)."""
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return tokens, torch.tensor([len(ids) - 1 for ids in rows])
