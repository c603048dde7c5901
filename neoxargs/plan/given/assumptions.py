"""The assumptions of a plan: every number that it uses and that no configuration file sets.

`deepy plan --assumptions` lists them with their sources; `--assume KEY=VALUE` replaces one.
"""

from __future__ import annotations

import math
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from neoxargs.base.problems import Problem, Problems, did_you_mean
from neoxargs.base.text import GIB

#: Bytes of a number in fp32, and in fp16 or bf16.
SINGLE, HALF = 4, 2
#: Rows of the vocabulary, before padding, where the tokenizer's size is unknown: GPT-2's.
VOCABULARY = 50_257
#: Most elements of the buffer in which DeepSpeed reduces gradients without ZeRO.
ALLREDUCE_BUCKET = 500_000_000
#: Logits that the loss computes at once on a CPU (train/losses/cross_entropy.py).
LOGITS_ON_CPU = 2**25


#: The largest value of an assumption that has no other limit.
NO_LIMIT = 1e18
#: Unit of an assumption -> its smallest and largest value. What a time is divided by is never 0.
RANGES = {
    "fraction of memory": (0.01, 1), "fraction of peak rate": (0.001, 1), "fraction of bandwidth": (0.001, 1),
    "fraction of compute time": (0, 1), "ratio": (0, 100), "ratio to the mean": (1, 1000), "factor": (0.001, 1000),
    "GB/s": (0.001, NO_LIMIT), "parameters/s": (1, NO_LIMIT), "GiB": (0, NO_LIMIT), "bytes": (0, NO_LIMIT),
    "elements": (1, NO_LIMIT), "tokens": (0, NO_LIMIT), "s": (0, 3600), "0 or 1": (0, 1), "0, 1 or 2": (0, 2),
}  # fmt: skip
#: Value of an assumption that the configuration decides.
CONFIGURED = -1


def assume(default: float, unit: str, meaning: str, source: str) -> Any:
    """Declare an assumption, whose unit determines its range. default: CONFIGURED where the configuration decides."""
    limits = {"unit": unit, "low": RANGES[unit][0], "high": RANGES[unit][1]}
    return field(default=default, metadata={**limits, "meaning": meaning, "source": source})


