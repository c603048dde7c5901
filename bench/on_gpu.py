"""Check and measure training on the GPUs of this machine in at most twenty minutes, and write a page about it.

    python bench/on_gpu.py [-o gpu.md] [--json FILE] [--minutes 20] [--device NAME] [--small] [--only NAME ...]

1. Layouts: a small model trains some steps with each precision, kind of attention and position, recomputation, ZeRO
   stage, optimizer and kind of layer; its losses, and logits before the first step, are compared with those of this
   machine's CPU in fp32, and the places are counted where a step makes the host wait for the GPU.
2. Models: tokens/s, TFLOP/s and peak memory of GPT-3, Pythia and Llama in bf16, beside the figures of `deepy plan`, and
   the kernels that take the time. A model that does not fit is tried with smaller micro batches, recomputation, and its
   optimizer in host memory.

Of several GPUs, both come first on all of them together (tensor, pipeline, expert and data parallel, ZeRO 0 to 3), with
what each rank sends in a step, and published figures of the same training; then what is above, on the first one.

Steps are timed between two synchronisations of the GPU; the median counts. Reading of data is not measured. What there
is no time for is named. The exit code is 1 if a layout fails or differs. Every trial runs in child processes with a
time limit (gpu_processes.py).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from gpu_layouts import LAYOUTS, compare_layouts, compare_layouts_of_several, layouts_of_several  # noqa: E402
from gpu_models import MODELS, measure_model, models  # noqa: E402
from gpu_page import page  # noqa: E402

from neoxargs.base.problems import Problem, Problems, render  # noqa: E402
from neoxargs.hosts.device_table import Device, find_device, reported_device, unknown_device  # noqa: E402
from neoxargs.plan.given.target import host_memory  # noqa: E402

#: Default time in minutes with one GPU, and with several.
MINUTES = 15, 20
#: Share of the time at whose end each part must be over: with one GPU layouts and models, with several both on all GPUs
#: together before.
PARTS, PARTS_OF_SEVERAL = (0.3, 1.0), (0.3, 0.6, 0.8, 1.0)


def main() -> int:
    options = _options()
    began = time.monotonic()
    try:
        device, facts = machine(options.device)
    except Problems as stop:
        sys.exit(render(stop.problems))
    gpus, small = facts["gpus"], options.small
    seconds = 60 * (options.minutes or MINUTES[gpus > 1])
    ends = [began + share * seconds for share in (PARTS if gpus == 1 else PARTS_OF_SEVERAL)]
    results: dict[str, Any] = {"machine": facts, "several": [], "models": []}
    if gpus > 1:
        chosen = _chosen(layouts_of_several(gpus), options.only)
        results["several"] = compare_layouts_of_several(chosen, gpus, small, ends[0])
        chosen = _chosen(models(gpus), options.only)
        results["models"] = [measure_model(name, device, small, ends[1], gpus) for name in chosen]
    results["layouts"] = compare_layouts(_chosen(LAYOUTS, options.only), small, ends[-2])
    results["models"] += [measure_model(name, device, small, ends[-1]) for name in _chosen(MODELS, options.only)]
    results["seconds"] = time.monotonic() - began
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    text = page(results, small)
    if options.output:
        Path(options.output).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return int(any(row["problem"] for row in results["several"] + results["layouts"]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page to this Markdown file")
    parser.add_argument("--json", metavar="FILE", help="also write the results as JSON")
    limit = "total time limit in minutes (default: {} with one GPU, {} with several)".format(*MINUTES)
    parser.add_argument("--minutes", type=float, help=limit)
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
        "gpus": torch.cuda.device_count(),
        "memory": found.total_memory,
        "peak_tflops": None if device.name == unknown_device().name else device.half / 1e12,
        "capability": list(torch.cuda.get_device_capability(0)),
        "host_memory": host_memory(),
        "cpus": len(os.sched_getaffinity(0)),
        "versions": {"Python": platform.python_version(), "CUDA": torch.version.cuda}
        | {package: version(package) for package in ("torch", "deepspeed")},
    }
    return device, facts


if __name__ == "__main__":
    sys.exit(main())
