"""Check and measure training on one GPU in at most fifteen minutes, and write a page about it.

    python bench/on_gpu.py [-o gpu.md] [--json FILE] [--minutes 15] [--device NAME] [--small] [--only NAME ...]

1. Layouts: a small model trains some steps with each precision, kind of attention and position, recomputation, ZeRO
   stage, optimizer and kind of layer; its losses, and logits before the first step, are compared with those of this
   machine's CPU in fp32, and the places are counted where a step makes the host wait for the GPU.
2. Models: tokens/s, TFLOP/s and peak memory of GPT-3, Pythia and Llama in bf16, beside the figures of `deepy plan`, and
   the kernels that take the time. A model that does not fit is tried with smaller micro batches, recomputation, and its
   optimizer in host memory.

Steps are timed between two synchronisations of the GPU; the median counts. Reading of data is not measured. The exit
code is 1 if a layout fails or differs. Every trial runs in a child process with a time limit (gpu_trials.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from gpu_page import page  # noqa: E402
from gpu_trials import Trial, resolve_trial  # noqa: E402

from neoxargs.base.problems import Problem, Problems, render  # noqa: E402
from neoxargs.hosts.device_table import Device, find_device, reported_device, unknown_device  # noqa: E402
from neoxargs.hosts.hosts import assumed_resources  # noqa: E402
from neoxargs.plan.estimate import Plan, make_plan  # noqa: E402
from neoxargs.plan.given.target import Target, host_memory  # noqa: E402
from neoxargs.runs.run_spec import RunSpec  # noqa: E402

CHILD = ROOT / "bench" / "gpu_trials.py"
#: Name of a layout -> the row of its trial.
Rows = dict[str, dict[str, Any]]
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

COMPILED = {"compile_layers": True}


class Model(NamedTuple):
    """A model whose speed is measured."""

    file: str
    """Its name in configs/models."""
    changes: dict[str, Any] = {}
    largest: int = 8
    """Largest micro batch that is tried."""


#: Those with one sample in a micro batch show the time in which the host starts kernels.
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
ONE_GPU: dict[str, Any] = {
    "precision": "bfloat16", "pipe_parallel_size": 0, "model_parallel_size": 1, "zero_optimization.stage": 1,
    "gradient_accumulation_steps": 4, "data_path": "none",
}  # fmt: skip
SMALL: dict[str, Any] = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
                         "max_position_embeddings": 32, "padded_vocab_size": 128}  # fmt: skip
SMALL_MODEL = SMALL | {"num_kv_heads": 4, "intermediate_size": 192}


class Way(NamedTuple):
    """A way to train a model on one GPU."""

    micro_batch: int
    recompute: bool
    offload: bool
    """Whether the optimizer is in host memory."""


#: The fastest first.
WAYS = [
    *(Way(size, False, False) for size in (8, 4, 2, 1)),
    *(Way(size, True, False) for size in (8, 4, 1)),
    *(Way(size, recompute, True) for recompute in (False, True) for size in (4, 1)),
]
#: Ways that are tried for a model.
ATTEMPTS = 3
#: Share of the time for the layouts; seconds of measured steps, and seconds in which an attempt must be over.
LAYOUTS_SHARE, MEASURED, ATTEMPT = 0.3, 20.0, 150.0
#: Processes that train layouts on the GPU at the same time: most of a layout's time is compiling, on the CPUs.
PROCESSES = 4


def main() -> int:
    options = _options()
    began = time.monotonic()
    end = began + 60 * options.minutes
    try:
        device, facts = machine(options.device)
    except Problems as stop:
        sys.exit(render(stop.problems))
    layouts_end = end - (1 - LAYOUTS_SHARE) * 60 * options.minutes
    layouts = compare_layouts(_chosen(LAYOUTS, options.only), options.small, layouts_end)
    models = [measure_model(name, device, options.small, end) for name in _chosen(MODELS, options.only)]
    results = {"machine": facts, "layouts": layouts, "models": models, "seconds": time.monotonic() - began}
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    text = page(results, options.small)
    if options.output:
        Path(options.output).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return int(any(row["problem"] for row in layouts))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page to this Markdown file")
    parser.add_argument("--json", metavar="FILE", help="also write the results as JSON")
    parser.add_argument("--minutes", type=float, default=15, help="total time limit in minutes (default: %(default)g)")
    parser.add_argument("--device", metavar="NAME", help="the GPU's name in the plan (default: from the GPU itself)")
    parser.add_argument("--small", action="store_true", help="use tiny models, to try this program itself")
    only = "train only layouts and models whose name contains one of these"
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help=only)
    return parser.parse_args()


def _chosen(names: Iterable[str], parts: Sequence[str]) -> list[str]:
    return [name for name in names if any(part in name for part in parts)]


def machine(name: str | None) -> tuple[Device, dict[str, Any]]:
    """Return the GPU as the plan knows it, with the memory it has, and facts for the page; raises Problems."""
    import torch

    if not torch.cuda.is_available():
        hint = "run this on a machine with a GPU; deepy plan estimates memory and speed without one"
        raise Problems([Problem("torch finds no GPU on this machine", hint=hint, id="no-gpu")])
    found = torch.cuda.get_device_properties(0)
    device = replace(
        find_device(name) if name else reported_device(found.name) or unknown_device(), memory=found.total_memory
    )
    facts = {
        "gpu": found.name,
        "memory": found.total_memory,
        "peak_tflops": None if device.name == unknown_device().name else device.half / 1e12,
        "capability": list(torch.cuda.get_device_capability(0)),
        "host_memory": host_memory(),
        "cpus": len(os.sched_getaffinity(0)),
        "versions": {"Python": platform.python_version(), "CUDA": torch.version.cuda}
        | {package: version(package) for package in ("torch", "deepspeed")},
    }
    return device, facts


def compare_layouts(names: list[str], small: bool, end: float) -> list[dict[str, Any]]:
    """Train these layouts on the GPU and on the CPU at the same time, and return their differences."""
    if not names:
        return []
    steps, changes = (2, SMALL) if small else (10, {})
    threads = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // (PROCESSES + 1)))}

    def trained(chosen: list[str], config: Callable[[str], dict[str, Any]], device: dict[str, str]) -> Rows:
        trials = [_trial(name, None, config(name) | changes, "losses", steps) for name in chosen]
        return dict(zip(chosen, run_trials(trials, end, threads | device), strict=True))

    with ThreadPoolExecutor() as pool:
        expected = pool.submit(trained, names, reference, {"DS_ACCELERATOR": "cpu"})
        processes = 2 if small else PROCESSES
        shares = [names[first::processes] for first in range(processes)]
        found: Rows = {}
        for rows in pool.map(lambda share: trained(share, layout, {}), shares):
            found |= rows
        return [compare(name, found[name], expected.result()[name]) for name in names]


def layout(name: str) -> dict[str, Any]:
    """Return the configuration of a layout."""
    return MODEL | LAYOUTS[name]


def reference(name: str) -> dict[str, Any]:
    """Return what a layout is compared with on the CPU: fp32, uncompiled, and no dropout, whose masks would differ."""
    config = layout(name)
    # 16 bits without ZeRO run as ZeRO-1, of which sm3 knows (it then keeps a maximum per element).
    if config["precision"] != "fp32":
        config = {"zero_optimization.stage": 1} | config
    return config | {"precision": "fp32", "hidden_dropout": 0.0, "compile_layers": False}


def compare(name: str, found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a layout: the largest differences, and what is wrong or ""."""
    row: dict[str, Any] = {"name": name, "losses": found.get("losses"), "cpu": expected.get("losses"), "problem": ""}
    if "error" in found or "error" in expected:
        return row | {"problem": found.get("error") or f"on the CPU: {expected['error']}"}
    config = layout(name)
    loss_limit, logits_limit = TOLERANCE[32 if config["precision"] == "fp32" else 16]
    if config["hidden_dropout"]:
        loss_limit = DROPOUT_TOLERANCE
    row["waits"] = found.get("waits")
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


