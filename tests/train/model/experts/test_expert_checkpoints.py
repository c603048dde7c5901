"""Checkpoints of experts that data parallel ranks divide: each expert once, for every layout, and for transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from neoxargs.convert.huggingface import exporting
from neoxargs.facts.position import Position
from neoxargs.train.process import mesh, setup
from tests.support.experts import BY_FOUR, BY_TWO, BY_WIDTH, MOE, staged
from tests.support.huggingface import Difference, assert_same_weights, on_layout, prepared
from tests.support.layouts import BF16, PIPE, TENSOR
from tests.support.loaded_engine import loaded_run
from tests.support.ranks import run_ranks
from tests.support.relayout import Curves, read, write
from tests.support.trials import Trial

ONE = {"1 process": Trial(MOE)}
TWO = {
    "ep2": Trial(MOE | BY_TWO),
    "ep2, pipeline, ZeRO-1": staged(1, BY_TWO | PIPE),
    "ep2, ZeRO-2": staged(2, BY_TWO),
    "ep2, bf16": Trial(MOE | BY_TWO, BF16),
    "dp2, ZeRO-3": staged(3),
}
FOUR = {
    "ep4": Trial(MOE | BY_FOUR),
    "ep2 of dp4, ZeRO-1": staged(1, BY_TWO),
    "ep2 x tp2": Trial(MOE | BY_TWO | TENSOR),
    "ep2 x tp2, width of each expert": Trial(MOE | BY_TWO | BY_WIDTH),
}
LAYOUTS = ((1, ONE), (2, TWO), (4, FOUR))
NAMES = [*ONE, *TWO, *FOUR]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def before(root: Path) -> Curves:
    """The losses after each layout's checkpoint."""
    found: Curves = {}
    for world, trials in LAYOUTS:
        found |= run_ranks(write, world, trials, str(root), timeout=500)[0]
    return found


@pytest.fixture(scope="module")
def after(root: Path, before: Curves) -> dict[str, Curves]:
    """The losses of each layout after it has loaded each other layout's checkpoint."""
    found: dict[str, Curves] = {}
    for world, trials in LAYOUTS:
        found |= run_ranks(read, world, trials, list(before), str(root), timeout=500)[0]
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("there", NAMES)
@pytest.mark.parametrize("here", NAMES)
def test_the_loss_curve_continues_on_any_layout(
    before: Curves, after: dict[str, Curves], here: str, there: str
) -> None:
    tolerance = 5e-3 if "bf16" in here + there else 1e-5
    assert after[here][there] == pytest.approx(before[there], abs=tolerance)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("ep")])
def test_every_expert_is_saved_once(root: Path, before: Curves, name: str) -> None:
    """Its weights, and in files of optimizer states its two moments."""
    folder = root / name / "global_step3"
    full = 2 * (4 * 2 * 42 * 32 + 4 * 42 * 32)  # layers x (experts x outputs x inputs, of both matrices)
    weights, pieces = 0, 0
    for file in folder.glob("*.pt"):
        content = torch.load(file, weights_only=False)
        module = content.get("module", content)
        weights += sum(value.numel() for key, value in (module or {}).items() if ".experts.dense" in str(key))
    assert weights == full
    for file in folder.glob("layout-*.json"):
        pieces += sum(size for key, _, _, _, size in json.loads(file.read_text())["pieces"] if ".experts.dense" in key)
    assert pieces == full


def on_ranks(folder: Path) -> Difference:
    """Compare the imported model, and save what this rank has loaded."""
    process = setup.start("gloo", seed=1)
    found = on_layout(folder, BY_TWO, process)
    mesh.destroy_groups()
    run = loaded_run(folder / "ours" / "model.yml", {**BY_TWO, "save": folder / "saved"}, process)
    run.checkpoints.save(Position(1, 1))
    mesh.destroy_groups()
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Mixtral", "OLMoE"])
def test_import_and_export_with_divided_experts(tmp_path: Path, name: str) -> None:
    os.environ["USE_TF"] = "0"
    pytest.importorskip("transformers")
    prepared(tmp_path, [name])
    folder = tmp_path / name
    for difference in run_ranks(on_ranks, 2, folder, timeout=500):
        assert difference.logits is not None and difference.logits < 1e-4
        assert difference.gradients < 1e-4 and difference.texts == 0
    words = [str(folder / "ours" / "model.yml"), "--to", str(tmp_path / "again")]
    assert exporting.main([*words, "--set", f"load={folder / 'saved'}"]) == 0
    assert_same_weights(tmp_path / "again", folder / "theirs")
