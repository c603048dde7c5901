"""DeepSpeed and megatron-core are imported without what no rank uses, which still works when it is used later."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
HEAVY = ("transformers", "torch._dynamo", "torch._inductor", "wandb", "scipy", "networkx")
SHOW = f"import json, sys; print('loaded', json.dumps([name for name in {HEAVY} if name in sys.modules]))"
LEAN = "from neoxargs.train.deepspeed import lean_import; lean_import.import_packages(); import neoxargs.train.run\n"


def loaded(code: str) -> list[str]:
    """Run code in a process of its own, and return which of the heavy packages it has imported."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", f"{code}{SHOW}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("loaded")]
    found: list[str] = json.loads(line.removeprefix("loaded"))
    return found


def test_nothing_that_no_rank_uses_is_imported() -> None:
    assert loaded(LEAN) == []


def test_deepspeed_and_megatron_core_still_import_it_by_themselves() -> None:
    """Otherwise the lean import is no longer needed."""
    pytest.importorskip("wandb")
    alone = "import deepspeed, megatron.core.datasets.blended_dataset\n"
    assert {"torch._dynamo", "torch._inductor", "wandb"} <= set(loaded(alone))


def test_what_was_deferred_works_when_it_is_used() -> None:
    used = (
        LEAN + "import torch, torch._functorch.partitioners, transformers, wandb\n"
        "from deepspeed.compile.passes import long_context_checkpointing as deferred\n"
        "assert deferred._partitioners.solve_min_cut is torch._functorch.partitioners.solve_min_cut\n"
        "from deepspeed.moe.sharded_moe import _capacity\n"
        "twice = torch.compile(lambda x: 2 * x, backend='eager')\n"
        "assert twice(torch.ones(2)).sum() == 4 and torch.compiler.disable.__module__ == 'torch.compiler'\n"
    )
    assert "torch._dynamo" in loaded(used)