def largest(differences: Iterable[float]) -> float:
    """Return the largest; NaN if one is, which `max` may pass over."""
    return max(differences, key=lambda difference: (math.isnan(difference), difference))


def measure_model(name: str, device: Device, small: bool, end: float) -> dict[str, Any]:
    """Measure the first way to train a model that works."""
    row: dict[str, Any] = {"name": name, "attempts": []}
    for way in choose_ways(name, device, small):
        trial = _trial(name, model_file(name), model_sets(name, way, small), "speed", 2 if small else 20)
        [found] = run_trials([trial], min(end, time.monotonic() + ATTEMPT), {})
        row["attempts"].append({**way._asdict(), "error": found.get("error", "")})
        if "error" not in found:
            return row | found | planned(name, way, device, small)
    return row


def choose_ways(name: str, device: Device, small: bool) -> list[Way]:
    """Return the first ways that fit according to the plan; the one that needs least if none does."""
    allowed = [way for way in WAYS if way.micro_batch <= MODELS[name].largest]
    fitting = [way for way in allowed if plan(name, way, device, small).fits]
    return fitting[:ATTEMPTS] or WAYS[-1:]


def model_file(name: str) -> str:
    return str(ROOT / "configs" / "models" / f"{MODELS[name].file}.yml")


def model_sets(name: str, way: Way, small: bool) -> dict[str, Any]:
    """Return the overrides of a model's file."""
    sets = (
        ONE_GPU
        | MODELS[name].changes
        | {
            "train_micro_batch_size_per_gpu": way.micro_batch,
            "train_batch_size": way.micro_batch * ONE_GPU["gradient_accumulation_steps"],
            "checkpoint_activations": way.recompute,
        }
    )
    return sets | (OFFLOADED if way.offload else {}) | (SMALL_MODEL if small else {})


