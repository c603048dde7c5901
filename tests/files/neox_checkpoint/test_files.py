"""Which files a GPT-NeoX checkpoint has, and which are missing: names alone, no contents."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.base.problems import Problems
from neoxargs.files.neox_checkpoint.files import find
from tests.support.refused import refused
from tests.support.snapshots import pinned


def checkpoint(folder: Path, layers: int = 2, tensor: int = 1, pipe: int = 1, data: int = 0) -> Path:
    """Create the files of a checkpoint, without contents."""
    folder.mkdir(parents=True)
    for rank in range(tensor):
        for number in (0, *range(2, layers + 2), layers + 3, layers + 4):
            (folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt").touch()
    for number in range(tensor * pipe):
        (folder / f"mp_rank_{number:02d}_model_states.pt").touch()
        for part in range(data):
            (folder / f"zero_pp_rank_{part}_mp_rank_{number:02d}_optim_states.pt").touch()
    return folder


def test_the_layout_follows_from_the_names(tmp_path: Path) -> None:
    files = find(checkpoint(tmp_path / "global_step150000", 44, tensor=2, pipe=4, data=12).parent)
    assert files is not None and files.by_layer
    assert (files.tensor_ranks, files.stages, files.data_ranks, files.iteration) == (2, 4, 12, 150000)
    assert sorted(files.layers) == [0, *range(2, 46), 47, 48]


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("layer_02-model_00-model_states.pt", "missing: layer_02-model_00-model_states.pt"),
        ("layer_02-model_01-model_states.pt", "missing: layer_02-model_01-model_states.pt"),
        ("layer_03*", "missing: layer_03-model_00-model_states.pt, layer_03-model_01-model_states.pt"),
        ("mp_rank_02*", "missing: mp_rank_02_model_states.pt"),
        ("zero_pp_rank_1_mp_rank_03*", "missing: zero_pp_rank_1_mp_rank_03_optim_states.pt"),
        ("mp_rank_03*", "missing: mp_rank_03_model_states.pt"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, gone: str, named: str) -> None:
    folder = checkpoint(tmp_path / "global_step3", 3, tensor=2, pipe=2, data=2)
    for path in folder.glob(gone):
        path.unlink()
    with pytest.raises(Problems, match=named) as raised:
        find(tmp_path)
    assert raised.value.problems[0].id == "checkpoint-incomplete"


def test_latest_chooses(tmp_path: Path) -> None:
    for step in (3, 9):
        checkpoint(tmp_path / f"global_step{step}")
    (tmp_path / "latest").write_text("global_step3\n")
    files, named = find(tmp_path), find(tmp_path, 9)
    assert files is not None and files.iteration == 3
    assert named is not None and named.iteration == 9


def test_a_wrong_latest_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "global_step3")
    (tmp_path / "latest").write_text("global_step4")
    pinned(refused(find, tmp_path))
    assert find(tmp_path, 3) is not None


def test_latest_names_no_folder_outside(tmp_path: Path) -> None:
    checkpoint(tmp_path / "elsewhere")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "latest").write_text("../elsewhere")
    assert find(tmp_path / "run") is None


@pytest.mark.parametrize("tag", ["0", "step143000"])
def test_other_names_of_the_folder(tmp_path: Path, tag: str) -> None:
    folder = checkpoint(tmp_path / tag)
    (tmp_path / "latest").write_text(tag)
    for root in (tmp_path, folder):
        files = find(root)
        assert files is not None and files.folder == folder


@pytest.mark.parametrize("name", ["files.json", "config.json", "layout-mp_rank_00.json"])
def test_deepy_s_own_checkpoints_are_left_alone(tmp_path: Path, name: str) -> None:
    (checkpoint(tmp_path / "global_step3") / name).write_text("{}")
    assert find(tmp_path) is None
