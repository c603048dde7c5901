"""The same training on two hosts, started by each program that can: all ranks train, end, and leave nothing behind."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.support import cluster

MPI = {
    "launcher": "openmpi",
    "deepspeed_mpi": True,
    "launcher_args": "--allow-run-as-root --oversubscribe --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo",
}
#: Launcher -> what it needs to be told, the program it needs, slots of each host.
STARTED_BY = {
    "pdsh": ({}, "pdsh", 2),
    "openmpi": (MPI, "mpirun", 2),
    "ssh": ({"launcher": "ssh"}, "ssh", 1),
    "torchrun": ({"launcher": "torchrun"}, "ssh", 1),
}


def hostfile(folder: Path, slots: int) -> str:
    path = folder / "hosts"
    path.write_text("".join(f"{host} slots={slots}\n" for host in cluster.HOSTS))
    return str(path)


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["event"] == "step"]


def state(save: Path) -> list[Any]:
    """Return every value of the last checkpoint, except paths and the other values of configurations."""
    checkpoint = save / (save / "latest").read_text()
    files = {path.name: torch.load(path, weights_only=True) for path in sorted(checkpoint.glob("*.pt"))}
    assert files
    for values in files.values():
        values.pop("ds_config", None)
    return tree_leaves(files)


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("out/logs/*/*"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", STARTED_BY)
def test_a_run_on_two_hosts(hosts, tmp_path, program):
    """Two ranks on each form tensor parallel groups within hosts and data parallel ones across."""
    changes, needed, slots = STARTED_BY[program]
    cluster.require_programs(needed)
    layout = {"model_parallel_size": slots, "hostfile": hostfile(tmp_path, slots)}
    done = cluster.run_training(tmp_path, hosts, **layout, **changes)
    assert done.returncode == 0, done.stdout
    assert f"{2 * slots} = tensor {slots} x pipeline 1 x data 2" in done.stdout
    assert len(losses(tmp_path)) == 4
    assert [path.name for path in logs(tmp_path)] == [f"rank-{rank}.log" for rank in range(2 * slots)]
    assert not cluster.remaining_ranks(tmp_path)


@pytest.mark.timeout(300)
def test_a_failed_rank_on_the_other_host_is_named_and_all_end(hosts, tmp_path):
    cluster.require_programs("pdsh")
    with cluster.start_training(tmp_path, hosts, hostfile=hostfile(tmp_path, 1), train_iters=100_000) as run:
        cluster.wait_until(lambda: (tmp_path / "out" / "metrics.jsonl").exists(), "the first step", 120)
        cluster.kill(cluster.ranks(tmp_path, 1)[-1])
        output, _ = run.communicate(timeout=150)
    assert run.returncode == 128 + signal.SIGKILL, output
    assert "deepy: rank 1 on " in output
    assert " failed first: SIGKILL: " in output
    assert not cluster.remaining_ranks(tmp_path)


@pytest.mark.timeout(900)
def test_a_rank_that_died_on_the_other_host_is_replaced(machines, tmp_path):
    """All ranks start again from the last checkpoint, and the run ends as one that nothing has disturbed."""
    cluster.require_programs("pdsh")
    save = tmp_path / "out"
    changes = {"checkpoint_factor": 10, "train_iters": 40, "hostfile": hostfile(tmp_path, 1), "no_ssh_check": True}
    with cluster.start_training(tmp_path, machines, "--restarts=1", save=str(save), **changes) as run:
        cluster.wait_until((save / "latest").exists, "a checkpoint", 250, often=0.01)
        cluster.kill(cluster.ranks(tmp_path, 1)[-1])
        output, _ = run.communicate(timeout=250)
    assert run.returncode == 0, output
    assert f"deepy: restart 1 of 1 in 1 s, from {save}/global_step" in output
    assert output.count("deepy: rank 1 on worker-1 failed first: SIGKILL: ") == 1
    assert len(list(save.glob("logs/*"))) == 2
    assert not cluster.remaining_ranks(tmp_path)
    assert not list(save.glob("*.lock"))
    quiet = tmp_path / "undisturbed"
    quiet.mkdir()
    done = cluster.run_training(quiet, machines, seconds=250, save=str(quiet / "out"), **changes)
    assert done.returncode == 0, done.stdout
    assert losses(tmp_path) == losses(quiet)
    values, undisturbed = state(save), state(quiet / "out")
    assert len(values) == len(undisturbed)
    assert all(map(same, values, undisturbed))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", ["slurm", "srun"])
def test_a_run_through_slurm(node, tmp_path, launcher):
    """By DeepSpeed's launcher with a hostfile, and by srun alone with the number of nodes and ranks."""
    (tmp_path / "hosts").write_text(f"{os.uname().nodename} slots=2\n")
    listed = {"deepspeed_slurm": True, "hostfile": str(tmp_path / "hosts"), "no_ssh_check": True}
    asked = {"launcher": "srun", "num_nodes": 1, "num_gpus": 2, "master_addr": None}
    changes = {"launcher_args": "--overcommit", "model_parallel_size": 2, **(listed if launcher == "slurm" else asked)}
    done = cluster.run_training(tmp_path, node, **changes)
    assert done.returncode == 0, done.stdout
    assert len(losses(tmp_path)) == 4
    assert [path.name for path in logs(tmp_path)] == ["rank-0.log", "rank-1.log"]
    assert not cluster.remaining_ranks(tmp_path)
