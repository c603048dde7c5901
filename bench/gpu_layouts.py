"""The layouts that bench/on_gpu.py trains on one GPU and on all GPUs of a machine, and how it judges them."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from gpu_processes import NO_TIME, Row, run_trials  # noqa: E402
from gpu_trials import Trial, resolve_trial  # noqa: E402

from neoxargs.facts.gradient_sum import BYTES, gradient_sum  # noqa: E402

#: The layouts' model. Heads of 32 and sequences of 256, for which all kernels exist.
MODEL: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "seq_length": 256, "max_position_embeddings": 256,
    "padded_vocab_size": 512, "pos_emb": "learned", "pipe_parallel_size": 0, "model_parallel_size": 1,
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
    "optimizer.type": "Adam", "optimizer.params.lr": 0.002, "lr_decay_style": "constant", "warmup": 0.0,
    "train_iters": 1000, "attention_dropout": 0.0, "hidden_dropout": 0.0, "use_cpu_initialization": True,
    "data_path": "none", "dialect": "neox-2026", "precision": "fp32",
}  # fmt: skip
BF16: dict[str, Any] = {"precision": "bfloat16"}
FP16: dict[str, Any] = {"precision": "fp16", "fp16.initial_scale_power": 8}  # a higher scale overflows at first
PIPE = {"pipe_parallel_size": 1}
RECOMPUTED = {"checkpoint_activations": True}
DOCUMENTS = {"reset_position_ids": True, "reset_attention_mask": True}
SPARSITY = {"block": 16, "num_random_blocks": 1, "num_sliding_window_blocks": 3, "different_layout_per_head": True}
EXPERTS = {"moe_num_experts": 4, "moe_top_k": 2}
GEMMA = {"pos_emb": "rotary", "norm": "rmsnorm", "norm_placement": "both", "attn_logit_softcapping": 50,
         "final_logit_softcapping": 30, "sliding_window_width": 50, "window_attn_skip_freq": 2, "num_kv_heads": 2,
         "head_dim": 64, "activation": "geglu_tanh"}  # fmt: skip
OFFLOADED = {"zero_optimization.offload_optimizer.device": "cpu", "optimizer.params.torch_adam": True}


def _zero(stage: int, **changes: Any) -> dict[str, Any]:
    return {"zero_optimization.stage": stage, **changes}


#: Name -> changes of the model.
LAYOUTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp32, pipeline engine": PIPE,
    "bf16": BF16,
    "bf16, pipeline engine": BF16 | PIPE,
    "bf16, softmax in fp32": BF16 | {"attention_softmax_in_fp32": True},
    "fp16": FP16,
    "fp16, pipeline engine": FP16 | PIPE,
    **{f"ZeRO-{stage}": _zero(stage) for stage in (1, 2, 3)},
    **{f"bf16, ZeRO-{stage}": _zero(stage) | BF16 for stage in (1, 2, 3)},
    **{f"fp16, ZeRO-{stage}": _zero(stage) | FP16 for stage in (1, 2, 3)},
    "bf16, ZeRO-1, optimizer in host memory": _zero(1) | BF16 | OFFLOADED,
    "bf16, ZeRO-3, all in host memory": _zero(3) | BF16 | OFFLOADED | {"zero_optimization.offload_param.device": "cpu"},
    "recomputed": BF16 | RECOMPUTED,
    "recomputed, selective": BF16 | {"checkpoint_activations": "selective"},
    "recomputed, pipeline engine": BF16 | RECOMPUTED | PIPE,
    "recomputed, in host memory": BF16 | RECOMPUTED | {"checkpoint_in_cpu": True},
    "recomputed by DeepSpeed": BF16 | RECOMPUTED | {"deepspeed_activation_checkpointing": True},
    **{f"positions: {kind}": BF16 | {"pos_emb": kind} for kind in ("rotary", "sinusoidal", "rpe", "alibi", "none")},
    "grouped queries": BF16 | {"num_kv_heads": 2, "pos_emb": "rotary"},
    "sliding window": BF16 | {"sliding_window_width": 50, "num_kv_heads": 2},
    "documents": BF16 | DOCUMENTS,
    "documents, rotary": BF16 | DOCUMENTS | {"pos_emb": "rotary"},
    "documents, varlen": BF16 | DOCUMENTS | {"pos_emb": "rotary", "attention_backend": "varlen"},
    "documents, heads of 96": BF16 | DOCUMENTS | {"pos_emb": "rotary", "head_dim": 96},
    **{
        f"attention: {kind}": BF16 | {"attention_config": ["global", kind], "sparsity_config": SPARSITY}
        for kind in ("flash", "local", "bigbird", "sparse_fixed", "sparse_variable", "bslongformer")
    },
    "parallel residual": BF16 | {"gpt_j_residual": True, "pos_emb": "rotary", "rotary_pct": 0.25},
    "SwiGLU, RMSNorm": BF16 | {"activation": "swiglu", "norm": "rmsnorm"},
    "compiled layers": BF16 | {"compile_layers": True},
    "compiled layers, rotary, recomputed": BF16 | RECOMPUTED | {"compile_layers": True, "pos_emb": "rotary"},
    "rotation in one kernel": BF16 | {"pos_emb": "rotary", "rotary_pct": 0.25, "rope_fusion": True},
    "rotation in one kernel, grouped queries": BF16 | {"pos_emb": "rotary", "num_kv_heads": 2, "rope_fusion": True},
    "dropout in one kernel": BF16 | {"hidden_dropout": 0.1, "bias_dropout_fusion": True},
    **{
        f"optimizer: {kind}": BF16 | {"optimizer.type": kind}
        for kind in ("AdamW", "SGD", "Lamb", "Lion", "sm3", "madgrad_wd")
    },
    **{f"optimizer: {kind}": {"optimizer.type": kind} for kind in ("OneBitAdam", "OneBitLamb")},
    "optimizer: Muon": BF16 | {"optimizer.type": "Muon"},
    **{f"experts: {kind}": BF16 | EXPERTS | {"moe_router_type": kind} for kind in ("topk", "sinkhorn")},
    "experts, recomputed": BF16 | EXPERTS | RECOMPUTED,
    **{f"recurrent: {kind}": BF16 | {"attention_config": [kind, "global"]} for kind in ("mamba", "rwkv")},
    # With torch where these are not installed, as the row then says.
    "recurrent: kernels of mamba-ssm and causal-conv1d": BF16
    | {
        "attention_config": ["mamba", "global"],
        "mamba_selective_scan_fusion": True,
        "mamba_causal_conv_fusion": True,
    },
    "recurrent: kernels of flash-linear-attention": BF16
    | {
        "attention_config": ["rwkv", "global"],
        "rwkv_wkv_fusion": True,
    },
    "Gemma 2": BF16 | GEMMA,
    "Gemma 2, compiled": BF16 | GEMMA | {"compile_layers": True},
    "Qwen 3": BF16 | {"pos_emb": "rotary", "norm": "rmsnorm", "use_qk_layernorm": True, "activation": "swiglu"},
    "rotary, compiled, SwiGLU": BF16 | {"pos_emb": "rotary", "activation": "swiglu", "compile_layers": True},
    "deterministic": BF16 | {"deterministic": True},
}
#: Largest difference from the CPU, by numbers of bits: of losses relative to the CPU's; of logits absolute.
TOLERANCE = {32: (1e-3, 1e-3), 16: (2e-2, 5e-2)}
#: The same of losses with dropout.
DROPOUT_TOLERANCE = 0.1

SMALL: dict[str, Any] = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
                         "max_position_embeddings": 32, "padded_vocab_size": 128}  # fmt: skip
#: Steps of a layout, and of one with tiny models; seconds in which one layout of several GPUs must be over.
STEPS, SMALL_STEPS, EACH = 10, 2, 90.0
#: Processes that train layouts on one GPU at the same time: most of a layout's time is compiling, on the CPUs.
PROCESSES = 4
#: Largest relative difference of the norm of the first gradient from that of one process, by numbers of bits; of a
#: loss between ranks, all of which report the mean over the replicas.
NORM_TOLERANCE, BETWEEN_RANKS = {32: 1e-3, 16: 5e-2}, 1e-6

#: The model of layouts of several GPUs, with layers for four stages and heads for eight tensor parallel ranks.
SEVERAL_MODEL = MODEL | {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 8}
SEQUENCE = {"sequence_parallel": True}
#: Not sinkhorn, whose choice depends on what else is in a micro batch.
TOPK = EXPERTS | {"moe_router_type": "topk"}
DIVIDED = TOPK | {"moe_expert_parallel_size": 2}


def _tensor(ranks: int, **changes: Any) -> dict[str, Any]:
    return {"model_parallel_size": ranks, **changes}


#: So small that the model's gradients fill several.
BUCKETS = {"zero_optimization.reduce_bucket_size": 20_000}
#: Queries, keys and values are exchanged by all-to-all.
CONTEXT = {"context_parallel_size": 2}
RING = CONTEXT | {"context_parallel_style": "ring"}


def _stages(count: int, **changes: Any) -> dict[str, Any]:
    return {"pipe_parallel_size": count, **changes}


#: Name -> changes of the model, on all GPUs: what the layout leaves of them is data parallel. The most telling first.
SEVERAL: dict[str, dict[str, Any]] = {
    "bf16": BF16,
    "tp2, sequence parallel": BF16 | _tensor(2) | SEQUENCE,
    "pp2": BF16 | _stages(2),
    "bf16, ZeRO-3": BF16 | _zero(3, **BUCKETS),
    "experts divided": BF16 | DIVIDED,
    "tp2 x pp2, sequence parallel": BF16 | _tensor(2) | _stages(2) | SEQUENCE,
    "cp2": BF16 | CONTEXT,
    "fp32": {},
    "fp32, cp2": CONTEXT,
    "fp32, tp2, sequence parallel": _tensor(2) | SEQUENCE,
    "fp32, pp2": _stages(2),
    "fp32, ZeRO-3": _zero(3, **BUCKETS),
    "fp32, experts divided": DIVIDED,
    "bf16, ZeRO-1": BF16 | _zero(1, **BUCKETS),
    "bf16, ZeRO-2": BF16 | _zero(2, **BUCKETS),
    "tp4 x pp2, sequence parallel": BF16 | _tensor(4) | _stages(2) | SEQUENCE,
    "tp2 x pp4, sequence parallel": BF16 | _tensor(2) | _stages(4) | SEQUENCE,
    "tp8, sequence parallel": BF16 | _tensor(8) | SEQUENCE,
    "tp4, sequence parallel": BF16 | _tensor(4) | SEQUENCE,
    "pp4": BF16 | _stages(4),
    "tp2": BF16 | _tensor(2),
    "cp2 x tp2": BF16 | CONTEXT | _tensor(2),
    "tp2, experts": BF16 | _tensor(2) | TOPK,
    "experts divided by four": BF16 | DIVIDED | {"moe_expert_parallel_size": 4},
    "tp2, sequence parallel, recomputed": BF16 | _tensor(2) | SEQUENCE | {"checkpoint_activations": "selective"},
    "pp2, recomputed": BF16 | _stages(2) | RECOMPUTED,
    "fp16, ZeRO-2": FP16 | _zero(2, **BUCKETS),
    "bf16, ZeRO-3, optimizer in host memory": BF16 | _zero(3, **BUCKETS) | OFFLOADED,
    "cp2, ring": BF16 | RING,
    "cp2, experts": BF16 | CONTEXT | DIVIDED,
    "fp32, cp2, ring, windows and documents": RING
    | DOCUMENTS
    | {"sliding_window_width": 50, "attn_logit_softcapping": 50, "num_kv_heads": 2},
    "cp4, ring": BF16 | RING | {"context_parallel_size": 4},
    "cp4, hybrid": BF16 | RING | {"context_parallel_size": 4, "context_parallel_style": "hybrid", "num_kv_heads": 2},
    "fp32, cp2, mamba": CONTEXT | {"attention_config": ["mamba", "global"] * 2},
    "fp32, cp2, ring, rwkv, documents": RING | DOCUMENTS | {"attention_config": ["rwkv", "global"] * 2},
    "compiled layers, ZeRO-1": BF16 | _zero(1, **BUCKETS) | {"compile_layers": True},
    "compiled layers, tp2, sequence parallel": BF16 | _tensor(2) | SEQUENCE | {"compile_layers": True},
}
#: What a layout of several GPUs is compared with, besides what `fp32_on_cpu` says: one process.
ONE_PROCESS = {"model_parallel_size": 1, "pipe_parallel_size": 0, "sequence_parallel": False,
               "context_parallel_size": 1, "moe_expert_parallel_size": 1, "zero_optimization.stage": 1}  # fmt: skip


def compare_layouts(names: Sequence[str], small: bool, end: float) -> list[Row]:
    """Train these layouts on one GPU and on the CPU at the same time, and return their differences."""
    configs = {name: layout(name) | (SMALL if small else {}) for name in names}
    processes = 2 if small else PROCESSES
    threads = _threads(processes + 1)

    def trained(share: Sequence[str], device: dict[str, str], on_cpu: bool) -> dict[str, Row]:
        chosen = [fp32_on_cpu(configs[name]) if on_cpu else configs[name] for name in share]
        rows = run_trials([_trial(sets, small) for sets in chosen], end, threads | device)
        return dict(zip(share, (row for [row] in rows), strict=True))

    with ThreadPoolExecutor() as pool:
        expected = pool.submit(trained, names, ON_CPU, True)
        shares = [names[first::processes] for first in range(processes)]
        found: dict[str, Row] = {}
        for rows in pool.map(lambda share: trained(share, {}, False), shares):
            found |= rows
        return [compare(name, configs[name], found[name], expected.result()[name]) for name in names]


ON_CPU = {"DS_ACCELERATOR": "cpu"}


def _threads(processes: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // processes))}


def _trial(sets: dict[str, Any], small: bool) -> Trial:
    steps = SMALL_STEPS if small else STEPS
    return {"name": "", "file": None, "sets": sets, "measure": "losses", "steps": steps, "seconds": 0.0}


def layout(name: str) -> dict[str, Any]:
    """Return the configuration of a layout of one GPU."""
    return MODEL | LAYOUTS[name]


def fp32_on_cpu(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a layout is compared with on the CPU: fp32, without kernels of GPUs, and without dropout."""
    # 16 bits without ZeRO run as ZeRO-1, of which sm3 knows (it then keeps a maximum per element).
    stage = {"zero_optimization.stage": 1} if config["precision"] != "fp32" else {}
    anywhere = {"precision": "fp32", "hidden_dropout": 0.0, "compile_layers": False, "attention_backend": "auto"}
    return {**stage, **config, **anywhere}


