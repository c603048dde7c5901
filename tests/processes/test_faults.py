"""What can go wrong on a cluster, done on purpose: told in a sentence, soon, with nothing left running or lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problems
from neoxargs.checks.machine import other_hosts as check_hosts
from neoxargs.files import metrics as run_metrics
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import WRITING
from neoxargs.hosts.hosts import Resources
from neoxargs.processes.process_tree import session_members
from neoxargs.processes.run_lock import lock_run
from neoxargs.train.process import setup
from tests.support import cluster
from tests.support.configure import config_of, configure
from tests.support.refused import refused
from tests.support.snapshots import pinned

#: A run of two ranks that goes on until something happens to it.
LONG = {"num_gpus": 2, "model_parallel_size": 2, "train_iters": 100_000, "master_port": None}


def events(folder: Path) -> list[dict[str, Any]]:
    return list(run_metrics.read(folder / "out" / run_metrics.FILE))


def newest(save: Path) -> str:
    """Return the name of the checkpoint to continue from."""
    found = checkpoint_folder.newest(save)
    assert found
    return found.name


def latest(save: Path) -> str:
    return (save / checkpoint_folder.LATEST).read_text()


def has(kind: str, count: int = 1) -> Callable[[Path], bool]:
    return lambda folder: sum(row["event"] == kind for row in events(folder)) >= count


def saving(folder: Path) -> bool:
    """In the middle of the second checkpoint or a later one."""
    begun = any((folder / "out").glob(f"{WRITING}*"))
    return begun and (folder / "out" / checkpoint_folder.LATEST).exists()


#: Phase -> how it is recognised from outside, and what makes it last.
PHASES: dict[str, tuple[Callable[[Path], bool], dict[str, Any]]] = {
    "start": (lambda folder: len(list((folder / "out").glob("logs/*/rank-*.log"))) == 2, {}),
    "first step": (has("start"), {}),
    "step": (has("step", 3), {}),
    "save": (saving, {"checkpoint_factor": 1}),
    "eval": (has("step"), {"eval_interval": 1, "eval_iters": 100_000, "repeat_eval_samples": True}),
}


#: Kills that happen under DeepSpeed's launcher; the others under torchrun, which takes a third of the time to start.
UNDER_DEEPSPEED = {("start", 0), ("step", 1), ("save", 0)}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_that_is_killed(tmp_path, phase, rank):
    launcher = "pdsh" if (phase, rank) in UNDER_DEEPSPEED else "torchrun"
    (reached, changes), often = PHASES[phase], 0.002 if phase == "save" else 0.05
    save = str(tmp_path / "out") if phase == "save" else None
    with cluster.start_training(tmp_path, cluster.cpu_environ(), save=save, launcher=launcher, **LONG | changes) as run:
        cluster.wait_until(lambda: reached(tmp_path) and len(cluster.ranks(tmp_path, rank)) == 2, phase, 150, often)
        cluster.kill(cluster.ranks(tmp_path, rank)[-1])
        output, _ = run.communicate(timeout=30)
    assert run.returncode == 128 + signal.SIGKILL, output
    assert f"deepy: rank {rank} on {os.uname().nodename} failed first: SIGKILL: killed by a user" in output
    assert launcher == "torchrun" or "Traceback" not in output  # torchrun ends with its own
    assert not cluster.ranks(tmp_path)
    if save:
        assert newest(Path(save)) == latest(Path(save))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("launcher", [None, "torchrun", "pdsh"])
def test_no_run_takes_the_folder_of_one_whose_deepy_and_guard_were_killed(tmp_path, launcher):
    """As long as one of its processes is left, even a stopped one; they save and end as soon as they can."""
    out = tmp_path / "out"
    changes = {**LONG, "save": str(out), "checkpoint_factor": 99_999, "launcher": launcher}
    run_again = configure(f"run_dir: {out}\nsave: {out}\ncheckpoint_factor: 9\n")
    with cluster.start_training(tmp_path, cluster.cpu_environ(), **changes) as run:
        cluster.wait_until(lambda: has("step", 3)(tmp_path), "three steps", 200)
        left = [pid for pid in cluster.ranks(tmp_path) if pid != run.pid]
        for pid in left:
            os.kill(pid, signal.SIGSTOP)
        for guard in guards(run.pid):
            cluster.kill(guard)
        cluster.kill(run.pid)
        run.wait(20)
        [problem] = refused(lock_run, run_again, os.environ, print)
        assert f"the run of process {run.pid} on {os.uname().nodename} has ended, but its processes " in problem.what
        named = {int(word) for word in problem.what.partition("its processes ")[2].split() if word.isdigit()}
        assert named <= set(left) and len(named) >= 4, (named, left)  # two ranks and their supervisors
        for pid in reversed(left):  # the ranks before their supervisors
            os.kill(pid, signal.SIGCONT)
        cluster.wait_until(lambda: not cluster.ranks(tmp_path), "all processes have ended", 120)
    assert newest(out) == f"global_step{events(tmp_path)[-1]['step']}"
    with lock_run(run_again, os.environ, print):
        pass


def guards(parent: int) -> list[int]:
    """Return the guards of a deepy."""
    members = session_members(os.getsid(parent))
    children = [process.pid for process in members if process.parent == parent]
    return [pid for pid in children if b"import guard" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    with cluster.mounted(tmp_path / "disk", "size=4m") as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_disk_that_fills_up_while_saving(tmp_path, small_disk):
    """The run reports a full disk, although its records are on that disk too; earlier checkpoints are intact."""
    save = small_disk / "ckpt"
    changes = {"save": str(save), "run_dir": None, "checkpoint_factor": 1, "keep_last_n_checkpoints": 1}
    with cluster.start_training(tmp_path, cluster.cpu_environ(), **LONG | changes | {"train_iters": 999}) as run:
        cluster.wait_until((save / checkpoint_folder.LATEST).exists, "a checkpoint", 150)
        cluster.fill_disk(small_disk)
        output, _ = run.communicate(timeout=30)
    assert run.returncode == 1, output
    assert f"failed first: no space left on the disk that holds {save}" in output
    assert "Traceback" not in output
    assert not cluster.ranks(tmp_path)
    assert newest(save) == latest(save)


def fill(disk: Path) -> Callable[[], Any]:
    """Fill a disk, and return a function that makes space again."""
    cluster.fill_disk(disk)
    return (disk / "filler").unlink


def protect(disk: Path) -> Callable[[], Any]:
    """Make a disk read-only, and return a function that makes it writable again."""
    remount = ["mount", "-o", "remount,{}", str(disk)]
    subprocess.run([word.format("ro") for word in remount], check=True)
    return lambda: subprocess.run([word.format("rw") for word in remount], check=True)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("breaks", [fill, protect])
def test_training_goes_on_until_a_disk_works_again(tmp_path, small_disk, breaks):
    """With `on_save_error: continue`; the checkpoint after that is complete."""
    save = small_disk / "ckpt"
    changes = {"save": str(save), "checkpoint_factor": 2, "keep_last_n_checkpoints": 1, "on_save_error": "continue"}
    with cluster.start_training(tmp_path, cluster.cpu_environ(), **LONG | changes) as run:
        cluster.wait_until((save / checkpoint_folder.LATEST).exists, "a checkpoint", 150)
        repair = breaks(small_disk)
        steps = sum(row["event"] == "step" for row in events(tmp_path))
        cluster.wait_until(lambda: has("step", steps + 6)(tmp_path), "six more steps", 100)
        repair()
        before = latest(save)
        cluster.wait_until(lambda: latest(save) != before, "a checkpoint", 100)
        run.terminate()
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM, output
    assert f"warning: save ({save}): the checkpoint at iteration " in output
    assert "Traceback" not in output
    assert newest(save) == latest(save)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("reaction", "removed"), [("stop", True), ("continue", False)])
def test_a_folder_that_vanishes_is_created_again(tmp_path, reaction, removed):
    """With one warning; metrics and the last checkpoint are then in the new folder, and all is in one of the two."""
    out, renamed = tmp_path / "out", tmp_path / "renamed"
    changes = {"save": str(out), "extra_save_iters": [2], "on_save_error": reaction}
    with cluster.start_training(tmp_path, cluster.cpu_environ(), **LONG | changes) as run:
        cluster.wait_until(lambda: has("save")(tmp_path), "a checkpoint", 150)
        out.rename(renamed)
        if removed:
            shutil.rmtree(renamed)
        cluster.wait_until(lambda: has("step", 3)(tmp_path), "three steps in the new folder", 100)
        run.terminate()
        output, _ = run.communicate(timeout=100)
    assert run.returncode == 128 + signal.SIGTERM, output
    assert output.count(f"warning: run_dir ({out}) was removed, renamed or unmounted") == 1
    assert output.count("[run-folder-vanished]") == 1
    assert "error:" not in output and "Traceback" not in output
    assert newest(out) == f"global_step{events(tmp_path)[-1]['step']}"
    assert (out / "report.html").exists()
    assert removed or checkpoint_folder.newest(renamed) == renamed / "global_step2"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("reaction", ["stop", "continue"])
def test_a_folder_that_becomes_read_only(tmp_path, reaction):
    """The run stops with one error, or continues, and its last checkpoint succeeds if the folder is writable again."""
    cluster.require_programs("setpriv", "chmod")
    out = tmp_path / "out"
    changes = {"save": str(out), "checkpoint_factor": 2, "keep_last_n_checkpoints": 1, "on_save_error": reaction}
    # Root may write everywhere, unless it gives up this capability.
    through = ["setpriv", "--bounding-set=-dac_override"]
    with cluster.start_training(tmp_path, cluster.cpu_environ(), through=through, **LONG | changes) as run:
        cluster.wait_until(lambda: has("save")(tmp_path), "a checkpoint", 150)
        kept = checkpoint_folder.checkpoints(out)
        subprocess.run(["chmod", "-R", "a-w", str(out)], check=True)
        if reaction == "continue":
            steps = sum(row["event"] == "step" for row in events(tmp_path))
            cluster.wait_until(lambda: has("step", steps + 6)(tmp_path), "six more steps", 100)
            subprocess.run(["chmod", "-R", "u+w", str(out)], check=True)
            run.terminate()
        output, _ = run.communicate(timeout=100)
    assert "Traceback" not in output
    if reaction == "stop":
        assert run.returncode == 1, output
        assert output.count("error:") == output.count(f"error: save ({out}): the checkpoint at iteration ") == 1
        assert "permission denied; the latest checkpoint is " in output
        assert any(not checkpoint_folder.damage(checkpoint) for checkpoint in kept)
        return
    assert run.returncode == 128 + signal.SIGTERM, output
    assert f"warning: save ({out}): the checkpoint at iteration " in output
    assert newest(out) == f"global_step{events(tmp_path)[-1]['step']}"


@pytest.mark.timeout(120)
def test_an_unreachable_host_is_reported_before_anything_starts(tmp_path):
    """One that takes the connection and then says nothing, and one that refuses it."""
    cluster.require_programs("ssh", "pdsh")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (tmp_path / "hosts").write_text("127.0.0.1 slots=1\n127.0.0.2 slots=1\n")
        done = cluster.run_training(tmp_path, cluster.cpu_environ(), hostfile=str(tmp_path / "hosts"), ssh_port=port)
    assert done.returncode == 1
    assert "error: host 127.0.0.1 does not answer over ssh within 5 s" in done.stdout
    assert "error: host 127.0.0.2 does not answer over ssh: " in done.stdout
    assert "Connection refused" in done.stdout
    assert not (tmp_path / "out").exists()


def test_too_many_slots_in_a_hostfile_are_reported_before_anything_starts(monkeypatch):
    """A rank without a GPU reports it too, where the check before the start was not possible."""
    resources = Resources({"w0": [0, 1], "w1": [0, 1, 2, 3]}, "cuda", remote=True)
    devices = subprocess.CompletedProcess([], 0, "nvidia0\nnvidia1\nnvidiactl\nnull\n", "")
    monkeypatch.setattr(check_hosts, "_run_on_hosts", lambda *_: {"w0": devices, "w1": devices})
    pinned(check_hosts.host_problems(config_of(hostfile="hosts"), resources))
    with pytest.raises(Problems, match=r"has no GPU for local rank 3 \(torch finds 2 GPU"):
        setup._gpu(3, 2, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert setup._gpu(1, 2, {}) == 1
    assert setup._gpu(3, 1, {"CUDA_VISIBLE_DEVICES": "5"}) == 0  # each task of srun may see only its own
