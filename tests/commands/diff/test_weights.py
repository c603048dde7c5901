"""Of two checkpoints, `deepy diff` compares every tensor: of deepy and GPT-NeoX, on any layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.cli import main
from neoxargs.convert.huggingface import importing
from tests.support.neox_files import YAML, Run, weights, write
from tests.support.snapshots import pinned


def checkpoint(folder: Path, values: dict[str, Any], **changes: Any) -> Path:
    """Write a checkpoint of GPT-NeoX with its configuration and moments of ones."""
    moments = dict.fromkeys(("exp_avg", "exp_avg_sq"), weights())
    given = {"optimizer": "fp32", "parallel_residual": True, "order": "per_head", **changes}
    write(Run(values, 4, 4, moments, **given), folder)
    (folder / "configs").mkdir()
    sizes = f"model_parallel_size: {given.get('tensor', 1)}\n"
    (folder / "configs" / "my.yml").write_text(YAML.replace("load: theirs\n", sizes))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    changed = weights()
    changed["layers.1.attention.dense.weight"][3, 4] += 0.5
    changed["output.weight"][:] = 0
    one = checkpoint(tmp_path / "a" / "global_step10", weights(), iteration=10)
    return one, checkpoint(tmp_path / "b" / "global_step20", changed, iteration=20)


def compared(capsys: Any, a: Path, b: Path) -> tuple[int, dict[str, Any]]:
    code = main(["diff", str(a), str(b), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_tensors_that_differ_are_named_with_how_much(folders: tuple[Path, Path], capsys: Any) -> None:
    code, found = compared(capsys, *folders)
    assert (code, found["verdict"], found["ok"]) == (1, "weights", False)
    # Norm of the difference / norm of 32 x 32 elements, of which one is 1.5.
    expected = {"layers.1.attention.dense.weight": (0.5, 0.5 / (1023 + 2.25) ** 0.5), "output.weight": (1.0, 1.0)}
    rows = {row["weight"]: (row["largest"], row["relative"]) for row in found["weights"]["differences"]}
    assert rows == {name: pytest.approx(values) for name, values in expected.items()}
    assert found["weights"]["equal"] == 3 * len(weights()) - 2
    assert main(["diff", *map(str, folders)]) == 1
    shown = capsys.readouterr().out
    pinned(shown, "the same")
    assert "the same run" not in shown
    assert "2 of 28 weights differ\n  all 56 optimizer states are equal\n" in shown
    assert "  layers.1.attention.dense.weight  0.5                 0.0156\n" in shown


def test_the_same_checkpoint_and_one_of_another_layout_are_equal(
    tmp_path: Path, folders: tuple[Path, Path], capsys: Any
) -> None:
    assert main(["diff", str(folders[0]), str(folders[0])]) == 0
    pinned(capsys.readouterr().out, "the same")
    other = checkpoint(tmp_path / "c" / "global_step10", weights(), iteration=10, tensor=2)
    _, found = compared(capsys, folders[0], other)
    assert found["weights"]["differences"] == [] and found["weights"]["equal"] == 3 * len(weights())


def test_a_difference_in_the_optimizer_state_alone(tmp_path: Path, capsys: Any) -> None:
    one = checkpoint(tmp_path / "a" / "global_step10", weights())
    other = shutil.copytree(one, tmp_path / "b" / "global_step10")
    file = other / "mp_rank_00_model_states.pt"
    state = torch.load(file, weights_only=False)
    state["optimizer"]["state"][0]["exp_avg_sq"][0] = 7
    torch.save(state, file)
    code, found = compared(capsys, one, other)
    (row,) = found["weights"]["differences"]
    assert code == 1 and (row["weight"], row["state"]) == ("embedding.word_embeddings.weight", "exp_avg_sq")


def test_deepy_s_checkpoints_are_compared_among_themselves_and_with_gpt_neox_s(
    tmp_path: Path, folders: tuple[Path, Path], capsys: Any
) -> None:
    ours = [tmp_path / "ours" / folder.parent.name for folder in folders]
    for folder, to in zip(folders, ours, strict=True):
        assert importing.main([str(folder), "--to", str(to)]) == 0
    capsys.readouterr()
    assert compared(capsys, folders[0], ours[0])[1]["weights"]["differences"] == []
    code, found = compared(capsys, *ours)
    assert code == 1 and {row["weight"] for row in found["weights"]["differences"]} == {
        "layers.1.attention.dense.weight", "output.weight",
    }  # fmt: skip


def test_a_damaged_checkpoint_is_not_compared(folders: tuple[Path, Path], capsys: Any) -> None:
    file = folders[1] / "layer_02-model_00-model_states.pt"
    data = bytearray(file.read_bytes())
    data[data.index(torch.ones(100).numpy().tobytes()) + 2] ^= 1
    file.write_bytes(data)
    assert main(["diff", *map(str, folders)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    pinned(shown.err, "[checkpoint-file-damaged]")


def test_a_checkpoint_that_does_not_list_its_weights_is_said_to_be_not_compared(
    tmp_path: Path, folders: tuple[Path, Path], capsys: Any
) -> None:
    assert importing.main([str(folders[0]), "--to", str(tmp_path / "ours")]) == 0
    (ours,) = (tmp_path / "ours").glob("global_step*")
    capsys.readouterr()
    for file in [ours / "files.json", *ours.glob("layout-*.json")]:
        file.unlink()
    main(["diff", str(ours), str(ours)])
    shown = capsys.readouterr()
    assert "=> the same configuration\n" in shown.out
    pinned(shown.err, "[weights-not-compared]")


def test_the_page_has_them_too(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    assert main(["diff", *map(str, folders), "--html", str(tmp_path / "page.html")]) == 1
    page = (tmp_path / "page.html").read_text()
    assert "different weights" in page and "layers.1.attention.dense.weight" in page
