"""Files of another iteration, layer or rank in a GPT-NeoX checkpoint are noticed, in every format that can show it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.base.problems import Problem, Problems
from neoxargs.files.neox_checkpoint.consistency import SAMPLE, _equal, inconsistencies
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.files.neox_checkpoint.pickles import TensorRef, read
from tests.support.neox_files import Run, write
from tests.support.snapshots import pinned

LAYOUTS: dict[str, dict[str, Any]] = {
    "fp32": {"optimizer": "fp32"}, "fp32 tp2 pp2": {"optimizer": "fp32", "tensor": 2, "pipe": 2},
    "weights only": {"optimizer": "none"}, "fp16": {"optimizer": "fp16"},
    "zero1": {"optimizer": "zero1", "tensor": 2, "data": 2}, "zero1 of 2021": {"optimizer": "zero1-2021", "data": 2},
    "bf16": {"optimizer": "bf16", "pipe": 2, "data": 2},
}  # fmt: skip
#: Those whose optimizer files contain the fp32 weights.
WITH_MASTERS = ("fp16", "zero1", "zero1 of 2021", "bf16")
LAYER = "layer_03-model_00-model_states.pt"


def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"embedding.word_embeddings.weight": (32, 16), "output.weight": (32, 16)}
    modules = {"attention.query_key_value": (48, 16), "attention.dense": (16, 16), "mlp.dense_h_to_4h": (64, 16)}
    modules["mlp.dense_4h_to_h"] = (16, 64)
    shapes |= {f"layers.{layer}.{name}.weight": shape for layer in range(2) for name, shape in modules.items()}
    values = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    # Norms that did not change, as in 16 bits.
    norms = ["final_norm", *(f"layers.{layer}.input_layernorm" for layer in range(2))]
    return values | {f"{name}.weight": torch.ones(16) for name in norms}


def two_checkpoints(root: Path, layout: str) -> tuple[Path, Path]:
    """Write two checkpoints of a run; return their folders, the older one first."""
    folders = []
    for iteration in (10, 20):
        moments = {state: weights(100 + iteration) for state in ("exp_avg", "exp_avg_sq")}
        run = Run(weights(iteration), 4, 4, moments, iteration=iteration, names="legacy", **LAYOUTS[layout])
        folders.append(write(run, root / f"global_step{iteration}"))
    return folders[0], folders[1]


def problems(folder: Path) -> list[Problem]:
    """Return the problems of the newer checkpoint in a folder."""
    try:
        contents = Contents.at(folder, 20)
        assert contents is not None and contents.layers
        return list(inconsistencies(contents))
    except Problems as found:
        return found.problems


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_undamaged_checkpoint_is_consistent(tmp_path: Path, layout: str) -> None:
    two_checkpoints(tmp_path, layout)
    assert problems(tmp_path) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_of_another_iteration_is_named(tmp_path: Path, layout: str) -> None:
    old, new = two_checkpoints(tmp_path, layout)
    shutil.copy(old / LAYER, new / LAYER)
    (problem,) = problems(tmp_path)
    assert (problem.id, problem.severity) == ("checkpoint-files-mixed", "error") and LAYER in problem.what
    expected = (
        "from which the optimizer files continue" if layout in WITH_MASTERS else "the same weights as in global_step10,"
    )
    assert expected in problem.what


@pytest.mark.parametrize("layout", WITH_MASTERS)
def test_it_is_also_named_without_the_other_checkpoint(tmp_path: Path, layout: str) -> None:
    old, new = two_checkpoints(tmp_path, layout)
    shutil.copy(old / LAYER, new / LAYER)
    shutil.rmtree(old)
    assert [problem.id for problem in problems(tmp_path)] == ["checkpoint-files-mixed"]


@pytest.mark.parametrize("layout", WITH_MASTERS)
def test_layers_that_were_swapped_and_saved_again_are_named(tmp_path: Path, layout: str) -> None:
    _, new = two_checkpoints(tmp_path, layout)
    files = [new / LAYER, new / LAYER.replace("03", "02")]
    states = [torch.load(file) for file in files]
    for file, state in zip(files, reversed(states), strict=True):
        torch.save(state, file)
    (problem,) = problems(tmp_path)
    assert problem.id == "checkpoint-files-mixed" and all(file.name in problem.what for file in files)


LAYERS, RANKS = "layer_02-model_00-model_states.pt", "layer_03-model_01-model_states.pt"


@pytest.mark.parametrize(
    ("layout", "other"), [*((layout, LAYERS) for layout in LAYOUTS), ("zero1", RANKS), ("fp32 tp2 pp2", RANKS)]
)
def test_swapped_files_are_named(tmp_path: Path, layout: str, other: str) -> None:
    """Of two layers, or of two tensor parallel ranks."""
    _, new = two_checkpoints(tmp_path, layout)
    (new / LAYER).rename(new / "kept")
    (new / other).rename(new / LAYER)
    (new / "kept").rename(new / other)
    assert [problem.id for problem in problems(tmp_path)] == ["checkpoint-file-renamed"]


@pytest.mark.parametrize("layout", ["fp32 tp2 pp2", "bf16", "zero1"])
def test_a_state_file_of_another_iteration_is_named(tmp_path: Path, layout: str) -> None:
    old, new = two_checkpoints(tmp_path, layout)
    shutil.copy(old / "mp_rank_01_model_states.pt", new)
    (problem, *_) = problems(tmp_path)
    assert problem.id == "checkpoint-files-mixed"
    assert "different iterations: " in problem.what and "10 in mp_rank_01_model_states.pt" in problem.what


def test_a_folder_of_another_iteration(tmp_path: Path) -> None:
    old, new = two_checkpoints(tmp_path, "weights only")
    shutil.copy(old / "mp_rank_00_model_states.pt", new)
    (problem,) = problems(tmp_path)
    pinned(problem)


def test_an_optimizer_file_of_another_step_is_named(tmp_path: Path) -> None:
    old, new = two_checkpoints(tmp_path, "zero1")
    shutil.copy(old / "zero_pp_rank_1_mp_rank_00_optim_states.pt", new)
    found = " ".join(problem.what for problem in problems(tmp_path))
    assert "different steps: 10 in zero_pp_rank_1_mp_rank_00_optim_states.pt; 20 in " in found


def without_last_stage(folder: Path) -> None:
    for file in folder.glob("mp_rank_01*"):
        file.unlink()


def without_all(folder: Path) -> None:
    for file in folder.glob("mp_rank_*"):
        file.unlink()


def without_last_stage_s_optimizer(folder: Path) -> None:
    for file in folder.glob("*mp_rank_01*"):
        file.unlink()


@pytest.mark.parametrize("layout", ["fp32", "weights only", "bf16"])
@pytest.mark.parametrize("remove", [without_last_stage, without_all, without_last_stage_s_optimizer])
def test_missing_state_files_are_named(tmp_path: Path, layout: str, remove: Callable[[Path], None]) -> None:
    """The files of the last pipeline stage are named by the optimizer files, or by the saved configuration."""
    _, new = two_checkpoints(tmp_path, layout)
    if layout != "bf16":
        shutil.copy(new / "mp_rank_00_model_states.pt", new / "mp_rank_01_model_states.pt")
    (new / "configs").mkdir()
    (new / "configs" / "my.yml").write_text('{"pipe-parallel-size": 2, "num-layers": 2}')
    remove(new)
    (problem,) = problems(tmp_path)
    assert problem.id == "checkpoint-incomplete"
    assert ("mp_rank_01_model_states.pt" if remove != without_all else "mp_rank_00_model_states.pt") in problem.what


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_compared_as_torch_rounds(tmp_path: Path, dtype: torch.dtype) -> None:
    master = torch.cat([torch.randn(SAMPLE - 4), torch.tensor([1.00390625, 1.01171875, -0.0, 1e-7])])  # ties, subnormal
    torch.save({"master": master, "weight": master.to(dtype), "other": (master * 1.01).to(dtype)}, tmp_path / "x.pt")
    refs: dict[str, TensorRef] = read(tmp_path / "x.pt")
    assert _equal(refs["weight"], refs["master"], 0, SAMPLE)
    assert not _equal(refs["other"], refs["master"], 0, SAMPLE)
