"""Continuing token sequences with a model that may be spread over many ranks.

Every new token takes one pass over the whole sequence through all pipeline stages; no keys and values are kept.
Rows of a batch may differ in length: later positions cannot influence earlier ones, so they are padded on the
right and each row is read at its own last token. Beyond `seq_length` the window slides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.registry.generation import Generation
from neoxargs.train.mesh import Mesh
from neoxargs.train.model.documents import Carried, closed
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.loss import Loss, Readout
from neoxargs.train.sampling import choose
from neoxargs.train.tokenizer import Tokenizer


class Whole:
    """The model in one piece on every tensor parallel rank (the plain engine)."""

    def __init__(self, gpt: GPT, run: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self.run, self.device = run, device
        # Only the last position of a row is of interest, and the output layer is the largest of all.
        gpt.output.register_forward_pre_hook(lambda _, inputs: (_pick(inputs[0], self.last), *inputs[1:]))

    def logits(self, tokens: Tensor, last: Tensor) -> Tensor:
        """(batch, seq) and each row's last position (batch) -> (batch, vocabulary)."""
        self.last = last.to(self.device)
        return self.run(tokens.to(self.device))[:, 0]


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
        self.pipeline, self.loss, self.axis, self.device = pipeline, loss, mesh.pipe, device
        self.hidden_size, self.documents = hidden_size, documents
        self.dtype = next(pipeline.parameters()).dtype
        pipeline.activation_checkpoint_interval = 0

    def logits(self, tokens: Tensor, last: Tensor) -> Tensor | None:
        """As Whole's on the last stage; None on the others."""
        first, end = self.axis.rank == 0, self.axis.rank == self.axis.size - 1
        entered = tokens.to(self.device) if first else self._receive(tokens.shape)
        left = self.pipeline(entered)
        if end:
            return self.loss.logits(Readout(_pick(left.hidden, last.to(self.device)), left.weight))[:, 0]
        for tensor in (left,) if isinstance(left, Tensor) else left:
            dist.send(tensor.contiguous(), self._neighbour(1), group=self.axis.group)
        return None

    def _receive(self, shape: torch.Size) -> Carried:
        """What the stage before has left of tokens (batch, seq)."""
        carried = [torch.empty((*shape, self.hidden_size), dtype=self.dtype, device=self.device)]
        if self.documents:
            carried.append(torch.empty(shape, dtype=torch.int64, device=self.device))
        for tensor in carried:
            dist.recv(tensor, self._neighbour(-1), group=self.axis.group)
        return closed(*carried) if self.documents else carried[0]

    def _neighbour(self, step: int) -> int:
        assert self.axis.group is not None
        return dist.get_global_rank(self.axis.group, self.axis.rank + step)


def _pick(hidden: Tensor, last: Tensor) -> Tensor:
    """(batch, seq, hidden) at one position of each row -> (batch, 1, hidden)."""
    return hidden[torch.arange(len(last), device=hidden.device), last].unsqueeze(1)


@dataclass
class Sample:
    """A prompt and what the model made of it."""

    context: str
    prompt: list[int]
    """Never empty: without a prompt, the token after which documents begin."""
    ids: list[int] = field(default_factory=list)
    """Generated tokens, without the end of the document."""
    logits: list[float] = field(default_factory=list)
    """The logit of each of them."""
    finished: bool = False
    """Did the document end before `maximum_tokens`?"""


class Generator:
    """Continues prompts. Every rank makes the same calls and has the same results."""

    def __init__(
        self, model: Whole | Stages, tokenizer: Tokenizer, options: Generation, seq_length: int, mesh: Mesh, seed: int
    ) -> None:
        self.model, self.tokenizer, self.options, self.seq_length = model, tokenizer, options, seq_length
        self.random = torch.Generator().manual_seed(seed)
        #: The rank whose choice counts: the first of the last pipeline stage. Even if ranks that should agree
        #: differed in the last bit, one text comes out.
        self.source = (mesh.pipe.size - 1) * mesh.data.size * mesh.tensor.size
        self.alone = mesh.pipe.size * mesh.data.size * mesh.tensor.size == 1

    def sample(self, context: str) -> Sample:
        return Sample(context, self.tokenizer.tokenize(context) or [self.tokenizer.eod])

    @torch.no_grad()
    def finish(self, samples: Sequence[Sample]) -> None:
        """Generate until every document has ended or has `maximum_tokens` new tokens."""
        for _ in range(self.options.maximum_tokens):
            going = [sample for sample in samples if not sample.finished]
            if not going:
                return
            for sample, token, logit in zip(going, *self._next(going), strict=True):
                sample.finished = token == self.tokenizer.eod
                if not sample.finished:
                    sample.ids.append(token)
                    sample.logits.append(logit)

    def _next(self, samples: Sequence[Sample]) -> tuple[list[int], list[float]]:
        """The next token of each sample, and its logit."""
        logits = self.model.logits(*padded([[*s.prompt, *s.ids][-self.seq_length :] for s in samples]))
        chosen = torch.zeros(len(samples), 2, dtype=torch.float64, device=self.model.device)
        if logits is not None and (self.alone or dist.get_rank() == self.source):
            tokens = choose(logits, self.options, self.random)
            chosen = torch.stack((tokens, logits.float().cpu().gather(1, tokens[:, None])[:, 0]), 1).double().to(chosen)
        if not self.alone:
            dist.broadcast(chosen, self.source)
        return chosen[:, 0].long().tolist(), chosen[:, 1].tolist()


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as tokens (batch, longest), and each row's last position (batch)."""
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return tokens, torch.tensor([len(ids) - 1 for ids in rows])
