"""Maps rows of a table of published figures to configurations, and says which rows it leaves out and why.

A row is one measurement of a training run: model, layout, hardware and a value, with the place where it was published.
Only what train.py could run with the same tensors is mapped. How the measured program differs from train.py (all
logits at once, attention without a fused kernel, other optimizer state) is written as assumptions of the plan.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Row = Mapping[str, str]
ROOT = Path(__file__).resolve().parents[1]


class LeftOut(Exception):
    """The row cannot be planned; the message is the reason, the same for all rows of its kind."""


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

#: What programs do otherwise than train.py: assumptions, each for a reason that its comment names.
#: Before lazy loading (CUDA 11.7) the context held all kernels; torch's allocator had no expandable segments.
BEFORE_2023 = {"context": 1.6, "cached_blocks": 0.2, "fragmentation": 0}
#: All logits at once: in 16 bits, in fp32, and their softmax in a third tensor; the latter in place since 2023.
LOGITS_2021, LOGITS_NOW = {"logits_at_once": 1e15, "logit_bytes": 10}, {"logits_at_once": 1e15, "logit_bytes": 6}
#: flash-attn's cross entropy, llm-foundry's default (llmfoundry/models/mpt): logits and their gradients in 16 bits.
LOGITS_FUSED = {"logits_at_once": 1e15, "logit_bytes": 4}
#: Megatron-LM: gradients of bf16 in fp32 buffers, those of fp16 in fp16 until the step copies them to fp32.
MEGATRON = {"partitioned": 0, "bucket": 0}
MEGATRON_BF16 = {**MEGATRON, "gradient_bytes": 4, "step_bytes": 0}
MEGATRON_FP16 = {**MEGATRON, "gradient_bytes": 2, "step_bytes": 4}
#: FSDP: one process group, where the plan counts two; shards of fp32 weights are the master weights.
FSDP = {"weight_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8, "step_bytes": 0, "bucket": 0,
        "group_buffers": 0.1}  # fmt: skip
#: llm-foundry's PURE: weights, gradients and moments in bf16.
FSDP_PURE = {"weight_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 4, "step_bytes": 0, "bucket": 0,
             "group_buffers": 0.1}  # fmt: skip
#: Layers compiled by torch fuse elementwise kernels: about 40 % of their memory traffic is saved.
COMPILED = {"eager": 0.6}
#: Longest sequence of Megatron-LM's fused softmax before 2023; beyond it torch's runs, with copies in fp32 before and
#: after the mask, probabilities in fp32 and 16 bits, their product with dropout and its mask.
FUSED_SOFTMAX = 2048
#: FlashAttention's first version: Dao et al. 2022 and the comparison in Dao 2023, arXiv:2307.08691, figure 4. The
#: tables of llm-foundry on A100 are older than torch 2.0 (a comment of the page says so), its second version is newer.
FLASH_1 = {"attention": 0.3}


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
    if _is_megatron(row):  # stages send whole activations, from every tensor parallel rank
        changes["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}
    if _is_sequence_parallel(row):
        changes["sequence_parallel"] = tensor > 1
    device, memory = _device(row)
    per_host = _per_host(row, gpus)
    return Case(
        row, changes, gpus, device, memory, per_host, _assumptions(row), _measured_stage(row, pipe), _network(row)
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
    return said or ("FSDP" in row["zero_or_fsdp"] and not _is_megatron(row))


#: Pattern in a row's precision, note and path, and the reason for which train.py cannot run it.
FOREIGN = (
    (r"\bexperts?\b|mixture", "mixture of experts"),
    (r"fp8|float8|nvfp4", "products in 8 or 4 bits"),
    (r"\bcp ([2-9]|\d\d)|context parallelism ([2-9]|\d\d)", "context parallelism"),
    (r"new megatron-deepspeed", "Ulysses sequence parallelism"),
    (r"virtual pipeline ([2-9]|\d\d)|num-layers-per-virtual|in_pipeline_split", "interleaved pipeline schedule"),
    (r"no recipe|_frozen_", "value may be older than the flags beside it"),
    (r"uneven_pipeline", "layers divided by hand"),
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
    if "untie-embeddings" in flags:
        changes["no_weight_tying"] = True
    if "disable-bias-linear" in flags:
        changes |= {"use_bias_in_attn_linear": False, "use_bias_in_mlp": False}
    if _is_megatron(row):  # Megatron-LM's defaults
        changes |= {"attention_dropout": 0.1, "hidden_dropout": 0.1}
    else:
        changes |= {"attention_dropout": 0, "hidden_dropout": 0}
    test = _megatron_test(row)
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
    stage, layer = _zero_stage(row), 12 * int(row["hidden"]) ** 2
    if "FSDP" not in row["zero_or_fsdp"]:
        return {"stage": stage}
    return {"stage": stage, "stage3_max_live_parameters": 2 * layer, "stage3_prefetch_bucket_size": layer}


def _zero_stage(row: Row) -> int:
    name = row["zero_or_fsdp"]
    if "FSDP" in name or "ZeRO-3" in name:
        return 3
    for stage in (2, 1):
        if f"ZeRO-{stage}" in name:
            return stage
    return 0


def _is_megatron(row: Row) -> bool:
    return bool(re.search("megatron|nemo|bigscience", row["source_repo"].lower()))


def _is_deepspeed(row: Row) -> bool:
    return bool(re.match(r"ZeRO-", row["zero_or_fsdp"]))


def _assumptions(row: Row) -> dict[str, float]:
    """What the measured program does otherwise than train.py."""
    compiled = COMPILED if "torch.compile" in row["note"] else {}
    return {**_program(row), **compiled}


def _program(row: Row) -> dict[str, float]:
    if "FSDP" in row["zero_or_fsdp"]:
        pure = "PURE" in row["precision"]
        kept = FSDP_PURE if pure else FSDP
        if "llm-foundry" in row["source_repo"]:
            return {**kept, **LOGITS_FUSED, **(FLASH_1 if "A100" in row["gpu_type"] else {})}
        return {**LOGITS_2021, **kept}
    if not _is_megatron(row):
        alone = {"partitioned": 0} if not _zero_stage(row) else {}
        return {**LOGITS_2021, **alone, "unfused_attention": float(row["gpu_type"].startswith("V100"))}
    early = bool(re.search("bigscience|deepspeedai", row["source_repo"]))
    test = _megatron_test(row)
    in_place = not early and not (test and test["loss_fusion"])  # core/fusions/fused_cross_entropy.py is not
    program = {**(LOGITS_NOW if in_place else LOGITS_2021), "unfused_attention": _unfused(row, early)}
    if early:
        program |= BEFORE_2023
    if early and int(row["seq"]) > FUSED_SOFTMAX:
        program["score_memory"] = 13
    if test:  # CUBLAS_WORKSPACE_CONFIG of the tests is :4096:8, and TransformerEngine has as much again
        program["workspace"] = 0.0625
    if not _is_deepspeed(row):
        return {**program, **(MEGATRON_BF16 if "bf16" in row["precision"].lower() else MEGATRON_FP16)}
    return {**program, "partitioned": 0} if "ZeRO-0" in row["zero_or_fsdp"] else program


def _unfused(row: Row, old: bool) -> float:
    if "flash" in row["note"].lower() and "no flash" not in row["note"].lower():
        return 0
    if row["act_ckpt"].startswith("selective"):
        return 2 if "A100" in row["gpu_type"] else 0
    test = _megatron_test(row)
    if test:
        return float(test["attention_backend"] == "unfused" or test["implementation"] == "local")
    return float(old or ("Megatron-LM" in row["source_repo"] and "A100" in row["gpu_type"]))


def _megatron_test(row: Row) -> Row | None:
    """The flags of one of Megatron-LM's functional tests, if the row is of one. Raises LeftOut if it is not known."""
    if "functional_tests" not in row["path"]:
        return None
    name = row["path"].split("/")[-2]
    if not _TESTS:
        with (ROOT / "tests" / "reference" / "megatron_lm_tests.tsv").open(encoding="utf-8", newline="") as file:
            _TESTS.update({each["test"]: each for each in csv.DictReader(file, delimiter="\t")})
    if name not in _TESTS:
        raise LeftOut("flags of the test not known")
    return _TESTS[name]


