"""transformers' models come in, compute the same on every layout, and go out again as they were."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.convert.huggingface import exporting
from neoxargs.facts.position import Position
from neoxargs.train.process import mesh, setup
from tests.support.huggingface import Answer, assert_same_weights, forward, prepared
from tests.support.loaded_engine import loaded_run
from tests.support.ranks import run_ranks

NAMES = ("GPT-NeoX", "GPT-2", "Llama, biases", "Mistral")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models."""
    os.environ["USE_TF"] = "0"
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("huggingface")
    prepared(folder, NAMES)
    return folder


def each_layout(root: Path, layouts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return for every layout and model the error of the logits, and how many texts differ."""
    process, found = setup.start("gloo", seed=1), {}
    for layout, sizes in layouts.items():
        for name in NAMES:
            found[f"{layout} {name}"] = on_this_rank(root / name, sizes, root / layout / name, process)
            mesh.destroy_groups()
    return found


def on_this_rank(folder: Path, sizes: dict[str, Any], save: Path, process: Any) -> tuple[float | None, int]:
    run = loaded_run(folder / "ours" / "model.yml", {**sizes, "save": save}, process)
    run.checkpoints.save(Position(1, 1))
    return (None, 0) if "precision" in sizes else forward(run, Answer(**torch.load(folder / "answer.pt")))


LAYOUTS = {
    2: {
        "tp2": {"model_parallel_size": 2},
        "pp2": {"pipe_parallel_size": 2},
        "zero3": {"zero_optimization.stage": 3},
        "half": {"model_parallel_size": 2, "precision": "bfloat16"},
    },
    4: {"tp2 pp2": {"model_parallel_size": 2, "pipe_parallel_size": 2}},
}


@pytest.mark.slow
@pytest.mark.parametrize("world", LAYOUTS)
def test_every_layout_imports_and_exports_the_same_model(root: Path, world: int) -> None:
    for ranks in run_ranks(each_layout, world, root, LAYOUTS[world], timeout=280):
        for what, (off, different) in ranks.items():
            assert off is None or off < 1e-4, what
            assert different == 0, what
    for layout in LAYOUTS[world]:
        for name in NAMES:
            # Of the half precision the optimizer's weights, which are the whole ones.
            words = [str(root / name / "ours" / "model.yml"), "--set", f"load={root / layout / name}"]
            again = root / f"out {layout} {name}"
            assert exporting.main([*words, "--to", str(again), "--dtype", "float32"]) == 0
            assert_same_weights(again, root / name / "theirs")
