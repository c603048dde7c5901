"""A soft prompt that starts from the token embeddings of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from neoxargs.config.config import Config
from neoxargs.data.tokenizer import Tokenizer
from neoxargs.train.checkpoint.relayout import set_weight
from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.model.embedding import TokenEmbedding
from neoxargs.train.model.soft_prompt.prompt import NAME
from neoxargs.train.process.mesh import Axis, Mesh


@contextmanager
def starting_from_text(engine: interface.Engine, config: Config, tokenizer: Tokenizer, mesh: Mesh) -> Iterator[None]:
    """Set the prompt to the embeddings of `init_string` after a checkpoint has been loaded inside, which has the model.

    A prompt that the checkpoint has is kept. Collective.
    """
    options = config.soft_prompt
    prompt = named_weights(engine.module).get(NAME)
    # To find out whether the checkpoint contains a prompt: loading then changes it.
    before = None if prompt is None else prompt.detach().clone()
    yield
    if not (options.enabled and options.init_string):
        return
    # Repeated or cut to the length of the prompt.
    ids = list(islice(cycle(tokenizer.tokenize(options.init_string)), options.num_tokens))
    like = next(engine.module.parameters())
    # On every stage, because the broadcast below fills it.
    value = torch.zeros(options.num_tokens, config.shape.hidden_size, dtype=like.dtype, device=like.device)
    if mesh.pipe.rank == 0:
        embedding = next(layer for layer in engine.module.modules() if isinstance(layer, TokenEmbedding))
        value.copy_(_embeddings(embedding.weight.detach(), ids, mesh.tensor))
    if mesh.pipe.size > 1:  # the prompt may be on the stage after the embedding's
        assert mesh.pipe.group is not None
        dist.broadcast(value, dist.get_global_rank(mesh.pipe.group, 0), group=mesh.pipe.group)
    if prompt is not None and before is not None and torch.equal(prompt, before):
        # Also in the optimizer's fp32 copies, which would otherwise overwrite it at the first step.
        set_weight(engine, NAME, value)


def _embeddings(weight: Tensor, ids: Sequence[int], tensor: Axis) -> Tensor:
    """Return the embeddings, (ids, D). weight: this rank's rows."""
    rows = len(weight)
    local = torch.tensor(ids, device=weight.device) - tensor.rank * rows
    elsewhere = (local < 0) | (local >= rows)
    vectors = F.embedding(local.masked_fill(elsewhere, 0), weight).masked_fill(elsewhere.unsqueeze(1), 0)
    if tensor.size > 1:
        dist.all_reduce(vectors, group=tensor.group)
    return vectors
