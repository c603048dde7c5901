"""All ranks choose the same checkpoint: the newest that is undamaged on every host, or the one that was asked for."""

from __future__ import annotations

import contextlib
import io
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import Written
from neoxargs.train import run
from neoxargs.train.checkpoint import choose, commit
from neoxargs.train.process import setup
from tests.support.processes import rank_arguments, train_on_rank
from tests.support.ranks import run_ranks
from tests.support.snapshots import pinned


def write(root: Path, *iterations: int) -> None:
    for iteration in iterations:
        part = commit.begin(root, iteration)
        for number in range(4):
            (part / f"{number}.pt").write_bytes(bytes(1000 + number))
        commit.commit(root, iteration)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[500] ^= 4
    file.write_bytes(data)


def choices(root: str, iterations: dict[str, int | None], hosts: list[str]) -> dict[str, Any]:
    """Return for each case the choice of this rank, what it printed, and which files it read.

    hosts: cases in which each rank is a host with folders of its own, below `root/CASE-RANK`.
    """

    process = setup.start("gloo", seed=1)
    found: dict[str, Any] = {}
    real = checkpoint_folder.digest_of
    for case, iteration in iterations.items():
        apart = case in hosts
        folder = Path(root, f"{case}-{process.rank}" if apart else case)
        folders = SimpleNamespace(save=str(folder), load=str(folder))
        config = SimpleNamespace(training=SimpleNamespace(iteration=iteration), checkpoint=folders)
        read: list[str] = []

        def digest_of(file: Path, read: list[str] = read) -> Any:
            read.append(f"{file.parent.name}/{file.name}")
            return real(file)

        output = io.StringIO()
        name = f"host{process.rank}" if apart else "host"
        with (
            patch.object(choose.socket, "gethostname", lambda name=name: name),
            patch.object(checkpoint_folder, "digest_of", digest_of),
            contextlib.redirect_stdout(output),
        ):
            try:
                begun = choose.begin(config)  # type: ignore[arg-type]
                chosen = choose.choose(config, folder, process, begun)  # type: ignore[arg-type]
                outcome = chosen and chosen.name
            except Exception as error:
                outcome = str(error)
        found[case] = outcome, output.getvalue(), sorted(read)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("choose")
    cases: dict[str, int | None] = dict.fromkeys(("whole", "flipped", "newer", "all", "hosts", "missing"))
    cases |= {"asked": 2, "asked whole": 1}
    hosts = ["hosts", "missing"]
    for case in cases:
        write(root / case, 1, 2)
    for case in ("flipped", "asked", "asked whole"):
        flip(root / case / "global_step2" / "3.pt")
    for iteration in (1, 2):
        flip(root / "all" / f"global_step{iteration}" / "0.pt")
    newer = Written(format=checkpoint_folder.FORMAT + 1)
    (root / "newer" / "global_step2" / checkpoint_folder.RUN).write_text(newer.to_json())
    for case in hosts:
        shutil.copytree(root / case, root / f"{case}-0")
        shutil.copytree(root / case, root / f"{case}-1")
    flip(root / "hosts-1" / "global_step2" / "1.pt")
    shutil.rmtree(root / "missing-1" / "global_step2")
    return run_ranks(choices, 2, str(root), cases, hosts)


def test_the_files_are_divided_among_the_ranks(found):
    read = [rank["whole"][2] for rank in found]
    assert [len(files) for files in read] == [2, 2]
    assert sorted([*read[0], *read[1]]) == [f"global_step2/{number}.pt" for number in range(4)]
    assert [rank["whole"][:2] for rank in found] == [("global_step2", "")] * 2


def test_all_ranks_fall_back_with_one_warning(found):
    assert [rank["flipped"][0] for rank in found] == ["global_step1"] * 2
    told = found[0]["flipped"][1]
    assert told.startswith("warning: the checkpoint ")
    assert "global_step2 is skipped because it is damaged: 3.pt has the checksum " in told
    assert found[1]["flipped"][1] == ""


