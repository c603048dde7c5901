"""What torch.compile makes for a GPU computes what uncompiled layers do: Triton's interpreter runs the kernels.

`check_gradients` is what a run with `compile_layers` does before its first step, on a real GPU too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.support import simulated_gpu
from tests.support.paths import ROOT
from tests.support.ranks import run_ranks

pytestmark = simulated_gpu.NEEDS_TRITON

MODELS: dict[str, dict[str, Any]] = {
    "Pythia": {"pos_emb": "rotary", "rotary_pct": 0.25, "gpt_j_residual": True},
    "Llama 3": {"pos_emb": "rotary", "norm": "rmsnorm", "activation": "swiglu", "num_kv_heads": 2},
}  # fmt: skip


def refused() -> dict[str, list[str]]:
    """Return what the comparison of compiled layers and cross entropy refuses: of each model, and with a wrong exp."""
    from torch._inductor.runtime import triton_helpers

    from neoxargs.base.problems import Problems
    from neoxargs.train.engine.compiled import check_gradients, compile_layers
    from neoxargs.train.losses.cross_entropy import Loss
    from neoxargs.train.model.gpt import GPT
    from neoxargs.train.model.shared import Shared
    from neoxargs.train.parallel.layers import Ranks, Weights
    from tests.support.simulated_gpu import ahead_of_time
    from tests.support.small_gpt import VOCABULARY, randomised, small

    ahead_of_time.interpret((9, 0))
    gpu = torch.device("cuda", 0)

    def compare(changes: dict[str, Any]) -> list[str]:
        torch._dynamo.reset()
        config = small(num_layers=1, **changes)
        model = randomised(GPT(config, VOCABULARY, Weights(), Shared())).to("cuda", torch.bfloat16).train()
        compile_layers(model, gpu)
        try:
            check_gradients(model, config, 1, Loss(VOCABULARY, compiled=True), Ranks(), gpu)
        except Problems as stop:
            return [problem.id for problem in stop.problems]
        return []

    found = {name: compare(changes) for name, changes in MODELS.items()}
    exp = triton_helpers.libdevice.exp
    triton_helpers.libdevice.exp = lambda x: exp(x / 2)
    return found | {"wrong": compare(MODELS["Pythia"])}


def main() -> None:
    """Print what is refused, as JSON."""
    print(json.dumps(run_ranks(refused, 1, timeout=800, on=simulated_gpu.MACHINE)[0]))


def test_layers_and_the_cross_entropy() -> None:
    """In a process of its own, because Triton reads the variable when it is imported."""
    code = f"from tests.train.gpu.{Path(__file__).stem} import main; main()"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: [] for name in MODELS} | {"wrong": ["compiled-gradients"]}