def plan(name: str, way: Way, device: Device, small: bool) -> Plan:
    """Return what `deepy plan` computes for one GPU in this machine."""
    config = resolve_trial(model_file(name), model_sets(name, way, small))
    return make_plan(RunSpec(config, assumed_resources(1)), Target(device, host_memory()))


def planned(name: str, way: Way, device: Device, small: bool) -> dict[str, Any]:
    """Return the plan's figures, and those that make tokens and FLOP/s of the measured seconds."""
    estimate = plan(name, way, device, small)
    memory, speed = estimate.fullest, estimate.speed
    return {
        "parameters": sum(estimate.parts.values()),
        "tokens": speed.tokens,
        "flops_per_token": speed.flops_per_token,
        "plan": {"seconds": speed.step, "tensors": memory.allocated, "used": memory.peak},
    }


def _trial(name: str, file: str | None, sets: dict[str, Any], measure: str, steps: int) -> Trial:
    return {"name": name, "file": file, "sets": sets, "measure": measure, "steps": steps, "seconds": MEASURED}


def run_trials(trials: list[Trial], end: float, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Return the row of each trial. A trial that ends its process, or for which there is no time, has an error."""
    rows: list[dict[str, Any]] = []
    while len(rows) < len(trials):
        left = end - time.monotonic()
        if left <= 0:
            rows += [{"error": "no time left"}] * (len(trials) - len(rows))
        else:
            rows += _run_child(trials[len(rows) :], left, environment)
    return rows


def _run_child(trials: list[Trial], seconds: float, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Return the rows of the first trials: up to the one that ended the process, or at which its time was over."""
    with tempfile.TemporaryDirectory() as folder:
        results, log = Path(folder, "results"), Path(folder, "log")
        results.touch()
        command = [sys.executable, str(CHILD), str(results)]
        with log.open("w") as output:
            options: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT, "env": os.environ | environment}
            ending = "ended without a result"
            try:
                subprocess.run(command, input=json.dumps(trials), text=True, timeout=seconds, check=False, **options)
            except subprocess.TimeoutExpired:
                ending = f"no result within {seconds:.0f} s"
        rows = [json.loads(line) for line in results.read_text().splitlines()]
        # gpu_trials.py ends after a CUDA error, whose row says it already.
        if len(rows) < len(trials) and not ("error" in rows[-1] if rows else False):
            last = (log.read_text(errors="replace").splitlines() or [""])[-1]
            rows.append({"error": f"{ending}: {last}".rstrip(": ")})
        return rows


if __name__ == "__main__":
    sys.exit(main())
