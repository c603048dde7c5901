"""Maps rows of a table of published figures to configurations, and says which rows it leaves out and why.

A row is one measurement of a training run: model, layout, hardware and a value, with the place where it was published.
Only what train.py could run with the same tensors is mapped. How the measured program differs from train.py (all
logits at once, attention without a fused kernel, other optimizer state) is in published_programs.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from published_programs import (
    LeftOut,
    Row,
    assumptions,
    has_dropout,
    is_megatron,
    megatron_test,
    zero_stage,
)

from neoxargs.plan.given.assumptions import DEFAULT


@dataclass(frozen=True)
class Case:
    """A row as a run to plan and a value to compare."""

    row: Row
    changes: dict[str, object]
    """Configuration: parameter -> value."""
    gpus: int
    device: str
    memory: float | None
    """GiB of the device, if it differs from the named one's."""
    per_host: int
    assume: dict[str, float] = field(default_factory=dict)
    stage: int | None = None
    """The pipeline stage that was measured; None: the one with the highest peak."""
    network: float | None = None


#: Parts of a row that the mapping needs.
NEEDED = {"layers": "layers", "hidden": "hidden size", "seq": "sequence length", "micro_batch": "micro batch",
          "gpus": "number of GPUs", "vocab": "vocabulary"}  # fmt: skip
#: Families of models -> parameters that they share. The first whose name is part of the model's counts.
LLAMA = {"norm": "rmsnorm", "activation": "swiglu", "pos_emb": "rotary", "no_weight_tying": True,
         "use_bias_in_attn_linear": False, "use_bias_in_mlp": False}  # fmt: skip
FAMILIES: tuple[tuple[str, dict[str, object]], ...] = (
    ("llama", LLAMA), ("mistral", LLAMA), ("qwen", LLAMA),
    ("mpt", {"pos_emb": "learned", "use_bias_in_attn_linear": False, "use_bias_in_mlp": False,
             "use_bias_in_norms": False}),
    ("neox", {"pos_emb": "rotary", "gpt_j_residual": True, "no_weight_tying": True}),
    ("pythia", {"pos_emb": "rotary", "gpt_j_residual": True, "no_weight_tying": True}),
)  # fmt: skip


