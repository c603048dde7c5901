"""What the plan says of the shipped models in the shipped layouts, and what it said of those of an earlier commit.

    python bench/shipped_layouts.py [--against DIR]

Each model runs on one host of H100s, or as few as its layout needs, and on 1,024 of them. The columns after TFLOP/s are
parts of the step's time: messages that computation does not hide, and the bubble of the pipeline. DIR is a checkout of
another commit, whose own plan, models and layouts are used; it is read with the packages of this Python. docs/gpus.md
has the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Model, layout, micro batch per GPU, micro batches in a step, and the fewest GPUs.
ROWS = (
    ("pythia-1.4b", "zero1", 4, 2, 8),
    ("gpt-3-1.3b", "zero1", 4, 2, 8),
    ("llama-2-7b", "zero1", 1, 4, 8),
    ("llama-2-70b", "tp8-pp4", 1, 32, 32),
    ("mixtral-8x7b", "tp8", 1, 4, 8),
)
MANY = 1024
#: Parts of the time of a step, in the words of the table.
PARTS = {
    "tensor": "tensor parallel",
    "pipe": "stages",
    "data": "data parallel",
    "experts": "experts",
    "bubble": "bubble",
}


def planned(root: Path, model: str, layout: str, micro: int, batches: int, gpus: int) -> dict[str, Any]:
    """Return the plan of a model in a layout, by the deepy in `root`."""
    files = [f"configs/models/{model}.yml", f"configs/layouts/{layout}.yml"]
    values = [
        "precision=bfloat16", "train_batch_size=null", f"train_micro_batch_size_per_gpu={micro}",
        f"gradient_accumulation_steps={batches}", "tokenizer_type=HFTokenizer", "data_path=tokens",
        *(["optimizer.type=Adam"] if model.startswith("mixtral") else []),
    ]  # fmt: skip
    words = [word for value in values for word in ("--set", value)]
    command = [
        sys.executable,
        "deepy.py",
        "plan",
        *files,
        *words,
        "--gpus",
        str(gpus),
        "--device",
        "H100-80GB",
        "--json",
    ]
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    if not done.stdout.startswith("{"):
        raise SystemExit(f"{root}: {' '.join(command)}\n{done.stdout}{done.stderr}")
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def cells(plan: dict[str, Any]) -> list[str]:
    speed = plan["speed"]
    rate = speed["flops_per_token"] * speed["tokens"] / speed["step"] / speed["ranks"] / 1e12
    peak = max(stage["peak"] for stage in plan["stages"]) / 2**30
    return [
        f"{peak:.0f}{' of 80: does not fit' * (not plan['fits'])}",
        f"{rate:.0f}",
        *(f"{speed.get(part, 0.0) / speed['step']:.1%}" for part in PARTS),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="DIR")
    options = parser.parse_args()
    print(" | ".join(["| model", "layout", "GPUs", "", "GiB", "TFLOP/s", *PARTS.values(), ""]).rstrip())
    print("|---|---|--:|---|" + "--:|" * (2 + len(PARTS)))
    roots = {"before": options.against.resolve(), "now": ROOT} if options.against else {"now": ROOT}
    for model, layout, micro, batches, fewest in ROWS:
        for gpus in (fewest, MANY):
            for when, root in roots.items():
                row = cells(planned(root, model, layout, micro, batches, gpus))
                print(f"| {' | '.join([model, layout, f'{gpus:,}', when, *row])} |", flush=True)


if __name__ == "__main__":
    main()
