"""`deepy checkpoints`: what it lists, what it finds, and that it removes nothing unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from neoxargs.cli import main
from neoxargs.commands.checkpoints import Choice
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import Written
from neoxargs.processes.run_lock import lock_run
from neoxargs.train.checkpoint import commit
from tests.support import neox_files
from tests.support.configure import configure
from tests.support.neox_files import Run
from tests.support.paths import ROOT
from tests.support.snapshots import pinned

HOUR = 3600


def write(root: Path, iteration: int, hours_ago: float, **values: object) -> Path:
    part = commit.begin(root, iteration)
    (part / "model.pt").write_bytes(bytes(2048))
    (part / "config.json").write_text(json.dumps(values))
    whole = commit.commit(root, iteration)
    written = time.time() - hours_ago * HOUR
    os.utime(whole / "files.json", (written, written))
    return whole


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoints 100 to 400, of which 200 has a flipped bit, and 300 a missing file."""
    for iteration in (100, 200, 300, 400):
        write(tmp_path, iteration, 10 - iteration / 100, model_parallel_size=2, world_size=4,
              zero_optimization={"stage": 1})  # fmt: skip
    (tmp_path / "global_step200" / "model.pt").write_bytes(bytes(2047) + b"\1")
    (tmp_path / "global_step300" / "model.pt").unlink()
    return tmp_path


def test_context_parallel_ranks_are_part_of_the_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 100, 1, context_parallel_size=4, world_size=4)
    main(["checkpoints", str(tmp_path)])
    assert "  tp1 pp0 cp4, 4 ranks  " in capsys.readouterr().out


def names(root: Path) -> list[str]:
    return [path.name for path in checkpoint_folder.checkpoints(root)]


def test_the_list(root, capsys):
    (root / ".writing-global_step500").mkdir()
    assert main(["checkpoints", str(root)]) == 1
    heading, first, *rest, last, left = capsys.readouterr().out.splitlines()
    assert heading.split() == ["iteration", "age", "size", "layout", "state"]
    assert first == "      100  9 hours  2.18 KiB  tp2 pp0, ZeRO-1, 4 ranks  complete"
    assert [line.split("4 ranks")[1].strip() for line in rest] == ["complete", "damaged: model.pt is missing"]
    assert last.endswith("complete, latest")
    pinned(left)