def case_of(row: Row) -> Case:
    """Return the run of a row. Raises LeftOut."""
    _check_known(row)
    precision = _precision(row)
    tensor, pipe = int(row["tp"] or 1), int(row["pp"] or 1)
    gpus, micro = int(row["gpus"]), int(row["micro_batch"])
    data = int(row["dp"] or gpus // (tensor * pipe))
    if tensor * pipe * data != gpus:
        raise LeftOut("tensor x pipeline x data parallel size is not the number of GPUs")
    steps = _accumulation_steps(row, micro * data)
    changes: dict[str, object] = {
        "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps, "precision": precision,
        "model_parallel_size": tensor, "pipe_parallel_size": pipe if pipe > 1 else 0, "train_iters": 100,
        "zero_optimization": _zero(row), "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
        **_model(row, tensor), **_recomputation(row),
    }  # fmt: skip
    if is_megatron(row) and not row["zero_or_fsdp"].startswith("ZeRO-"):
        # stages send whole activations, from every tensor parallel rank; DeepSpeed's pipeline engine sends parts
        changes["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}
    if _is_sequence_parallel(row):
        changes["sequence_parallel"] = tensor > 1
    device, memory = _device(row)
    per_host = _per_host(row, gpus)
    return Case(
        row, changes, gpus, device, memory, per_host, assumptions(row), _measured_stage(row, pipe), _network(row)
    )


def _accumulation_steps(row: Row, samples: int) -> int:
    """Micro batches of a step. samples: of one micro batch on all replicas; 3 % may be missing from the batch."""
    batch = int(row["global_batch"] or samples)
    steps = batch // samples
    if abs(steps * samples / batch - 1) > 0.03:
        raise LeftOut("the batch does not divide into micro batches")
    return steps


def _is_sequence_parallel(row: Row) -> bool:
    """FSDP programs with tensor parallelism, as torchtitan, divide what is outside of its regions among its ranks."""
    said = "sequence-parallel" in row["note"] or "sequence parallel" in row["act_ckpt"]
    return said or ("FSDP" in row["zero_or_fsdp"] and not is_megatron(row))


#: Pattern in a row's precision, note and path, and the reason for which train.py cannot run it.
FOREIGN = (
    (r"\bexperts?\b|mixture", "mixture of experts"),
    (r"fp8|float8|nvfp4", "matrix multiplications in 8 or 4 bits"),
    (r"\bcp ([2-9]|\d\d)|context parallelism ([2-9]|\d\d)", "context parallelism"),
    (r"new megatron-deepspeed", "Ulysses sequence parallelism"),
    (r"virtual pipeline ([2-9]|\d\d)|num-layers-per-virtual|in_pipeline_split", "interleaved pipeline schedule"),
    (r"no recipe|_frozen_", "figure may have been measured with earlier flags than those given"),
    (r"uneven_pipeline", "layers assigned to stages by hand"),
    (r"async tp", "asynchronous tensor parallelism"),
    (r"defer_embedding_wgrad", "deferred gradients of the output layer"),
)


def _check_known(row: Row) -> None:
    """Raise LeftOut for what train.py cannot run or the row does not say."""
    text = f"{row['precision']} {row['note']} {row['path']}".lower()
    for pattern, reason in FOREIGN:
        if re.search(pattern, text):
            raise LeftOut(reason)
    for column, words in NEEDED.items():
        if not row[column]:
            raise LeftOut(f"{words} not stated")


def _precision(row: Row) -> str:
    name = row["precision"].lower()
    if "fp16" in name:
        return "fp16"
    if "bf16" in name or "bfloat16" in name:
        return "bfloat16"
    if "fp32" in name or "float32" in name:
        return "fp32"
    raise LeftOut("precision not stated")


def _model(row: Row, tensor: int) -> dict[str, object]:
    hidden, heads = int(row["hidden"]), int(row["heads"] or 0)
    name = row["model"].lower()
    family = next((shared for part, shared in FAMILIES if part in name), {})
    flags = row["note"]
    if not family and "swiglu" in flags:
        family = {"activation": "swiglu"}
    width = int(row["ffn"] or 4 * hidden)
    gated = family.get("activation") == "swiglu"
    changes: dict[str, object] = {
        "num_layers": int(row["layers"]), "hidden_size": hidden, "num_attention_heads": heads or _heads(hidden, tensor),
        "seq_length": int(row["seq"]), "max_position_embeddings": int(row["seq"]), "pos_emb": "learned",
        "intermediate_size": 3 * width if gated else width,
        "padded_vocab_size": _padded(int(row["vocab"]), tensor), **family,
    }  # fmt: skip
    if row["kv_heads"] and int(row["kv_heads"]) != heads and heads:
        changes["num_kv_heads"] = int(row["kv_heads"])
    if "position-embedding-type" in flags:
        changes["pos_emb"] = "rotary"
    if changes["pos_emb"] == "rotary" and is_megatron(row):
        changes["rope_fusion"] = True  # unless --no-rope-fusion is given, which no row says
    if "untie-embeddings" in flags:
        changes["no_weight_tying"] = True
    if "disable-bias-linear" in flags:
        changes |= {"use_bias_in_attn_linear": False, "use_bias_in_mlp": False}
    if has_dropout(row):
        changes |= {"attention_dropout": 0.1, "hidden_dropout": 0.1, "bias_dropout_fusion": is_megatron(row)}
    else:
        changes |= {"attention_dropout": 0, "hidden_dropout": 0}
    test = megatron_test(row)
    for key in ("attention_dropout", "hidden_dropout"):
        if test and test[key]:
            changes[key] = float(test[key])
    return changes


def _heads(hidden: int, tensor: int) -> int:
    """A number of heads that the row does not state: with vectors of about 128 numbers, divisible among the ranks."""
    for heads in range(max(1, hidden // 128), 0, -1):
        if hidden % heads == 0 and heads % tensor == 0 and hidden // heads % 2 == 0:
            return heads
    raise LeftOut("number of heads not stated")


def _padded(vocabulary: int, tensor: int) -> int:
    # Megatron's default for make_vocab_size_divisible_by.
    multiple = 128 * tensor
    return -(-vocabulary // multiple) * multiple


def _recomputation(row: Row) -> dict[str, object]:
    name = row["act_ckpt"].lower()
    if name.startswith("full"):
        parted, in_cpu = "partition_activations" in row["note"], "checkpoint-in-cpu" in row["note"]
        kept = {"partition_activations": True} if parted else {}
        return {"checkpoint_activations": True, **kept, **({"checkpoint_in_cpu": True} if in_cpu else {})}
    if name == "none" or "core_attn)" in name or "sequence parallel" in name:
        return {}  # recomputing the core of attention leaves what a fused kernel leaves
    if not name:
        raise LeftOut("recomputation not stated")
    raise LeftOut("selective recomputation of other parts")


def _zero(row: Row) -> dict[str, object]:
    """The ZeRO section. FSDP gathers the block that is computed and the next one."""
    # A layer has about 12 x hidden^2 parameters: 4 in attention, and 8 in an MLP of 4 x hidden.
    stage, layer = zero_stage(row), 12 * int(row["hidden"]) ** 2
    section: dict[str, object] = {"stage": stage}
    for part in ("offload_optimizer", "offload_param"):
        if f"{part} to cpu" in row["note"]:
            section[part] = {"device": "cpu"}
    if found := re.search(r"reduce_bucket_size (\d+)", row["note"]):
        section["reduce_bucket_size"] = int(found[1])
    if "FSDP" in row["zero_or_fsdp"]:
        section |= {"stage3_max_live_parameters": 2 * layer, "stage3_prefetch_bucket_size": layer}
    return section


def _measured_stage(row: Row, pipe: int) -> int | None:
    """The stage whose memory the row gives."""
    if found := re.search(r"stage (\d+) of", row["note"]):
        return int(found[1])
    return pipe - 1 if "last pipeline stage" in row["note"] else None


#: Start of a GPU's name in a row -> our device.
#: A GPU without a row of rates has those of another of its age; its memory is in its name.
DEVICES = {"A100-80": "A100-80GB", "A100-40": "A100-40GB", "V100-32": "V100-32GB", "V100-16": "V100-16GB",
           "V100": "V100-32GB", "A100": "A100-80GB", "H100-96": "H100-96GB", "H100-94": "H100-96GB",
           "H100": "H100-80GB", "H200": "H200-141GB", "GB200": "GB200-186GB", "B200": "B200-180GB",
           "Titan RTX": "V100-32GB", "RTX 3090": "RTX4090-24GB", "A10-": "RTX4090-24GB",
           "RTX 6000 Ada": "RTX4090-24GB"}  # fmt: skip


def _device(row: Row) -> tuple[str, float | None]:
    for start, name in DEVICES.items():
        if row["gpu_type"].startswith(start):
            memory = re.search(r"-(\d+)GB", row["gpu_type"])
            return name, float(memory[1]) if memory and f"-{memory[1]}GB" not in name else None
    raise LeftOut(f"no data sheet of {row['gpu_type'] or 'the GPU'}")


#: Part of a row's repository and path -> bytes per second and GPU between the hosts of that site, before the fraction
#: that a collective achieves.
NETWORKS = {
    # Jean Zay, 8 A100 per host: its own all-reduce over four hosts measures a bus bandwidth of 40.5 Gb/s, a tenth of
    # its four Omni-Path ports (bigscience, experiments/bandwidth/all_reduce_bench-a100-n4.txt, median of 160)
    "bigscience": 40.5e9 / 8 / 8 / DEFAULT.link,
    # DGX-2 hosts of 16 V100, with about 660 Gb/s measured between hosts (the same README, "Test environment")
    "examples_deepspeed/rebase": 660e9 / 8 / 16 / DEFAULT.link,
}
#: Part of a row's repository and path -> GPUs per host of that site, where it is not 8.
GPUS_PER_HOST = {"examples_deepspeed/rebase": 16, "_1node": 4}


def _network(row: Row) -> float | None:
    """The rate that the row or its site states; None: what such hosts are usually sold with."""
    if found := re.search(r"(\d+) Gbps node-node", row["note"]):
        return float(found[1]) * 1e9 / 8 / 8
    return next((rate for part, rate in NETWORKS.items() if part in _place(row)), None)


def _per_host(row: Row, gpus: int) -> int:
    if found := re.search(r"(\d+) GPUs a node", row["note"]):
        return int(found[1])
    return next((count for part, count in GPUS_PER_HOST.items() if part in _place(row)), min(8, gpus))


def _place(row: Row) -> str:
    return f"{row['source_repo']}/{row['path']}"
