"""The models whose speed and memory bench/on_gpu.py measures, and the figures beside them: planned and published."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from gpu_layouts import OFFLOADED, SMALL, replicas  # noqa: E402
from gpu_processes import NO_TIME, Row, run_trials  # noqa: E402
from gpu_trials import Trial, resolve_trial  # noqa: E402

from neoxargs.hosts.device_table import Device  # noqa: E402
from neoxargs.hosts.hosts import assumed_resources  # noqa: E402
from neoxargs.plan.estimate import Plan, make_plan  # noqa: E402
from neoxargs.plan.given.target import Target, host_memory  # noqa: E402
from neoxargs.runs.run_spec import RunSpec  # noqa: E402

PUBLISHED = ROOT / "tests" / "reference" / "published_one_host.tsv"
COMPILED = {"compile_layers": True}


class Way(NamedTuple):
    """A way to train a model."""

    micro_batch: int
    recompute: bool
    offload: bool
    """Whether the optimizer is in host memory."""


#: The fastest first.
WAYS = (
    *(Way(size, False, False) for size in (8, 4, 2, 1)),
    *(Way(size, True, False) for size in (8, 4, 2, 1)),
    *(Way(size, recompute, True) for recompute in (False, True) for size in (4, 1)),
)


class Model(NamedTuple):
    """A model whose speed is measured."""

    file: str
    """Its name in configs/models."""
    changes: dict[str, Any] = {}
    largest: int = 8
    """Largest micro batch that is tried."""
    published: tuple[str, ...] = ()
    """The names of the same training in the table of published figures."""


#: On one GPU. Those with one sample in a micro batch show the time in which the host starts kernels.
MODELS: dict[str, Model] = {
    "GPT-3 125M": Model("gpt-3-125m"),
    "GPT-3 125M, one sample": Model("gpt-3-125m", largest=1),
    "GPT-3 350M, one sample": Model("gpt-3-350m", largest=1),
    "GPT-3 1.3B": Model("gpt-3-1.3b"),
    "GPT-3 1.3B, compiled": Model("gpt-3-1.3b", COMPILED),
    "Pythia 1.4B": Model("pythia-1.4b"),
    "Pythia 1.4B, compiled": Model("pythia-1.4b", COMPILED),
    "Llama 3.2 1B": Model("llama-3.2-1b"),
    "Llama 3.2 1B, compiled": Model("llama-3.2-1b", COMPILED),
    "Gemma 2 2B": Model("gemma-2-2b"),
    "Qwen 3 0.6B": Model("qwen3-0.6b"),
    "OLMoE 1B-7B": Model("olmoe-1b-7b"),
    "GPT-3 2.7B": Model("gpt-3-2.7b"),
    "GPT-3 6.7B": Model("gpt-3-6.7b"),
}
#: Of every model, unless it says otherwise.
DEFAULTS: dict[str, Any] = {
    "precision": "bfloat16", "pipe_parallel_size": 0, "model_parallel_size": 1, "zero_optimization.stage": 1,
    "gradient_accumulation_steps": 4, "data_path": "none",
}  # fmt: skip
ZERO_3 = {"zero_optimization.stage": 3, "gradient_accumulation_steps": 1}
#: The 7B of Megatron-LM's functional tests.
MEGATRON_7B = {
    "model_parallel_size": 4, "gradient_accumulation_steps": 2, "num_kv_heads": 8, "seq_length": 8192,
    "max_position_embeddings": 8192, "padded_vocab_size": 131584, "no_weight_tying": True, "attention_dropout": 0.1,
    "hidden_dropout": 0.1, "bias_dropout_fusion": True,
}  # fmt: skip


def _tensor(ranks: int, **changes: Any) -> dict[str, Any]:
    return {"model_parallel_size": ranks, "sequence_parallel": True, **changes}


#: On all GPUs: what a layout leaves of them is data parallel. The most telling first.
SEVERAL: dict[str, Model] = {
    "GPT-3 1.3B": Model("gpt-3-1.3b"),
    "Llama 3.1 8B, ZeRO-3": Model("llama-3.1-8b", ZERO_3, 2, ("Llama 3.1 8B", "Llama 3 8B")),
    "GPT-3 6.7B, tp2": Model("gpt-3-6.7b", _tensor(2)),
    "GPT-3 6.7B, pp2": Model("gpt-3-6.7b", {"pipe_parallel_size": 2, "gradient_accumulation_steps": 8}, 2),
    "7B of Megatron-LM, tp4": Model("gpt-3-6.7b", MEGATRON_7B, 2, ("Megatron-LM test gpt3_7b_tp4_pp1_memory_speed",)),
    "OLMoE 1B-7B, experts divided": Model("olmoe-1b-7b", {"moe_expert_parallel_size": 2}),
    "GPT-3 6.7B, tp2 x pp2": Model("gpt-3-6.7b", _tensor(2, pipe_parallel_size=2, gradient_accumulation_steps=8), 4),
    "GPT-3 6.7B, ZeRO-2": Model("gpt-3-6.7b", {"zero_optimization.stage": 2}),
    "Llama 3.1 8B, tp4": Model("llama-3.1-8b", _tensor(4), 2),
    "Llama 3.1 8B, tp8": Model("llama-3.1-8b", _tensor(8), 4),
}
SMALL_MODEL = SMALL | {"num_kv_heads": 4, "intermediate_size": 192}
#: Ways that are tried for a model; seconds of measured steps, and seconds in which an attempt must be over.
ATTEMPTS, MEASURED, ATTEMPT = 3, 20.0, 150.0


def measure_model(name: str, device: Device, small: bool, end: float, gpus: int = 1) -> Row:
    """Measure the first way to train a model that works."""
    row: Row = {"name": name, "gpus": gpus, "attempts": []}
    for way in choose_ways(name, device, small, gpus):
        trial: Trial = {
            "name": name, "file": model_file(name, gpus), "sets": model_sets(name, way, small, gpus),
            "measure": "speed", "steps": 2 if small else 20, "seconds": MEASURED,
        }  # fmt: skip
        [ranks] = run_trials([trial], end, {}, gpus, ATTEMPT)
        error = ranks[0].get("error", "")
        if error == NO_TIME:
            return row if row["attempts"] else {**row, "left_out": True}
        row["attempts"].append({**way._asdict(), "error": error})
        if not error:
            slowest = max(ranks, key=lambda rank: float(rank["seconds"]))
            most = {part: max(rank[part] for rank in ranks) for part in ("tensors", "used")}
            return row | slowest | most | planned(name, way, device, small, gpus)
    return row


def models(gpus: int) -> dict[str, Model]:
    """Return the models that are measured on so many GPUs, which their layouts divide."""
    if gpus == 1:
        return MODELS
    return {name: model for name, model in SEVERAL.items() if replicas(DEFAULTS | model.changes, gpus)}


def choose_ways(name: str, device: Device, small: bool, gpus: int = 1) -> list[Way]:
    """Return the first ways that fit according to the plan; the one that needs least if none does."""
    model = models(gpus)[name]
    allowed = [way for way in WAYS if way.micro_batch <= model.largest]
    fitting = [way for way in allowed if plan(name, way, device, small, gpus).fits]
    return fitting[:ATTEMPTS] or allowed[-1:]


def model_file(name: str, gpus: int = 1) -> str:
    return str(ROOT / "configs" / "models" / f"{models(gpus)[name].file}.yml")


def model_sets(name: str, way: Way, small: bool, gpus: int = 1) -> dict[str, Any]:
    """Return the overrides of a model's file."""
    sets = DEFAULTS | {"checkpoint_activations": way.recompute} | models(gpus)[name].changes
    batch = way.micro_batch * sets["gradient_accumulation_steps"] * replicas(sets, gpus)
    sets |= {"train_micro_batch_size_per_gpu": way.micro_batch, "train_batch_size": batch}
    shape = SMALL_MODEL | ({"num_attention_heads": 8, "num_kv_heads": 8} if gpus > 1 else {})
    return sets | (OFFLOADED if way.offload else {}) | (shape if small else {})