def test_verify_compares_checksums(root, capsys):
    assert main(["checkpoints", str(root), "--verify"]) == 1
    states = [line.split("4 ranks")[1].strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert states[0] == "verified"
    assert states[1].startswith("damaged: model.pt has the checksum ")
    assert states[2:] == ["damaged: model.pt is missing", "verified, latest"]


def test_checkpoints_of_older_versions_and_other_programs(tmp_path, capsys):
    old, foreign = write(tmp_path, 1, 0), tmp_path / "global_step2"
    (old / "files.json").write_text('{"model.pt": 2048}')
    foreign.mkdir()
    (foreign / "mp_rank_00_model_states.pt").touch()
    assert main(["checkpoints", str(tmp_path), "--verify", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [(row["recorded"], row["verified"], row["damage"]) for row in rows] == [
        ("size", False, ""),
        ("nothing", False, ""),
    ]
    assert rows[1]["layout"] == "not recorded"


@pytest.fixture
def gpt_neox_s(tmp_path):
    """Two checkpoints of a GPT-NeoX run."""
    shapes = {"embedding.word_embeddings.weight": (32, 16), "final_norm.weight": (16,)}
    for layer in range(3):
        shapes[f"layers.{layer}.attention.query_key_value.weight"] = (48, 16)
    for iteration in (10, 20):
        weights = {name: torch.full(shape, float(iteration)) for name, shape in shapes.items()}
        run = Run(weights, 4, 4, iteration=iteration, names="legacy", tensor=2)
        neox_files.write(run, tmp_path / f"global_step{iteration}")
    return tmp_path


def test_gpt_neox_s_checkpoints_are_listed_with_their_tensors(gpt_neox_s, capsys):
    for folder, iterations in ((gpt_neox_s, [10, 20]), (gpt_neox_s / "global_step10", [10])):
        assert main(["checkpoints", str(folder)]) == 0
        shown = capsys.readouterr().out
        assert shown.count("GPT-NeoX, tp2 pp1  complete") == len(iterations)
        assert shown.endswith(
            f"tensors in global_step{iterations[-1]}:\n"
            "  layer 0\n    word_embeddings.weight  16 x 16 float32 on each of 2 ranks\n"
            "  layers 2 to 4, each\n    attention.query_key_value.weight  24 x 16 float32 on each of 2 ranks\n"
            "  layer 6\n    norm.weight  16 float32 on each of 2 ranks\n"
        )
        assert main(["checkpoints", str(folder), "--json", "--verify"]) == 0
        rows = json.loads(capsys.readouterr().out)["checkpoints"]
        assert [(row["iteration"], row["verified"]) for row in rows] == [(number, True) for number in iterations]
        assert rows[0]["tensors"][1] == {
            "layer": 2, "name": "attention.query_key_value.weight", "shape": [24, 16], "dtype": "float32", "ranks": 2,
        }  # fmt: skip


def test_damage_of_gpt_neox_s_checkpoints_is_found(gpt_neox_s, capsys):
    file = gpt_neox_s / "global_step10" / "layer_03-model_00-model_states.pt"
    data = bytearray(file.read_bytes())
    data[data.index(torch.full((100,), 10.0).numpy().tobytes())] ^= 1
    file.write_bytes(data)
    assert main(["checkpoints", str(gpt_neox_s)]) == 0
    assert main(["checkpoints", str(gpt_neox_s), "--verify"]) == 1
    assert f"damaged: {file.name} does not match the checksums in it" in capsys.readouterr().out
    file.unlink()
    assert main(["checkpoints", str(gpt_neox_s)]) == 1
    assert f"damaged: {file.name} is missing" in capsys.readouterr().out


def test_json(root, capsys):
    assert main(["checkpoints", str(root), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert [row["iteration"] for row in found["checkpoints"]] == [100, 200, 300, 400]
    assert [row["latest"] for row in found["checkpoints"]] == [False, False, False, True]
    (root / "global_step300" / "model.pt").write_bytes(bytes(2048))
    assert main(["checkpoints", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert main(["checkpoints", str(root), "--json", "--verify"]) == 1
    assert not json.loads(capsys.readouterr().out)["ok"]


def test_a_folder_without_checkpoints_is_a_problem(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "run" / "global_step5").mkdir(parents=True)
    single = "this is one checkpoint, not the folder that contains the checkpoints"
    for name, what in {
        "empty": "there is no checkpoint in this folder [checkpoint-missing]\n  = pass the folder that",
        "file": "this is a file, not a folder with checkpoints [checkpoint-missing]\n  = pass the folder that",
        "emty": f"there is no such folder [checkpoint-missing]\n  = did you mean {tmp_path / 'empty'}?",
        "run/global_step5": f"{single} [checkpoint-missing]\n  = pass ",
    }.items():
        assert main(["checkpoints", str(tmp_path / name)]) == 1
        assert f"{name}: {what}" in capsys.readouterr().err


def test_nothing_is_removed_without_a_question(root, capsys, monkeypatch):
    assert main(["checkpoints", str(root), "--prune", "1"]) == 1
    printed = capsys.readouterr()
    *lines, last = printed.out.splitlines()
    assert [line.rpartition("  ")[2] for line in lines] == ["older"] * 3
    assert last == "to keep: global_step400"
    assert (root / "global_step300").exists()
    assert "error: --prune would remove 3 of 4 checkpoints (" in printed.err
    assert "= add --yes" in printed.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "")
    assert main(["checkpoints", str(root), "--prune", "1"]) == 1
    assert "[prune-declined]" in capsys.readouterr().err
    assert len(names(root)) == 4


def test_prune_keeps_the_newest_undamaged_ones(root, capsys):
    """It verifies them first: 200 and 300 are damaged, so 100 is the second one to keep."""
    assert main(["checkpoints", str(root), "--prune", "2", "--yes"]) == 0
    assert names(root) == ["global_step100", "global_step400"]
    first, second, kept, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{root}/global_step300  ") and first.endswith("  damaged: model.pt is missing")
    assert "global_step200  " in second and "damaged: model.pt has the checksum " in second
    assert kept == "to keep: global_step400, global_step100"
    assert last == "removed: 2; kept: 2"


def test_prune_keeps_the_newest_iteration_of_a_copied_folder(root):
    for age, iteration in enumerate((100, 400)):  # cp -r copies in any order
        written = time.time() - age * HOUR
        os.utime(root / f"global_step{iteration}" / "files.json", (written, written))
    assert main(["checkpoints", str(root), "--prune", "1", "--yes"]) == 0
    assert names(root) == ["global_step400"]
    assert checkpoint_folder.latest(root) == "global_step400"


def test_prune_says_why_it_removes_a_higher_iteration_than_latest(root, capsys):
    (root / "latest").write_text("global_step100")
    assert main(["checkpoints", str(root), "--prune", "1", "--yes"]) == 0
    assert names(root) == ["global_step100"]
    *lines, kept, _ = capsys.readouterr().out.splitlines()
    pinned({line.rpartition("  ")[2] for line in lines})
    assert kept == "to keep: global_step100"


def test_prune_keeps_the_checkpoint_that_latest_names_even_if_it_is_damaged(root, capsys):
    (root / "global_step400" / "model.pt").unlink()
    main(["checkpoints", str(root)])
    assert capsys.readouterr().out.endswith("damaged: model.pt is missing, latest\n")
    assert main(["checkpoints", str(root), "--prune", "1", "--yes", "--json"]) == 0
    assert names(root) == ["global_step100", "global_step400"]
    assert checkpoint_folder.latest(root) == "global_step400"
    found = json.loads(capsys.readouterr().out)
    assert [Path(row["folder"]).name for row in found["removed"]] == ["global_step300", "global_step200"]
    assert [Path(name).name for name in found["kept"]] == ["global_step400", "global_step100"]


def test_latest_may_name_a_checkpoint_that_does_not_exist(root, capsys):
    (root / "latest").write_text("global_step900")
    for command in ([], ["--prune", "1", "--yes"]):
        main(["checkpoints", str(root), *command])
        pinned(capsys.readouterr().err, "[latest-checkpoint-missing]")
    assert names(root) == ["global_step400"]
    main(["checkpoints", str(root), "--json"])
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["problems"]] == ["latest-checkpoint-missing"]


#: Contents of `latest` that are not the name of a checkpoint of the folder.
WRONG = {
    "path": b"/etc", "folder itself": b".", "folder above": b"..", "nothing": b"", "not text": b"\xff\xfe",
    "null": b"\0", "through another": b"global_step200/../global_step100", "beside": b"./global_step100",
    "within": b"global_step100/x",
    "other folder": b"logs", "long": b"x" * 300,
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_latest_leads_to_is_never_removed(kind, root, capsys):
    (root / "logs").mkdir()
    (root / "latest").write_bytes(WRONG[kind])
    main(["checkpoints", str(root)])
    pinned(capsys.readouterr().err)
    assert main(["checkpoints", str(root), "--prune", "1", "--yes"]) == 0
    pinned(capsys.readouterr().err)
    assert ("global_step100" in names(root)) == (b"global_step100" in WRONG[kind])


def test_latest_may_be_a_folder_or_an_absolute_path(root, capsys):
    (root / "latest").unlink()
    (root / "latest").mkdir()
    main(["checkpoints", str(root)])
    pinned(capsys.readouterr().err)
    (root / "latest").rmdir()
    (root / "latest").write_text(str(root / "global_step100"))
    assert main(["checkpoints", str(root), "--prune", "1", "--yes"]) == 0
    assert names(root) == ["global_step100", "global_step400"]


def of_run(root: Path, iteration: int, run: str, start: int, version: int = checkpoint_folder.FORMAT) -> None:
    part = commit.begin(root, iteration)
    (part / checkpoint_folder.RUN).write_text(Written(run, start, format=version).to_json())
    commit.commit(root, iteration)


def test_runs_are_listed_and_what_the_newest_does_not_continue_is_removed_first(tmp_path, capsys):
    """Although it has the later iteration, and is not later than the newest."""
    for iteration, run, start in ((10, "first run", 0), (20, "first run", 0), (15, "second", 10), (25, "second", 10)):
        of_run(tmp_path, iteration, run, start)
    assert main(["checkpoints", str(tmp_path)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[-2:] == ["run", "state"]
    assert [line.split("not recorded")[1].split("complete")[0].strip() for line in lines] == [
        "first ru", "second", "first ru", "second",
    ]  # fmt: skip
    main(["checkpoints", str(tmp_path), "--json"])
    rows = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [(row["run"], row["format"]) for row in rows[:2]] == [("first run", 1), ("second", 1)]
    assert main(["checkpoints", str(tmp_path), "--prune", "2", "--yes"]) == 0
    assert names(tmp_path) == ["global_step15", "global_step25"]
    assert [line.rpartition("  ")[2] for line in capsys.readouterr().out.splitlines()[:2]] == [
        "older", "of a run that global_step25 does not continue",
    ]  # fmt: skip


def test_nothing_is_removed_if_a_newer_deepy_wrote_to_the_folder(tmp_path, capsys):
    of_run(tmp_path, 10, "old", 0)
    of_run(tmp_path, 20, "new", 0, checkpoint_folder.FORMAT + 1)
    assert main(["checkpoints", str(tmp_path), "--prune", "1", "--yes"]) == 1
    assert "[checkpoint-format-newer]" in capsys.readouterr().err
    assert names(tmp_path) == ["global_step10", "global_step20"]


def test_prune_never_removes_everything(root, capsys):
    assert main(["checkpoints", str(root), "--prune", "0", "--yes"]) == 1
    assert "[prune-all]" in capsys.readouterr().err
    for iteration in (100, 400):
        (root / f"global_step{iteration}" / "model.pt").unlink()
    assert main(["checkpoints", str(root), "--prune", "1", "--yes"]) == 1
    assert "[checkpoint-all-damaged]" in capsys.readouterr().err
    assert len(names(root)) == 4


def test_prune_is_refused_while_a_run_saves_to_the_folder(root, capsys):
    run = configure(f"run_dir: {root}/run\nsave: {root}\ncheckpoint_factor: 9\n")
    environ, words = {**os.environ, "PYTHONPATH": str(ROOT)}, [sys.executable, str(ROOT / "deepy.py"), "checkpoints"]
    with lock_run(run, os.environ, print):
        prune = [*words, str(root), "--prune", "1", "--yes"]
        done = subprocess.run(prune, env=environ, capture_output=True, text=True, timeout=100)
    assert (done.returncode, len(names(root))) == (1, 4)
    assert f"error: {root} is in use: the run of process {os.getpid()} on " in done.stderr
    assert f"= wait until that run ends or stop it (kill {os.getpid()} on " in done.stderr
    assert "Traceback" not in done.stderr
    assert main(["checkpoints", str(root), "--prune", "1", "--yes"]) == 0
    assert not (root / "run.lock").exists()


def test_prune_removes_only_the_link_of_a_linked_checkpoint(root, tmp_path_factory, capsys):
    elsewhere = tmp_path_factory.mktemp("larger disk") / "global_step100"
    (root / "global_step100").rename(elsewhere)
    (root / "global_step100").symlink_to(elsewhere)
    assert main(["checkpoints", str(root), "--prune", "1", "--yes"]) == 0
    assert f"only this link to {elsewhere} is removed" in capsys.readouterr().out
    assert (elsewhere / "model.pt").exists()
    assert sorted(path.name for path in root.iterdir()) == ["global_step400", "latest"]


def test_a_terminal_shows_progress(root, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["checkpoints", str(root), "--verify"]) == 1
    assert "damaged: model.pt has the checksum " in capsys.readouterr().out


def test_one_rank_is_not_plural(root, capsys):
    config = root / "global_step100" / "config.json"
    config.write_text(config.read_text().replace('"world_size": 4', '"world_size": 1'))
    main(["checkpoints", str(root)])
    assert "ZeRO-1, 1 rank  " in capsys.readouterr().out


def test_a_checkpoint_that_prune_removes_is_named_as_the_best(tmp_path: Path) -> None:
    folders = [tmp_path / f"global_step{number}" for number in (3, 2, 1)]
    for folder, loss in zip(folders, (2.0, None, 1.5), strict=True):
        folder.mkdir()
        (folder / checkpoint_folder.RUN).write_text(Written(validation_loss=loss).to_json())
    choice = Choice(kept=folders[:1], removed=folders[1:], line=folders)
    reasons = [choice.reason(folder) for folder in choice.removed]
    assert reasons[1].startswith(reasons[0]) and "lowest" in reasons[1].removeprefix(reasons[0])