_TESTS: dict[str, Row] = {}


def _measured_stage(row: Row, pipe: int) -> int | None:
    """The stage whose memory the row gives."""
    if found := re.search(r"stage (\d+) of", row["note"]):
        return int(found[1])
    return pipe - 1 if "last pipeline stage" in row["note"] else None


#: Start of a GPU's name in a row -> our device.
DEVICES = {"A100-80": "A100-80GB", "A100-40": "A100-40GB", "V100-32": "V100-32GB", "V100-16": "V100-16GB",
           "V100": "V100-32GB", "A100": "A100-80GB", "H100-96": "H100-96GB", "H100-94": "H100-96GB",
           "H100": "H100-80GB", "H200": "H200-141GB", "GB200": "GB200-186GB", "B200": "B200-180GB"}  # fmt: skip


def _device(row: Row) -> tuple[str, float | None]:
    for start, name in DEVICES.items():
        if row["gpu_type"].startswith(start):
            return name, 94.0 if start == "H100-94" else None
    raise LeftOut(f"no data sheet of {row['gpu_type'] or 'the GPU'}")


#: Bytes per second and GPU between hosts of a site: part of a row's source -> rate, for hosts of 8 GPUs.
NETWORKS = {
    # Jean Zay: four Omni-Path ports of 100 Gb/s for 8 A100 (bigscience, train/tr11-176B-ml/README.md)
    "bigscience": 6.25e9,
}


def _network(row: Row) -> float | None:
    """The rate that the row or its site states; None: what such hosts are usually sold with."""
    if found := re.search(r"(\d+) Gbps node-node", row["note"]):
        return float(found[1]) * 1e9 / 8 / 8
    return next((rate for part, rate in NETWORKS.items() if part in row["source_repo"]), None)


def _per_host(row: Row, gpus: int) -> int:
    if found := re.search(r"(\d+) GPUs a node", row["note"]):
        return int(found[1])
    return 4 if "_1node" in row["path"] else min(8, gpus)
