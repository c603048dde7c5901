"""What a rank imports before its first step, imported once by the process from which the ranks of tests fork."""

from __future__ import annotations

import gc
import warnings
from importlib import import_module

gc.disable()
#: DeepSpeed, megatron-core and neoxargs import all but the first late, in every rank.
for name in (
    "neoxargs.train.run",
    "deepspeed.module_inject",
    "deepspeed.moe.utils",
    "megatron.core.datasets.gpt_dataset",
    "torch._subclasses.fake_tensor",
    "torch.profiler",
    "torch.utils.tensorboard",
    "wandb",
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # megatron-core recommends Transformer Engine and Apex, which are not used
        import_module(name)

# ZeRO-3 collects garbage in every forward pass; without this each collection visits, and so copies, all these modules.
gc.collect()
gc.freeze()
gc.enable()