def compare_layouts_of_several(names: Sequence[str], gpus: int, small: bool, end: float) -> list[Row]:
    """Train these layouts on all GPUs, one after the other, and compare them with one process on the CPU."""
    configs = {name: layout_of_several(name, gpus) | (SMALL | {"num_layers": 4} if small else {}) for name in names}
    on_cpu = {name: json.dumps(one_process(configs[name], gpus), sort_keys=True) for name in names}
    different = list(dict.fromkeys(on_cpu.values()))
    with ThreadPoolExecutor() as pool:
        trials = [_trial(json.loads(sets), small) for sets in different]
        references = pool.submit(run_trials, trials, end, ON_CPU | _threads(2))
        trials = [_trial(configs[name], small) for name in names]
        found = run_trials(trials, end, _threads(2 * gpus), gpus, EACH)
        expected = dict(zip(different, references.result(), strict=True))
    return [
        compare_ranks(name, configs[name], rows, expected[on_cpu[name]][0], gpus)
        for name, rows in zip(names, found, strict=True)
    ]


def replicas(config: Mapping[str, Any], gpus: int) -> int:
    """Return the data parallel size of a layout on so many GPUs; 0 if it does not divide them."""
    context = config.get("context_parallel_size", 1)
    count, rest = divmod(gpus, config["model_parallel_size"] * max(config["pipe_parallel_size"], 1) * context)
    return 0 if rest or count * context % config.get("moe_expert_parallel_size", 1) else count