@dataclass(frozen=True)
class Assumptions:
    """All assumptions. The defaults describe train.py with torch 2.13 on Linux."""

    usable: float = assume(
        0.97, "fraction of memory", "fraction of a device's memory that a run may use",
        "of 80 GiB, the driver reserves 0.4 GiB on an H100 and 0.7 GiB on an A100 (nvidia-smi shows 81,559 and 81,251 "
        "MiB); the rest is a margin for estimation errors",
    )  # fmt: skip
    context: float = assume(
        0.75, "GiB", "memory of the CUDA context and torch's kernels on a GPU, which torch's allocator does not count",
        "CUDA programming guide, lazy loading: since CUDA 11.7, kernels are loaded on first use. Before that, torch "
        "1.x loaded all kernels: about 1.6 GiB on an A100",
    )  # fmt: skip
    workspace: float = assume(
        0.03, "GiB", "cuBLAS workspace, allocated by torch's allocator",
        "pytorch.org, CUDA semantics: 32 MiB on an H100, 8 MiB on earlier GPUs",
    )  # fmt: skip
    group_buffers: float = assume(
        0.2, "GiB", "NCCL buffers per process group",
        "NCCL_BUFFSIZE is 4 MiB per channel and direction; NCCL uses tens of channels",
    )  # fmt: skip
    process: float = assume(0.4, "GiB", "host memory of Python and torch, per rank", "measured with torch 2.13")
    fragmentation: float = assume(
        0.08, "ratio", "memory that the allocator reserves in addition to activations, logits and buffers, relative "
                       "to their size",
        "assumed for expandable segments, which train.py turns on (pytorch.org, CUDA semantics, memory management)",
    )  # fmt: skip
    cached_blocks: float = assume(
        0.0, "ratio", "memory in cached blocks that no later tensor can reuse, relative to all allocated memory",
        "0 with expandable segments; 0.15 to 0.27 without them (range in the logs of bigscience-workshop/bigscience, "
        "experiments/gpt2-meg)",
    )  # fmt: skip
    logits_at_once: float = assume(
        2**27, "elements",
        "number of logits that the loss computes in one chunk on a GPU; with 1e15, the loss computes all logits at "
        "once",
        "train/losses/cross_entropy.py; Megatron-LM and FSDP programs compute all logits at once",
    )  # fmt: skip
    logit_bytes: float = assume(
        6, "bytes", "memory per logit while the loss of a chunk is computed, in 16-bit precision",
        "the logits in fp32, and either the logits or their gradient in 16 bits. Megatron-LM also needs 6, because "
        "it computes the softmax in place (core/tensor_parallel/cross_entropy.py); before 2023, it needed 10, as "
        "torch's cross_entropy does today",
    )  # fmt: skip
    unfused_attention: float = assume(
        0, "0, 1 or 2", "0: fused attention; 1: attention stores the scores of all pairs of tokens (--attention "
                        "unfused); 2: attention recomputes these scores in the backward pass",
        "Korthikanti et al. 2022, arXiv:2205.05198, section 4.1: 2 bytes per score, 5 with dropout",
    )  # fmt: skip
    score_memory: float = assume(
        -1, "bytes", "memory that unfused attention keeps per score",
        "by default, 2 bytes in 16-bit precision, 5 with dropout (arXiv:2205.05198)",
    )  # fmt: skip
    unfused_norms: float = assume(
        0, "0 or 1", "1: RMSNorm runs as several fp32 kernels and stores the result of each; 0: one fused kernel",
        "LlamaRMSNorm of transformers (models/llama/modeling_llama.py); train.py uses torch's fused kernel",
    )  # fmt: skip
    projection_kept: float = assume(
        0, "0 or 1", "1: the output of the QKV projection is stored in addition to the rotated queries and keys; 0: "
        "it is not",
        "core/transformer/attention.py of Megatron-LM: the values are a view of this output. train.py writes queries, "
        "keys and values to one tensor (train/ops/rotary.py)",
    )  # fmt: skip
    activation_memory: float = assume(
        -1, "bytes", "memory that the activation function keeps per output element, including its operands",
        "by default, its input and output, as with a fused kernel; transformers' gelu_new (activations.py) keeps 18 to "
        "20 bytes",
    )  # fmt: skip
    expert_imbalance: float = assume(
        1.2, "ratio to the mean", "load of the rank with the busiest experts, relative to the mean load, if ranks hold "
        "different experts",
        "assumed for a trained router with a load-balancing loss; moe/max_load logs the load of the busiest expert",
    )  # fmt: skip
    partitioned: float = assume(
        1, "0 or 1", "1: with ZeRO stage 0 and 16-bit training, optimizer state is still partitioned; 0: it is not",
        "train.py and DeepSpeed's pipeline partition optimizer state; Megatron-LM does so only with "
        "--use-distributed-optimizer",
    )  # fmt: skip
    weight_bytes: float = assume(
        -1, "bytes", "memory per weight, between steps", "by default, determined by the precision"
    )
    gradient_bytes: float = assume(
        -1,
        "bytes",
        "memory per gradient",
        "by default, determined by DeepSpeed's optimizer, the precision and the ZeRO stage",
    )
    optimizer_bytes: float = assume(
        -1, "bytes", "memory for the master weight and moments, per parameter",
        "by default, determined by the optimizer and the precision",
    )  # fmt: skip
    step_bytes: float = assume(
        -1, "bytes", "memory that the optimizer step allocates, per updated parameter",
        "by default, what deepspeed/runtime/zero allocates: a copy of the gradient in fp32",
    )  # fmt: skip
    bucket: float = assume(
        -1, "elements", "size of the gradient reduction buffers", "by default, what DeepSpeed allocates"
    )
    host_memory: float = assume(
        128, "GiB", "host memory per GPU if --host-memory is not given", "half of a DGX A100's 2 TiB, divided by 8"
    )
    host_usable: float = assume(
        0.95, "fraction of memory", "fraction of a host's memory that the ranks may use",
        "Google Kubernetes Engine reserves 8.6 % of 64 GiB and 3.3 % of 512 GiB for the system",
    )  # fmt: skip

    matmul: float = assume(
        0.8, "fraction of peak rate", "rate of large 16-bit matrix multiplications on A100",
        "Anthony et al. 2024, arXiv:2401.14489, figures 5 to 8: 230 to 260 of an A100's 312 TFLOP/s",
    )  # fmt: skip
    matmul_hopper: float = assume(
        0.74, "fraction of peak rate",
        "rate of large 16-bit matrix multiplications on H100, H200 and later, whose clock rates drop under load",
        "an 8192 x 8192 x 8192 multiplication in bf16 runs at 790 of 989 TFLOP/s for a few milliseconds (measured on "
        "H100 and H200), and at 620 to 720 TFLOP/s at the 700 W power limit. The measured rates include memory "
        "traffic, which the plan adds separately",
    )  # fmt: skip
    matmul_single: float = assume(
        0.5, "fraction of peak rate", "rate of matrix multiplications in fp32", "measured on two CPU cores"
    )
    matmul_volta: float = assume(
        0.72, "fraction of peak rate", "rate of large 16-bit matrix multiplications on V100",
        "Anthony et al. 2024, arXiv:2401.14489: 80 to 95 of a V100's 125 TFLOP/s",
    )  # fmt: skip
    attention: float = assume(
        0.56, "fraction of peak rate",
        "rate of fused attention over long sequences on A100 and earlier, forward and backward",
        "Dao 2023, arXiv:2307.08691, figure 4: 150 to 190 TFLOP/s with a causal mask at 4k to 16k tokens; the first "
        "version of FlashAttention reaches about 0.3 of the peak rate",
    )  # fmt: skip
    attention_hopper: float = assume(
        0.4, "fraction of peak rate", "rate of fused attention over long sequences on H100 and later",
        "Shah et al. 2024, arXiv:2407.08608: FlashAttention-2 reaches 35 to 40 % of an H100's peak",
    )  # fmt: skip
    attention_tokens: float = assume(
        400, "tokens", "sequence length at which fused attention reaches half of its rate over long sequences",
        "arXiv:2307.08691, figure 4: about 90 TFLOP/s at 512 tokens on an A100",
    )  # fmt: skip
    score_bytes: float = assume(
        30, "bytes", "device memory that unfused attention reads and writes per score, forward and backward",
        "QK^T, softmax and dropout together read and write fifteen 16-bit values per score",
    )  # fmt: skip
    bandwidth: float = assume(
        0.85, "fraction of peak rate", "device memory bandwidth that elementwise kernels achieve",
        "copies reach 85 to 92 %: 3.0 of 3.35 TB/s measured on an H100, 4.3 of 4.8 TB/s on an H200",
    )  # fmt: skip
    kernel: float = assume(
        4.5e-6, "s", "minimum time of a kernel", "CUDA's launch latency, commonly measured as 3 to 6 us"
    )
    eager: float = assume(
        1.0, "factor",
        "memory traffic of kernels other than matrix multiplications and attention, relative to the traffic "
        "counted for eager kernels",
        "plan/time/roofline.py counts the traffic of torch's eager kernels",
    )  # fmt: skip
    compiled: float = assume(
        0.6, "factor",
        "with compile_layers, memory traffic of kernels other than matrix multiplications and attention, relative to "
        "the traffic counted for eager kernels",
        "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: Llama 3.1 8B is 16 % faster compiled",
    )  # fmt: skip
    link: float = assume(
        0.75, "fraction of bandwidth", "fraction of the link bandwidth that a collective achieves",
        "nccl-tests report a bus bandwidth of 70 to 85 % for large messages",
    )  # fmt: skip
    latency: float = assume(
        15e-6, "s", "minimum time of a collective", "nccl-tests: 10 to 30 us for small messages within one host"
    )
    overlap: float = assume(
        0.8, "fraction of compute time",
        "fraction of the compute time that can overlap with communication of weights and gradients",
        "Zhao et al. 2023 (FSDP), arXiv:2304.11277, section 5; DeepSpeed with overlap_comm",
    )  # fmt: skip
    host_link: float = assume(
        12, "GB/s", "transfer rate between a GPU and host memory",
        "PCIe 4.0 x16 peaks at 32 GB/s; pageable copies are slower",
    )  # fmt: skip
    disk_link: float = assume(
        1.6, "GB/s", "transfer rate between NVMe drives and host memory, per GPU",
        "Rajbhandari et al. 2021, arXiv:2104.07857, figure 2b",
    )  # fmt: skip
    cpu_adam: float = assume(
        250e6, "parameters/s", "update rate of DeepSpeed's CPU Adam per rank",
        "Ren et al. 2021, arXiv:2101.06840, table 4: 1e9 parameters in 0.26 to 0.51 s on all cores of a host, "
        "which up to 16 ranks share",
    )  # fmt: skip
    logit_traffic: float = assume(
        48, "bytes", "device memory that the loss reads and writes per logit",
        "about 8 fp32 passes over the logits in train/losses/cross_entropy.py, plus the traffic of its matrix "
        "multiplications",
    )  # fmt: skip
    compiled_logit_traffic: float = assume(
        8, "bytes", "device memory that the loss reads and writes per logit, with compile_layers",
        "bench/on_gpu.py on an H100: 52 ms for 17 billion logits",
    )  # fmt: skip
    step_traffic: float = assume(
        30, "bytes", "device memory that the optimizer step reads and writes per parameter",
        "fp32 gradient, master weight and moments",
    )  # fmt: skip

    def bytes_of(self, name: str) -> int:
        """Return an assumption in GiB as bytes."""
        return int(getattr(self, name) * GIB)

    def most_logits(self, kind: str) -> int:
        """Return the logits that the loss computes at once on a kind of device."""
        return LOGITS_ON_CPU if kind == "cpu" else int(self.logits_at_once)


