"""`--emit sbatch`: a script that bash reads and Slurm accepts, with the nodes and ranks that the batch is made for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import cluster
import pytest
import smallest

from neoxargs.cli import main

HOSTS = "".join(f"gpu{number} slots=4\n" for number in range(3))


@pytest.fixture
def emitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DS_ACCELERATOR")
    Path("hosts").write_text(HOSTS)

    def script(text: str, *words: str) -> str:
        Path("my run.yml").write_text(smallest.YAML + text)
        assert main(["train.py", "my run.yml", "--emit", "sbatch", *words]) == 0
        return str(capsys.readouterr().out)

    return script


def directives(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    ("text", "words", "nodes", "each"),
    [
        ("hostfile: hosts\n", (), "3", "4"),
        ("launcher: srun\nnum_nodes: 2\nnum_gpus: 8\n", (), "2", "8"),
        ("", ("--gpus", "32"), "4", "8"),
        ("", ("--gpus", "2"), "1", "2"),
    ],
)
def test_nodes_and_ranks(emitted, text, words, nodes, each):
    found = directives(emitted(text, *words))
    assert (found["nodes"], found["ntasks-per-node"], found["gpus-per-node"]) == (nodes, each, each)
    assert found["job-name"] == "'my run'"
    assert {"time", "output", "signal"} <= set(found)


def test_what_bills_the_job_and_what_srun_is_told(emitted):
    text = "launcher: srun\nnum_nodes: 1\nnum_gpus: 1\naccount: physics\ncomment: a b\nlauncher_args: --mpi=none\n"
    script = emitted(text, "--set", "lr=0.1")
    assert directives(script)["account"] == "physics"
    assert directives(script)["comment"] == "'a b'"
    assert "srun --kill-on-bad-exit=1 --mpi=none " in script
    assert f"{cluster.ROOT}/deepy.py train.py 'my run.yml' --set=lr=0.1" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@pytest.mark.timeout(300)
def test_a_submitted_script_trains(tmp_path, tmp_path_factory):
    """On a real Slurm of one node; each task finds out by itself which rank it is."""
    cluster.need("sbatch")
    with cluster.slurm(tmp_path_factory.mktemp("slurm")) as environ:
        cluster.written(tmp_path, num_nodes=1, num_gpus=2, model_parallel_size=2, launcher="srun", master_addr=None)
        words = [sys.executable, str(cluster.ROOT / "deepy.py"), "train.py", "run.yml", "--emit", "sbatch"]
        made = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
        script = made.stdout.replace("srun ", "srun --overcommit ")
        (tmp_path / "job").write_text(script)
        done = subprocess.run(["sbatch", "--wait", "--overcommit", "job"], cwd=tmp_path, env=environ, text=True,
                              capture_output=True, timeout=200)  # fmt: skip
    said = "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert done.returncode == 0, done.stderr + said
    assert "2 = tensor 2 x pipeline 1 x data 1" in said
    assert [path.name for path in sorted(tmp_path.glob("out/logs/*/*"))] == ["rank-0.log", "rank-1.log"]
    assert not cluster.left(tmp_path)


@pytest.mark.timeout(300)
def test_ranks_that_torchrun_has_started(tmp_path):
    cluster.written(tmp_path, model_parallel_size=2)
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        f"--master-port={cluster.free_port()}",
    ]
    words += [str(cluster.ROOT / "deepy.py"), "train.py", "run.yml"]
    done = subprocess.run(words, cwd=tmp_path, env=cluster.plain(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 = tensor 2 x pipeline 1 x data 1") == 1
    assert len(list(tmp_path.glob("out/logs/*/rank-*.log"))) == 2