def layouts_of_several(gpus: int) -> list[str]:
    """Return the layouts that divide so many GPUs."""
    return [name for name, changes in SEVERAL.items() if replicas(SEVERAL_MODEL | changes, gpus)]


def layout_of_several(name: str, gpus: int) -> dict[str, Any]:
    """Return the configuration of a layout of several GPUs. The samples of a step depend on their number only."""
    config = SEVERAL_MODEL | SEVERAL[name]
    samples = _samples(gpus) // replicas(config, gpus)
    size = 1 if config["pipe_parallel_size"] > 1 else samples // 2  # a pipeline needs micro batches
    return config | {"train_micro_batch_size_per_gpu": size, "gradient_accumulation_steps": samples // size}


def _samples(gpus: int) -> int:
    """Return the samples of a step: an even number for each GPU, and at least eight."""
    return 2 * gpus * -(-4 // gpus)


def one_process(config: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Return what a layout of several GPUs is compared with on the CPU."""
    dropped = {**OFFLOADED, **BUCKETS, "fp16.initial_scale_power": 0, "checkpoint_activations": False}
    kept = {name: value for name, value in config.items() if name not in dropped}
    micro = {"train_micro_batch_size_per_gpu": _samples(gpus) // 2, "gradient_accumulation_steps": 2}
    return fp32_on_cpu(kept) | ONE_PROCESS | micro


def compare_ranks(name: str, config: Mapping[str, Any], found: Sequence[Row], expected: Row, gpus: int) -> Row:
    """Return the row of a layout of several GPUs, with what is wrong or ""."""
    first, *others = found
    row = compare(name, config, first, expected)
    if "error" in first:
        return row
    planned = gradient_sum(resolve_trial(None, dict(config), gpus))
    row |= {
        "replicas": replicas(config, gpus),
        "norm": abs(first["norm"] / expected["norm"] - 1),
        "waits": [rank["waits"] for rank in found],
        "sum": {"way": planned.way, "dtype": planned.dtype, "overlaps": planned.overlaps},
        **{part: first[part] for part in ("attention", "messages", "groups")},
    }
    problems = [row["problem"]] if row["problem"] else []
    limit = NORM_TOLERANCE[_bits(config)]
    if not row["norm"] <= limit:
        problems.append(f"the norm of the first gradient differs by more than {limit:g}")
    for rank, other in enumerate(others, 1):
        if not largest(abs(a / b - 1) for a, b in zip(other["losses"], first["losses"], strict=True)) <= BETWEEN_RANKS:
            problems.append(f"losses of rank {rank} differ from those of rank 0")
    problems += [f"rank {rank}: {wrong}" for rank, each in enumerate(found) if (wrong := wrong_sum(row["sum"], each))]
    return row | {"problem": "; ".join(problems)}


def wrong_sum(planned: Mapping[str, Any], rank: Row) -> str:
    """Return how a rank's messages contradict what `facts/gradient_sum.py` says of the sum of gradients, or ""."""
    if planned["way"] in ("none", "one bit"):
        return ""
    sums = [row for row in rank["messages"] if row["group"] == "data" and "reduce" in row["operation"]]
    dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[planned["dtype"]]
    sent = sum(row["bytes"] for row in sums if row["dtype"] == dtype)
    gradients = rank["gradients"] * BYTES[planned["dtype"]]
    if sent < gradients:
        return f"of {gradients:,} bytes of gradients, {sent:,} are summed over the replicas in {planned['dtype']}"
    if planned["overlaps"] and not any(row["in_backward"] for row in sums):
        return "no gradients are summed during the backward pass"
    return ""


def compare(name: str, config: Mapping[str, Any], found: Row, expected: Row) -> Row:
    """Return the row of a layout: the largest differences, and what is wrong or ""."""
    row: Row = {"name": name, "losses": found.get("losses"), "cpu": expected.get("losses"), "problem": ""}
    if NO_TIME in (found.get("error"), expected.get("error")):
        return row | {"left_out": True}
    if "error" in found or "error" in expected:
        return row | {"problem": found.get("error") or f"on the CPU: {expected['error']}"}
    loss_limit, logits_limit = TOLERANCE[_bits(config)]
    if config["hidden_dropout"]:
        loss_limit = DROPOUT_TOLERANCE
    row |= {"waits": found.get("waits"), "recurrent": found.get("recurrent", [])}
    row["difference"] = largest(abs(a / b - 1) for a, b in zip(found["losses"], expected["losses"], strict=True))
    if not row["difference"] <= loss_limit:  # NaN too
        row["problem"] = f"losses differ by more than {loss_limit:g}"
    if found["logits"] is not None:
        row["logits"] = largest(abs(a - b) for a, b in zip(found["logits"], expected["logits"], strict=True))
        if not row["logits"] <= logits_limit:
            row["problem"] = f"logits differ by more than {logits_limit:g}"
    if found.get("repeats") is False:
        row["problem"] = "a second run has different losses"
    return row


def _bits(config: Mapping[str, Any]) -> int:
    return 32 if config["precision"] == "fp32" else 16


def largest(differences: Iterable[float]) -> float:
    """Return the largest; NaN if one is, which `max` may pass over."""
    return max(differences, key=lambda difference: (math.isnan(difference), difference))