def test_a_checkpoint_that_was_asked_for_is_refused(found):
    assert [rank["asked whole"][0] for rank in found] == ["global_step1"] * 2
    for rank in found:
        assert "iteration (2): " in rank["asked"][0]
        assert "global_step2 cannot be loaded: 3.pt has the checksum " in rank["asked"][0]
        assert "[checkpoint-not-usable]" in rank["asked"][0]


def test_a_newer_format_is_refused_and_no_older_checkpoint_taken_in_its_place(found):
    for rank in found:
        pinned(rank["newer"][0], "[checkpoint-format-newer]")
        assert "[checkpoint-format-newer]" in rank["newer"][0]


def test_every_checkpoint_is_damaged(found):
    for rank in found:
        assert "[checkpoint-all-damaged]" in rank["all"][0]
        assert "global_step2: 0.pt has the checksum " in rank["all"][0]
        assert "global_step1: 0.pt has the checksum " in rank["all"][0]


def test_hosts_with_folders_of_their_own_read_them_alone_and_agree(found):
    assert [rank["hosts"][0] for rank in found] == ["global_step1"] * 2
    assert "global_step2 is skipped because it is damaged: 1.pt has the checksum " in found[0]["hosts"][1]
    assert found[0]["hosts"][1].endswith(" on host host1\n")
    every = {f"global_step{iteration}/{number}.pt" for iteration in (1, 2) for number in range(4)}
    assert set(found[0]["hosts"][2]) == every
    # After the damaged file, files of that checkpoint that are not being read yet are left out.
    assert {name for name in every if name.startswith("global_step1/")} < set(found[1]["hosts"][2])
    assert [rank["missing"][0] for rank in found] == ["global_step1"] * 2
    assert found[0]["missing"][1].endswith("because it is damaged: it does not exist on host host1\n")


def test_files_are_read_while_the_model_is_built(tmp_path):
    """`begin` returns before a file has been read, and an error in reading is raised where its result is asked for."""
    write(tmp_path, 1)
    config: Any = SimpleNamespace(
        training=SimpleNamespace(iteration=None), checkpoint=SimpleNamespace(load=str(tmp_path))
    )
    built = threading.Event()

    def verify(*arguments: Any, **options: Any) -> str:
        assert built.wait(60)
        raise ValueError("planted")

    with patch.object(checkpoint_folder, "verify", verify):
        begun = choose.begin(config)
        assert begun and begun.thread.is_alive()
        built.set()
        with pytest.raises(ValueError, match="planted"):
            begun.damage()


def order_of(arguments: list[str]) -> list[str]:
    """Train, and return the order in which checkpoints were begun to be read and the engine built."""
    order: list[str] = []
    build, verification = run.build.build, choose.Verification.__init__

    def building(*given: Any) -> Any:
        order.append("build")
        return build(*given)

    def beginning(self: choose.Verification, checkpoint: Path) -> None:
        order.append(checkpoint.name)
        verification(self, checkpoint)

    with patch.object(run.build, "build", building), patch.object(choose.Verification, "__init__", beginning):
        code, _, errors = train_on_rank(arguments)
    assert code == 0, errors
    return order


def test_a_run_begins_to_read_before_it_builds_and_reads_once(tmp_path):
    saved = str(tmp_path / "saved")
    changes = {"save": saved, "load": saved, "checkpoint_factor": 2, "train_iters": 4}
    assert run_ranks(order_of, 1, rank_arguments(tmp_path, 1, **changes, exit_interval=2))[0] == ["build"]
    order = run_ranks(order_of, 1, rank_arguments(tmp_path, 1, **changes))[0]
    assert order == ["global_step2", "build"]


def test_nothing_is_begun_without_a_checkpoint_of_deepy(tmp_path):
    for load in (None, str(tmp_path), str(tmp_path / "missing")):
        config: Any = SimpleNamespace(training=SimpleNamespace(iteration=None), checkpoint=SimpleNamespace(load=load))
        assert choose.begin(config) is None
