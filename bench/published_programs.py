"""What published programs do otherwise than train.py, as assumptions of the plan.

Each for a reason that a comment names; published_rows.py maps the rest of a row. A row names its program by its source
and, where that is a thread or a collection, in its note.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

Row = Mapping[str, str]
Assumed = dict[str, float]
ROOT = Path(__file__).resolve().parents[1]


class LeftOut(Exception):
    """The row cannot be planned; the message is the reason, the same for all rows of its kind."""


#: Before lazy loading (CUDA 11.7) the context held all kernels; torch's allocator had no expandable segments.
BEFORE_2023 = {"context": 1.6, "cached_blocks": 0.2, "fragmentation": 0}
#: All logits at once: in 16 bits, in fp32, and their softmax in a third tensor; the latter in place since 2023.
LOGITS_2021, LOGITS_NOW = {"logits_at_once": 1e15, "logit_bytes": 10}, {"logits_at_once": 1e15, "logit_bytes": 6}
#: flash-attn's cross entropy, llm-foundry's default (llmfoundry/models/mpt): logits and their gradients in 16 bits.
LOGITS_FUSED = {"logits_at_once": 1e15, "logit_bytes": 4}
#: transformers: logits, their shifted copy, both in fp32 for the loss, the logarithm of their softmax, its gradient.
LOGITS_TRANSFORMERS = {"logits_at_once": 1e15, "logit_bytes": 16}
#: Megatron-LM: gradients of bf16 in fp32 buffers, those of fp16 in fp16 until the step copies them to fp32.
MEGATRON = {"partitioned": 0, "bucket": 0}
MEGATRON_BF16 = {**MEGATRON, "gradient_bytes": 4, "step_bytes": 0}
MEGATRON_FP16 = {**MEGATRON, "gradient_bytes": 2, "step_bytes": 4}
#: FSDP: one process group, where the plan counts two; shards of fp32 weights are the master weights.
FSDP = {"weight_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8, "step_bytes": 0, "bucket": 0,
        "group_buffers": 0.1}  # fmt: skip
#: llm-foundry's PURE: weights, gradients and moments in bf16.
FSDP_PURE = {**FSDP, "weight_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 4}
#: DDP: gradients and, on several GPUs, the buckets in which they are reduced, which are tensors of their own.
DDP = {**FSDP, "partitioned": 0}
#: Programs with one projection to queries, keys and values, as Megatron-LM: values are a view of its output, which is
#: therefore kept besides the rotated queries and keys.
ONE_PROJECTION = {"projection_kept": 1}
#: autocast keeps the 16-bit copies of fp32 weights until the end of the forward pass.
AUTOCAST = 2
#: Layers compiled by torch fuse elementwise kernels: about 40 % of their memory traffic is saved.
COMPILED = {"eager": 0.6}
#: Longest sequence of Megatron-LM's fused softmax before 2023; beyond it torch's runs, with copies in fp32 before and
#: after the mask, probabilities in fp32 and 16 bits, their product with dropout and its mask.
FUSED_SOFTMAX = 2048
#: FlashAttention's first version: Dao et al. 2022 and the comparison in Dao 2023, arXiv:2307.08691, figure 4. The
#: tables of llm-foundry on A100 are older than torch 2.0 (a comment of the page says so), its second version is newer.
FLASH_1 = {"attention": 0.3}
#: Whether in 16 bits, whether with dropout -> bytes per score that eager attention keeps: softmax in fp32, what the
#: next product reads, and a mask.
EAGER_SCORES = {(True, True): 7, (True, False): 6, (False, True): 9, (False, False): 4}
#: gelu_new of transformers and minGPT: x, x / 2, its power, tanh, 1 + tanh and their product; with autocast in fp32
#: but for two of them.
GELU_NEW, GELU_NEW_AUTOCAST = {"activation_memory": 20}, {"activation_memory": 18}


def assumptions(row: Row) -> Assumed:
    """Return what the measured program does otherwise than train.py."""
    compiled = COMPILED if "torch.compile" in row["note"] and "no torch.compile" not in row["note"] else {}
    return {**_program(row), **compiled}


def is_megatron(row: Row) -> bool:
    """Whether the program is Megatron-LM or made from it; GPT-NeoX is too, but its defaults are its own."""
    return bool(re.search("megatron|nemo|bigscience", row["source_repo"].lower()) or "Megatron-LM of" in row["note"])


def is_gpt_neox(row: Row) -> bool:
    return "GPT-NeoX" in row["model"]


def has_dropout(row: Row) -> bool:
    """Whether attention and residual have dropout by default."""
    return is_megatron(row) or "with dropout" in row["note"]


def zero_stage(row: Row) -> int:
    """Return the ZeRO stage that a program's way of partitioning corresponds to."""
    name = row["zero_or_fsdp"]
    for stage in (3, 2, 1):
        if f"ZeRO-{stage}" in name:
            return stage
    return 3 if "FSDP" in name else 0


