"""How many samples one step sees; `train_batch_size` = micro batch x accumulation x data parallel size."""

from __future__ import annotations

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count


class Batch(Group, origin="DSC"):
    """Batch sizes; any two of the three sizes determine the third."""

    train_batch_size: Count = param(derived=True, megatron="global-batch-size")
    train_micro_batch_size_per_gpu: Count = param(derived=True, megatron="micro-batch-size")
    gradient_accumulation_steps: Count = param(derived=True)
    batch_size: Count = param(derived=True, origin="Meg")
    gas: Count = param(derived=True, origin="NeoX")
