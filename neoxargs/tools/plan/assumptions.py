"""The assumptions of a plan: every number that it uses and no configuration file sets.

Sizes are in bytes, rates in bytes or operations per second. docs/plan.md gives the sources.
"""

from __future__ import annotations

from neoxargs.text import GIB

#: Bytes of a number in fp32, and in fp16 or bf16.
SINGLE, HALF = 4, 2
#: Rows of the vocabulary, before padding, where the tokenizer's size is unknown: GPT-2's.
VOCABULARY = 50_257

#: Share of a device's memory that a plan may use; the rest covers the error of the estimate, about 5 %.
USABLE = 0.95
#: On a GPU, CUDA's context, torch's kernels and cuBLAS' workspace; on a CPU, Python and torch.
CONTEXT = {"cuda": int(0.75 * GIB), "cpu": int(0.4 * GIB)}
#: NCCL's buffers for one process group: some tens of 4 MiB, for 2 channels per peer in both directions.
GROUP_BUFFERS = 200 * 2**20
#: Memory that torch's allocator reserves and cannot use, as a share of activations, logits and buffers.
FRAGMENTATION = 0.08
#: Number of logits that the loss computes at once (train/kernels/cross_entropy.py), by kind of device.
LOGITS_AT_ONCE = {"cpu": 2**25, "cuda": 2**27}
#: Most elements of the buffer in which DeepSpeed reduces gradients without ZeRO.
ALLREDUCE_BUCKET = 500_000_000

#: Host memory per GPU if --host-memory is not given: half of a DGX A100's 2 TiB, divided by its 8 GPUs.
HOST_MEMORY_PER_GPU = 128 * GIB

#: Share of a device's peak rate that matrix multiplications of a transformer reach in 16 bits (Narayanan et al. 2021,
#: arXiv:2104.04473, table 1: 44-52 % on A100) and in fp32 (measured on two CPU cores: 0.5).
EFFICIENCY = {HALF: 0.45, SINGLE: 0.5}
#: Tokens in a micro batch at which efficiency is half of that: smaller multiplications do not occupy the device.
TOKENS_AT_HALF_RATE = {"cuda": 128, "cpu": 8}
#: Share of a link's rate that a collective reaches (nccl-tests report a bus bandwidth of 70-85 % for large messages).
LINK_EFFICIENCY = 0.75
#: Between a GPU and host memory, per GPU: PCIe 4.0 x16 has 32e9, pageable copies reach less.
HOST_LINK = 12e9
#: Between NVMe drives and host memory, per GPU (Rajbhandari et al. 2021, arXiv:2104.07857, figure 2b).
DISK_LINK = 1.6e9
#: Parameters per second and rank that DeepSpeed's CPU Adam updates (Ren et al. 2021, arXiv:2101.06840, table 4:
#: 1e9 in 0.26-0.51 s with all cores of a host, which up to 16 ranks share).
CPU_ADAM = 250e6
#: Bytes of device memory that the optimizer step reads and writes per parameter: fp32 gradient, master and moments.
STEP_TRAFFIC = 30
