"""The class of each layer's block."""

from __future__ import annotations

from torch import nn

from neoxargs.config.config import Config
from neoxargs.facts.layer_kinds import ATTENTION_BLOCK, PARALLEL_BLOCK, RECURRENT, block_name
from neoxargs.train.model.blocks.mamba import MambaTransformerBlock
from neoxargs.train.model.blocks.parallel import ParallelTransformerBlock
from neoxargs.train.model.blocks.rwkv import RwkvTransformerBlock
from neoxargs.train.model.blocks.sequential import TransformerBlock

#: Class name -> the class of a block, for both engines.
BLOCKS: dict[str, type[nn.Module]] = {
    ATTENTION_BLOCK: TransformerBlock,
    PARALLEL_BLOCK: ParallelTransformerBlock,
    RECURRENT["mamba"]: MambaTransformerBlock,
    RECURRENT["rwkv"]: RwkvTransformerBlock,
}


def block_class(config: Config, layer: int) -> type[nn.Module]:
    """Return the class of a layer's block."""
    return BLOCKS[block_name(config, layer)]
