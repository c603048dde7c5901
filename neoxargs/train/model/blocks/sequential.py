"""Attention, then feed-forward: GPT-2 and GPT-3, Llama, Mistral, Mixtral, Qwen, Phi-3, Gemma, OLMo 2 and OLMoE.

The class name is part of the interface: `pipe_partition_method: type:transformer|mlp` selects layers by class name.
"""

from __future__ import annotations

from torch import nn

from neoxargs.config.config import Config
from neoxargs.facts.model import has_experts, mlp_norm_options, norms_after, norms_before
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.bias import RelativeBias
from neoxargs.train.model.documents import LayerInput, pack, unpack
from neoxargs.train.model.experts.layer import Experts
from neoxargs.train.model.mlp import FeedForward
from neoxargs.train.model.norm import norm, normed
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.fused import DropoutAdd
from neoxargs.train.parallel.layers import Weights


class TransformerBlock(nn.Module):
    """Attention and feed-forward, each with a residual connection: hidden_BSD -> hidden_BSD.

    Norms are before each of the two (GPT-2, Llama), after each (OLMo 2), or both (Gemma), as `norm_placement` says.
    With sequence parallelism S is a shard.
    """

    def __init__(
        self, config: Config, weights: Weights, shared: Shared, layer: int = 0, relative: RelativeBias | None = None
    ) -> None:
        super().__init__()
        width, sequence = config.shape.hidden_size, weights.ranks.sequence
        before, after = norms_before(config.norm), norms_after(config.norm)
        self.recompute = shared.recompute
        #: The residual is the normalised input instead of the input itself.
        self.post_norm_residual = config.norm.apply_residual_connection_post_layernorm
        self.input_layernorm = norm(width, config.norm, sequence) if before else None
        self.attention = SelfAttention(config, weights.at("attention"), shared, layer, relative)
        self.post_attention_layernorm = norm(width, mlp_norm_options(config), sequence) if before else None
        self.attention_output_layernorm = norm(width, config.norm, sequence) if after else None
        self.mlp_output_layernorm = norm(width, config.norm, sequence) if after else None
        feed_forward = Experts if has_experts(config, layer) else FeedForward
        self.mlp = feed_forward(config, weights.at("mlp"), shared)
        self.add = DropoutAdd(config.regularization.hidden_dropout, config.fusion.bias_dropout_fusion, sequence)

    def forward(self, inputs: LayerInput) -> LayerInput:
        hidden_BSD, starts_BS = unpack(inputs)
        with self.recompute.layer():
            normed_BSD = normed(self.input_layernorm, hidden_BSD, self.recompute)
            update_BSD = self.attention(normed_BSD, starts_BS)
            update_BSD = normed(self.attention_output_layernorm, update_BSD, self.recompute)
            hidden_BSD = self.add(update_BSD, normed_BSD if self.post_norm_residual else hidden_BSD)

            normed_BSD = normed(self.post_attention_layernorm, hidden_BSD, self.recompute)
            update_BSD = self.mlp(normed_BSD)
            update_BSD = normed(self.mlp_output_layernorm, update_BSD, self.recompute)
            hidden_BSD = self.add(update_BSD, normed_BSD if self.post_norm_residual else hidden_BSD)
        return pack(hidden_BSD, starts_BS)
