"""What the plan takes for granted: every number in it that no configuration file says.

ActivationSizes are in bytes, rates in bytes or operations per second. docs/plan.md says where each comes from.
"""

from __future__ import annotations

from neoxargs.text import GIB

#: fp32, and the two 16-bit formats.
SINGLE, HALF = 4, 2
#: Rows of the vocabulary where only a tokenizer that is not here knows them: GPT-2's.
VOCABULARY = 50_257

#: How much of a device's memory a plan may fill: the estimate is good to about 5 %.
USABLE = 0.95
#: CUDA's context, the kernels of torch and cuBLAS' workspace, on a GPU; Python and torch on a CPU.
CONTEXT = {"cuda": int(0.75 * GIB), "cpu": int(0.4 * GIB)}
#: NCCL's channels for one group of ranks (2 channels a peer, 4 MiB buffers, both directions, some tens of them).
GROUP_BUFFERS = 200 * 2**20
#: What torch's allocator reserves and cannot use, as a share of activations and temporary buffers.
FRAGMENTATION = 0.08
#: Logits that the loss computes at once (train/kernels/cross_entropy.py), by device.
LOGITS_AT_ONCE = {"cpu": 2**25, "cuda": 2**27}
#: DeepSpeed sums gradients in buffers of at most so many elements where there is no ZeRO.
ALLREDUCE_BUCKET = 500_000_000

#: What a host is taken to have for one GPU where nobody says: half a DGX-A100 node's 2 TiB over 8.
HOST_MEMORY_PER_GPU = 128 * GIB

#: Share of a device's peak that the matrix products of a transformer reach in 16 bits (Narayanan et al. 2021,
#: arXiv:2104.04473, table 1: 44-52 % on A100) and in fp32 (measured on two CPU cores: 0.5).
EFFICIENCY = {HALF: 0.45, SINGLE: 0.5}
#: With so many tokens in a micro batch the matrix products run at half of that: they are too small to fill a device.
TOKENS_AT_HALF_RATE = {"cuda": 128, "cpu": 8}
#: Share of a link's rate that a collective reaches (NCCL's own bus bandwidth tests show 70-85 % of large messages).
LINK_EFFICIENCY = 0.75
#: From a GPU to its host's memory and back, per GPU: PCIe 4.0 x16 is 32e9; less what pageable copies cost.
HOST_LINK = 12e9
#: From a host's NVMe drives to its memory and back, per GPU (Rajbhandari et al. 2021, arXiv:2104.07857, figure 2b).
DISK_LINK = 1.6e9
#: DeepSpeed's CPU Adam, parameters per second and rank (Ren et al. 2021, arXiv:2101.06840, table 4: 1e9 in 0.26-0.51 s
#: with all cores of a host; a host serves up to 16 ranks).
CPU_ADAM = 250e6
#: Memory traffic of the optimizer step for one parameter on the device: fp32 gradient, master and moments in and out.
STEP_TRAFFIC = 30
