"""ZeRO-3 with weights and optimizer state on a drive: swap files, equal loss curves, DeepSpeed's `aio` section."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neoxargs.train.deepspeed import swap
from neoxargs.train.process import mesh, setup
from tests.support import swap_ops
from tests.support.ranks import run_ranks
from tests.support.trials import Training, Trial

#: Only pieces of a MiB are swapped; of two ranks, each has as much of this model's two larger matrices.
WIDE = {"num_layers": 1, "hidden_size": 256, "intermediate_size": 2048}
AIO = {"block_size": 2**19, "queue_depth": 4, "intra_op_parallelism": 2, "single_submit": True, "overlap_events": False}
STEPS = 3


def zero(stage: int, place: str = "", **more: Any) -> Trial:
    """Return a trial with weights and optimizer state at `place`; "" keeps them in memory."""
    drive = {"device": "nvme", "nvme_path": place}
    sections = {"offload_optimizer": drive, "offload_param": {**drive, "buffer_size": 2**20}} if place else {}
    device = {"zero_optimization.offload_optimizer.device": "nvme"} if place else {}
    config = {"zero_optimization.stage": stage, **WIDE, **device}
    return Trial(config, {"zero_optimization": {"stage": stage, **sections}, **more})


def write(root: str) -> tuple[dict[str, list[float]], list[str], dict[str, Any]]:
    """Return losses with and without the drive (a checkpoint after step 3), swap files, and the handles' settings."""
    process = setup.start("gloo", seed=1)
    losses = {}
    for name, trial in {"drive": zero(3, f"{root}/swap", aio=AIO), "kept": zero(2)}.items():
        built = Training(trial, save=f"{root}/{name}")
        losses[name] = [built.step() for _ in range(STEPS)]
        if name == "drive":
            zero3 = built.engine.deepspeed.optimizer
            weights = next(built.engine.deepspeed.module.parameters()).nvme_swapper.aio_read_handle
            handles = {"state": settings(zero3.optimizer_swapper.aio_handle), "weights": settings(weights)}
        built.save(process, STEPS)
        losses[name] += [built.step() for _ in range(STEPS)]
        mesh.destroy_groups()
    return losses, [str(path.relative_to(root)) for path in Path(root, "swap").rglob("*.swp")], handles


def settings(handle: Any) -> dict[str, Any]:
    return {name: getattr(handle, f"get_{name}")() for name in AIO}


def read(root: str, source: str, trial: Trial) -> list[float]:
    """Return the losses after loading a checkpoint."""
    process = setup.start("gloo", seed=1)
    built = Training(trial, load=f"{root}/{source}")
    built.load(process)
    return [built.step() for _ in range(STEPS)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    if why := swap_ops.why_uncompilable():
        pytest.skip(why)
    swap_ops.compile_all()
    return str(tmp_path_factory.mktemp("drive"))


Written = list[tuple[dict[str, list[float]], list[str], dict[str, Any]]]


@pytest.fixture(scope="module")
def written(root: str) -> Written:
    return run_ranks(write, 2, root)


# the first time DeepSpeed's code is compiled
pytestmark = [pytest.mark.compiler, pytest.mark.timeout(1200)]


@pytest.mark.shows("zero_optimization")
def test_training_is_equal_with_offload_to_a_drive(written: Written) -> None:
    for losses, files, _ in written:
        assert losses["drive"] == pytest.approx(losses["kept"], abs=1e-4)
        for rank in (0, 1):
            mine = [Path(name).parts for name in files if f"/rank{rank}/" in name]
            owners, kinds, names = ({parts[place] for parts in mine} for place in (1, 3, -1))
            assert len(owners) == 1 and kinds == {"optimizer", "float32params"}
            assert any(name.startswith("exp_avg_sq-") for name in names)


def test_every_key_of_aio_reaches_the_handles(written: Written) -> None:
    for _, _, handles in written:
        assert handles == {"state": AIO, "weights": AIO}


def test_each_process_has_its_own_folder_and_removes_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from neoxargs.train.deepspeed.swap import own_folder\n"
        "own_folder(Path(sys.argv[1])){}"
    )
    command = [sys.executable, "-c"]
    mine = swap.own_folder(tmp_path)
    subprocess.run([*command, program.format("; own_folder(Path(sys.argv[1]))"), tmp_path], check=True)
    assert [mine] == list(tmp_path.glob("swap-*"))  # the other process has removed its folder
    killed = "; import os; os.kill(os.getpid(), 9)"
    assert subprocess.run([*command, program.format(killed), tmp_path], check=False).returncode == -9
    assert len(list(tmp_path.glob("swap-*"))) == 2
    subprocess.run([*command, program.format(""), tmp_path], check=True)
    assert [mine] == list(tmp_path.glob("swap-*"))  # the next process has removed the folder of the killed one


def test_a_resumed_run_equals_an_uninterrupted_one(root: str, written: Written) -> None:
    trial = zero(3, f"{root}/swap again", aio=AIO)
    assert run_ranks(read, 2, root, "drive", trial)[0] == written[0][0]["drive"][STEPS:]


@pytest.mark.parametrize(("source", "goes_on"), [("drive", "off it"), ("kept", "on it")])
def test_it_continues_without_a_drive_and_back(root: str, written: Written, source: str, goes_on: str) -> None:
    trial = zero(0) if goes_on == "off it" else zero(3, f"{root}/swap of one")
    assert run_ranks(read, 1, root, source, trial)[0] == pytest.approx(written[0][0][source][STEPS:], abs=1e-4)
