"""One transformer layer.

The class name is part of the interface: `pipe_partition_method: type:transformer|mlp` selects layers by class name.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import ATTENTION_BLOCK, RECURRENT, block_name
from neoxargs.facts.model import has_experts, mlp_norm_options, norms_after, norms_before
from neoxargs.registry.model import Norm
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.bias import RelativeBias
from neoxargs.train.model.documents import LayerInput, pack, unpack
from neoxargs.train.model.experts.layer import Experts
from neoxargs.train.model.mlp import FeedForward
from neoxargs.train.model.norm import norm
from neoxargs.train.model.recurrent.mamba import MambaTransformerBlock
from neoxargs.train.model.recurrent.rwkv import RwkvTransformerBlock
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.fused import DropoutAdd
from neoxargs.train.parallel.communicate import leave_region
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.mesh import ALONE

#: Whether a layer has experts -> the class of its feed-forward.
FEED_FORWARD: dict[bool, Callable[[Config, Weights, Shared, bool], nn.Module]] = {False: FeedForward, True: Experts}


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each with a residual connection: (batch, seq, hidden) -> (batch, seq, hidden).

    With `gpt_j_residual` both read the layer's input (GPT-J's parallel residual), through separate norms unless
    `gpt_j_tied`, and one all-reduce sums both over the tensor parallel ranks. With
    `apply_residual_connection_post_layernorm` the residual is the normalised input instead of the input itself. Norms
    are where `norm_placement` says.
    """

    def __init__(
        self, config: Config, weights: Weights, shared: Shared, layer: int = 0, relative: RelativeBias | None = None
    ) -> None:
        super().__init__()
        regularization = config.regularization
        self.parallel_residual = config.attention.gpt_j_residual
        self.post_norm_residual = config.norm.apply_residual_connection_post_layernorm
        self.tensor, self.shards, self.recompute = weights.ranks.tensor, weights.ranks.shards, shared.recompute
        self.one_sum = self.parallel_residual and self.tensor.size > 1
        before, after = norms_before(config.norm), norms_after(config.norm)
        self.input_layernorm = self._norm(config, before)
        # Row layers then return summands, and this block sums attention and feed-forward together.
        self.attention = SelfAttention(config, weights.at("attention"), shared, layer, relative, self.one_sum)
        self.tied = self.parallel_residual and config.attention.gpt_j_tied
        self.post_attention_layernorm = self._norm(config, before and not self.tied, mlp_norm_options(config))
        self.attention_output_layernorm = self._norm(config, after)
        self.mlp_output_layernorm = self._norm(config, after)
        self.mlp = FEED_FORWARD[has_experts(config, layer)](config, weights.at("mlp"), shared, self.one_sum)
        self.dropout = nn.Dropout(regularization.hidden_dropout)
        # Partial sums cover all tokens of the sequence, and every rank must drop the same elements of them.
        shards = ALONE if self.one_sum else self.shards
        self.add = DropoutAdd(regularization.hidden_dropout, config.fusion.bias_dropout_fusion, shards)

    def _norm(self, config: Config, is_there: bool, options: Norm | None = None) -> nn.Module | None:
        return norm(config.shape.hidden_size, options or config.norm, self.shards) if is_there else None

    # Called through `recompute`, because a norm's output can be computed again from its stored input.
    def _normed(self, layer: nn.Module | None, x: Tensor) -> Tensor:
        return x if layer is None else self.recompute(layer, x)

    def forward(self, inputs: LayerInput) -> LayerInput:
        with self.recompute.layer():
            return self._forward(inputs)

    def _forward(self, inputs: LayerInput) -> LayerInput:
        hidden, starts = unpack(inputs)
        normed = self._normed(self.input_layernorm, hidden)
        if self.one_sum:
            return pack(hidden + self._parallel_branches(hidden, normed, starts), starts)
        update = self._normed(self.attention_output_layernorm, self.attention(normed, starts))
        attended = self.add(update, normed if self.post_norm_residual else hidden)
        if not self.tied:
            normed = self._normed(self.post_attention_layernorm, hidden if self.parallel_residual else attended)
        update = self._normed(self.mlp_output_layernorm, self.mlp(normed))
        return pack(self.add(update, normed if self.post_norm_residual else attended), starts)

    def _parallel_branches(self, hidden: Tensor, normed: Tensor, starts: Tensor | None) -> Tensor:
        """Attention and feed-forward of the parallel residual, with one sum over the tensor parallel ranks."""
        attended = self.dropout(self.attention(normed, starts))
        if not self.tied:
            normed = self._normed(self.post_attention_layernorm, hidden)
        return leave_region(self.add(self.mlp(normed), attended), self.tensor, self.shards)


#: Class name -> the class of a block, for both engines.
BLOCKS: dict[str, type[nn.Module]] = {
    ATTENTION_BLOCK: TransformerBlock,
    RECURRENT["mamba"]: MambaTransformerBlock,
    RECURRENT["rwkv"]: RwkvTransformerBlock,
}


def block_class(config: Config, layer: int) -> type[nn.Module]:
    """Return the class of a layer's block."""
    return BLOCKS[block_name(config, layer)]