#: What a plan assumes unless told otherwise.
DEFAULT = Assumptions()
FIELDS = {each.name: each for each in fields(Assumptions)}
NAMES = tuple(FIELDS)


def with_changes(changes: list[str], assumed: Assumptions = DEFAULT) -> Assumptions:
    """Return assumptions with `KEY=VALUE` changes. Raises Problems that name unknown keys and values out of range."""
    problems: list[Problem] = []
    values: dict[str, float] = {}
    for change in changes:
        key, _, text = change.partition("=")
        key = key.strip().replace("-", "_")
        if key not in FIELDS:
            hint = did_you_mean(key, NAMES) or "deepy plan --assumptions lists all assumptions"
            problems.append(Problem(f"unknown assumption: {key}", hint=hint, id="unknown-assumption"))
            continue
        values[key] = number = _number(text)
        if not _allowed(FIELDS[key], number):
            problems.append(_outside(FIELDS[key], text))
    if problems:
        raise Problems(problems)
    return replace(assumed, **values)


def _number(text: str) -> float:
    """Return the number, or nan, which no range contains."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _allowed(each: Field[Any], number: float) -> bool:
    if number == CONFIGURED == each.default:
        return True
    whole = not each.metadata["unit"].startswith("0") or number.is_integer()
    return whole and each.metadata["low"] <= number <= each.metadata["high"]


def _outside(each: Field[Any], text: str) -> Problem:
    example = each.metadata["low"] if each.default == CONFIGURED else getattr(DEFAULT, each.name)
    what = f"--assume {each.name} ({text!r}) must be {_range(each)}"
    return Problem(what, hint=f"for example --assume {each.name}={example:g}", id="assumption-value")


def _range(each: Field[Any]) -> str:
    """Return the allowed values, such as `a number from 0.001 to 1 (fraction of bandwidth)`."""
    about = each.metadata
    if about["unit"].startswith("0"):
        return str(about["unit"])
    limits = (
        f"of at least {about['low']:g}" if about["high"] == NO_LIMIT else f"from {about['low']:g} to {about['high']:g}"
    )
    derived = ", or -1 to derive it from the configuration" if each.default == CONFIGURED else ""
    return f"a number {limits} ({about['unit']}){derived}"


def _unit(unit: str) -> str:
    """Return a unit as it follows a number; "" for a switch, whose unit is the list of its values."""
    if unit.startswith("0"):
        return ""
    is_relative = unit.startswith(("fraction", "ratio", "factor"))
    return f" ({unit})" if is_relative else f" {unit}"


def list_assumptions(assumed: Assumptions = DEFAULT) -> str:
    """Return all assumptions with their meaning and source, for `--assumptions`."""
    blocks = []
    for each in fields(Assumptions):
        about = each.metadata
        value = getattr(assumed, each.name)
        shown = "derived from the configuration" if value == CONFIGURED else f"{value:g}{_unit(about['unit'])}"
        blocks.append(
            f"{each.name}: {shown}\n    {about['meaning']}\n    allowed: {_range(each)}\n    source: {about['source']}"
        )
    return "\n".join(blocks)