def plan(name: str, way: Way, device: Device, small: bool, gpus: int = 1) -> Plan:
    """Return what `deepy plan` computes for GPUs of this machine."""
    config = resolve_trial(model_file(name, gpus), model_sets(name, way, small, gpus), gpus)
    return make_plan(RunSpec(config, assumed_resources(gpus)), Target(device, host_memory()))


def planned(name: str, way: Way, device: Device, small: bool, gpus: int = 1) -> Row:
    """Return planned and published figures, and those that make tokens and FLOP/s of the measured seconds."""
    estimate = plan(name, way, device, small, gpus)
    memory, speed = estimate.fullest, estimate.speed
    return {
        "parameters": sum(estimate.parts.values()),
        "tokens": speed.tokens,
        "flops_per_token": speed.flops_per_token,
        "plan": {"seconds": speed.step, "tensors": memory.allocated, "used": memory.peak},
        "published": [] if small else published(models(gpus)[name], way, device),
    }


def published(model: Model, way: Way, device: Device) -> list[Row]:
    """Return the published figures of the same training on GPUs of the same kind; what is recomputed may differ."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    kind = device.name.partition("-")[0]
    keys = "source_repo", "path", "gpus", "gpu_type", "act_ckpt", "measured_kind", "measured_value"
    return [
        {key: row[key] for key in keys}
        for row in rows
        if row["model"] in model.published
        and row["gpu_type"].startswith(kind)
        and way.micro_batch == int(row["micro_batch"])
        and not way.offload
    ]
