"""The same training on two hosts, started by each program that can: all ranks train, end, and leave nothing behind."""

import json
import signal
from pathlib import Path

import cluster
import pytest

LAYOUT = {"model_parallel_size": 2}
MPI = {
    "launcher": "openmpi",
    "deepspeed_mpi": True,
    "launcher_args": "--allow-run-as-root --oversubscribe --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo",
}
STARTED_BY = {"pdsh": ({}, "pdsh"), "openmpi": (MPI, "mpirun")}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with cluster.two_hosts(tmp_path_factory.mktemp("ssh")) as environ:
        yield environ


@pytest.fixture
def hostfile(tmp_path: Path) -> str:
    path = tmp_path / "hosts"
    path.write_text("".join(f"{host} slots=2\n" for host in cluster.HOSTS))
    return str(path)


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["event"] == "step"]


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("out/logs/*/*"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", STARTED_BY)
def test_a_run_on_two_hosts(hosts, hostfile, tmp_path, program):
    changes, needed = STARTED_BY[program]
    cluster.need(needed)
    done = cluster.deepy(tmp_path, hosts, hostfile=hostfile, **LAYOUT, **changes)
    assert done.returncode == 0, done.stdout
    assert "4 = tensor 2 x pipeline 1 x data 2" in done.stdout
    assert len(losses(tmp_path)) == 4
    assert [path.name for path in logs(tmp_path)] == [f"rank-{rank}.log" for rank in range(4)]
    assert not cluster.left(tmp_path)


@pytest.mark.timeout(300)
def test_a_rank_that_dies_on_the_other_host_is_named_and_all_end(hosts, hostfile, tmp_path):
    cluster.need("pdsh")
    with cluster.started(tmp_path, hosts, hostfile=hostfile, train_iters=100_000, **LAYOUT) as run:
        cluster.until(lambda: (tmp_path / "out" / "metrics.jsonl").exists(), "the first step", 120)
        cluster.kill(cluster.ranks(tmp_path, 3)[-1])
        output, _ = run.communicate(timeout=40)
    assert run.returncode == 128 + signal.SIGKILL, output
    assert "deepy: rank 3 on " in output
    assert " failed first: SIGKILL: " in output
    assert not cluster.left(tmp_path)


@pytest.mark.timeout(300)
def test_a_run_through_srun(tmp_path, tmp_path_factory):
    with cluster.slurm(tmp_path_factory.mktemp("slurm")) as environ:
        (tmp_path / "hosts").write_text(f"{cluster.os.uname().nodename} slots=2\n")
        changes = {"deepspeed_slurm": True, "hostfile": str(tmp_path / "hosts"), "no_ssh_check": True}
        done = cluster.deepy(tmp_path, environ, launcher_args="--overcommit", **changes, **LAYOUT)
        assert done.returncode == 0, done.stdout
        assert len(losses(tmp_path)) == 4
        assert [path.name for path in logs(tmp_path)] == ["rank-0.log", "rank-1.log"]
        assert not cluster.left(tmp_path)
