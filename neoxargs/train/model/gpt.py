"""The GPT as one module, for DeepSpeed's engine without a pipeline (engine/pipeline.py: the one with a pipeline)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neoxargs.config.config import Config
from neoxargs.facts.model import weights_of_layers
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.losses.objective import loss_of
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.bias import RelativeBias
from neoxargs.train.model.documents import LayerInput, pack, unpack
from neoxargs.train.model.parts import EMBEDDING, FINAL_NORM, LAYERS, POSITIONS, RELATIVE, build, parts
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights


class GPT(nn.Module):
    """Decoder-only transformer: the tensors of a `MicroBatch`, by name -> loss, or without labels logits (B, S, V)."""

    output: Any
    """The head, unless this is a reward model, which has `rm_linear`."""

    def __init__(self, config: Config, vocabulary: Vocabulary, weights: Weights, shared: Shared) -> None:
        super().__init__()
        found = parts(config, vocabulary, weights, shared)
        modules = build(found)
        self.embedding, self.positions = modules[EMBEDDING], modules[POSITIONS]
        # Before the layers, which hold it too: a weight has its first name.
        self.relative: RelativeBias | None = modules.get(RELATIVE)
        #: For each layer of the model, the index in `layers` of its weights; layers that share weights repeat an index.
        self.order = weights_of_layers(config.shape)
        self.layers = nn.ModuleList(modules[f"{LAYERS}.{index}"] for index in range(max(self.order) + 1))
        self.final_norm = modules[FINAL_NORM]
        #: `output` or, of a reward model, `rm_linear`, as its weight is named.
        self.head_name = found[-1].name
        self.add_module(self.head_name, modules[self.head_name])
        self.loss = loss_of(config, vocabulary, weights.ranks, shared.measures)
        #: Recompute activations in the backward pass in groups of this many layers; 0 keeps all activations.
        self.checkpoint_layers = 0
        #: Runs a group so; `engine/build.py` sets it, and which kind of checkpointing it is.
        self.checkpoint: Callable[..., LayerInput] = partial(checkpoint, use_reentrant=False)
        #: ZeRO-2 and 3 accept one gradient per weight, and with reentrant checkpointing (that of ZeRO-3, or DeepSpeed's
        #: own) each recomputed group runs a backward pass of its own. The relative position bias, which all groups
        #: share, is then computed outside them.
        self.reduces_gradients_once = False

    def forward(
        self, tokens: Tensor, labels: Tensor | None = None, starts: Tensor | None = None, **others: Tensor | None
    ) -> Tensor:
        """others: what only the loss reads."""
        hidden = self.positions(self.embedding(pack(tokens, starts)))
        recomputes = self.training and self.checkpoint_layers > 0
        bias = None
        if self.relative is not None and recomputes and self.reduces_gradients_once:
            bias = self.relative(tokens.shape[1])
        size = self.checkpoint_layers if recomputes else len(self.order)
        for start in range(0, len(self.order), size):
            # Built anew for each pass: `layers` holds each set of weights once, but a layer may run several times.
            some = nn.Sequential(*(self.layers[index] for index in self.order[start : start + size]))
            hidden = self._recomputed(some, hidden, bias) if recomputes else some(hidden)
        # Passed as a function because of ZeRO-3, see Head.forward.
        batch = None if labels is None else MicroBatch(tokens, labels, starts, **others)
        finish = self.loss.logits if batch is None else lambda readout: self.loss(readout, batch)
        result: Tensor = self.get_submodule(self.head_name)(self.final_norm(unpack(hidden)[0]), finish)
        return result

    def _recomputed(self, layers: Callable[..., LayerInput], inputs: LayerInput, bias: Tensor | None) -> LayerInput:
        """Run consecutive layers with checkpointing.

        The tensors are passed one by one, because checkpointing does not look for gradients inside a tuple.
        """
        single = isinstance(inputs, Tensor)
        flat = (inputs,) if single else inputs

        def run(*tensors: Tensor) -> LayerInput:
            if bias is None:
                return layers(tensors[0] if single else tensors)
            assert self.relative is not None
            with self.relative.use_precomputed(tensors[-1]):
                return layers(tensors[0] if single else tensors[:-1])

        return self.checkpoint(run, *flat, *(() if bias is None else (bias,)))
