"""Stand-ins for torch.cuda, with which a trainer that requires CUDA, such as GPT-NeoX, trains on CPUs.

Python imports this module at its start if its folder is in PYTHONPATH. Tensors stay on the CPU, and the number of
devices is CUDA_STAND_INS. Nothing of DeepSpeed or of the trainer is replaced.
"""

import os
from types import SimpleNamespace

import torch

cuda = torch.cuda
cuda.is_available = lambda: True
cuda.device_count = lambda: int(os.environ["CUDA_STAND_INS"])
cuda.current_device = lambda: torch.device("cpu")
cuda.get_rng_state = lambda *_: torch.get_rng_state()
cuda.set_rng_state = lambda state, *_: torch.set_rng_state(state)
cuda._lazy_call = lambda call, **_: call()
cuda.nvtx = SimpleNamespace(range_push=lambda *_: None, range_pop=lambda *_: None)
# A function of its own for each name, because torch's compiler looks functions up by identity.
for name in ("set_device", "synchronize", "manual_seed", "manual_seed_all", "empty_cache", "reset_peak_memory_stats"):
    setattr(cuda, name, lambda *_: None)
for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
    setattr(cuda, name, lambda *_: 0)
for name in ("LongTensor", "FloatTensor", "IntTensor", "ByteTensor"):
    setattr(cuda, name, getattr(torch, name))
torch.Tensor.cuda = lambda self, *_, **__: self
torch.nn.Module.cuda = lambda self, *_, **__: self