def _program(row: Row) -> Assumed:
    if row["zero_or_fsdp"] == "DDP":
        return {**_ddp(row), **_eager(row)}
    if "FSDP" in row["zero_or_fsdp"]:
        return _fsdp(row)
    if is_megatron(row) or is_gpt_neox(row):
        return _megatron(row)
    kept: Assumed = {} if zero_stage(row) else {"partitioned": 0}
    if "bf16" in row["precision"]:  # gradients are as wide as weights, also where train.py accumulates them in fp32
        kept["gradient_bytes"] = 2
    if "Aleph-Alpha" in row["source_repo"]:
        kept |= _aleph_alpha(row) | ONE_PROJECTION
    old = float(row["gpu_type"].startswith("V100"))
    return {**LOGITS_2021, **kept, "unfused_attention": old, **_eager(row)}


def _aleph_alpha(row: Row) -> Assumed:
    """Derived from which runs ran, as the program is not public.

    14 billion parameters train on one GPU of 80 GB, with weights of 26 GiB: gradients take 2 bytes. 32,768 tokens run
    out of memory with any tensor parallel size, 16,384 do not: the loss is not divided among the ranks, and takes 18
    to 21 bytes per logit, as torch's does: logits and their gradient, each in 16 bits and in fp32, the softmax, and
    the logits before they were gathered. Unfused attention keeps at least 4 bytes per score: the softmax is in fp32.
    """
    tensor = int(row["tp"] or 1)
    per_logit = 16 + (2 if tensor > 1 else 0)
    return {"logit_bytes": per_logit * tensor, "score_memory": EAGER_SCORES[True, False]}


def _ddp(row: Row) -> Assumed:
    copies = AUTOCAST if "AMP" in row["precision"] else 0
    buckets = 4 if int(row["gpus"]) > 1 else 0
    return {**LOGITS_2021, **DDP, "weight_bytes": 4 + copies, "gradient_bytes": 4 + buckets}


def _fsdp(row: Row) -> Assumed:
    kept = FSDP_PURE if "PURE" in row["precision"] else FSDP
    if "llm-foundry" in row["source_repo"]:
        return {**kept, **LOGITS_FUSED, **(FLASH_1 if "A100" in row["gpu_type"] else {})}
    return {**LOGITS_2021, **kept, **_eager(row)}


def _eager(row: Row) -> Assumed:
    """What a model without fused kernels does: transformers, minGPT, or one whose row says so."""
    note = row["note"]
    chosen: Assumed = {}
    if "transformers" in note:
        chosen |= LOGITS_TRANSFORMERS
    if re.search("eager attention|unfused attention|attention in torch", note):
        chosen["unfused_attention"] = 1
    half = "fp32" not in row["precision"]
    if "eager attention" in note:
        chosen["score_memory"] = EAGER_SCORES[half, has_dropout(row)]
    if re.search("transformers|minGPT", note) and "gpt-2" in row["model"].lower():
        chosen |= GELU_NEW_AUTOCAST if half else GELU_NEW
    if "RMSNorm unfused" in note or ("transformers" in note and "llama" in row["model"].lower()):
        chosen["unfused_norms"] = 1
    if "flash attention 1" in note:
        chosen |= FLASH_1
    return chosen


def _megatron(row: Row) -> Assumed:
    early = bool(re.search("bigscience|deepspeedai", row["source_repo"]) or "Megatron-LM of" in row["note"])
    early = early or is_gpt_neox(row)
    test = megatron_test(row)
    in_place = not early and not (test and test["loss_fusion"])  # core/fusions/fused_cross_entropy.py is not
    logits = LOGITS_NOW if in_place else LOGITS_2021
    program: Assumed = {**logits, **ONE_PROJECTION, "unfused_attention": _unfused(row, early)}
    if early:
        program |= BEFORE_2023
    if early and int(row["seq"]) > FUSED_SOFTMAX:
        program["score_memory"] = 13
    if test:  # CUBLAS_WORKSPACE_CONFIG of the tests is :4096:8, and TransformerEngine has as much again
        program["workspace"] = 0.0625
    if not row["zero_or_fsdp"].startswith("ZeRO-"):
        return {**program, **(MEGATRON_BF16 if "bf16" in row["precision"].lower() else MEGATRON_FP16)}
    return {**program, "partitioned": 0} if "ZeRO-0" in row["zero_or_fsdp"] else program


def _unfused(row: Row, old: bool) -> float:
    if "flash" in row["note"].lower() and "no flash" not in row["note"].lower():
        return 0
    if row["act_ckpt"].startswith("selective"):
        return 2 if "A100" in row["gpu_type"] else 0
    test = megatron_test(row)
    if test:
        return float(test["attention_backend"] == "unfused" or test["implementation"] == "local")
    no_kernel = not row["gpu_type"].startswith(("H", "B", "GB"))
    return float(old or ("Megatron-LM" in row["source_repo"] and no_kernel))


def megatron_test(row: Row) -> Row | None:
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
