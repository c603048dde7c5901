"""`--emit sbatch`: a valid bash script that Slurm accepts, with the nodes and ranks of the batch equation."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neoxargs.cli import main
from neoxargs.hosts.rank_env import attempt
from tests.support import cluster, smallest
from tests.support.ports import free_port
from tests.support.processes import step_rows
from tests.support.snapshots import pinned

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
        ("", ("--gpus", "12"), "2", "6"),
    ],
)
def test_nodes_and_ranks(emitted, text, words, nodes, each):
    found = directives(emitted(text, *words))
    assert (found["nodes"], found["ntasks-per-node"], found["gpus-per-node"]) == (nodes, each, each)
    assert "ntasks" not in found
    assert found["job-name"] == "'my run'"
    assert {"time", "output", "signal"} <= set(found)


def test_the_cores_of_a_task_are_a_comment_because_nodes_differ(emitted):
    script = emitted("", "--gpus", "2")
    assert "\n##SBATCH --cpus-per-task=8\n" in script
    assert "cpus-per-task" not in directives(script)


@pytest.mark.parametrize(
    ("text", "words", "ranks", "assumption"),
    [
        ("hostfile: uneven\n", (), "6", "The nodes have different numbers of ranks"),
        ("hostfile: uneven\n", (), "6", "To use those in the hostfile, add: #SBATCH --nodelist=gpu0,gpu1"),
        ("", ("--gpus", "11"), "11", "The script assumes 11 ranks on nodes with 8 GPUs each."),
    ],
)
def test_tasks_are_the_ranks_of_the_batch_equation_and_assumptions_are_stated(emitted, text, words, ranks, assumption):
    Path("uneven").write_text("gpu0 slots=2\ngpu1 slots=4\n")
    script = emitted(text, *words)
    found = directives(script)
    assert (found["nodes"], found["ntasks"], found["gpus"]) == ("2", ranks, ranks)
    assert "ntasks-per-node" not in found
    assert assumption in script


def test_a_job_from_a_machine_without_gpus_requests_none_and_says_so(emitted, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    script = emitted("model_parallel_size: 2\n")
    assert directives(script)["ntasks-per-node"] == "2"
    assert "gpus-per-node" not in script
    pinned(script, "This machine")


def test_a_single_rank_is_started_by_deepy_itself(emitted):
    """The signal goes to deepy itself; a single task of srun would be taken for a shell, as of `srun --pty bash`."""
    script = emitted("", "--gpus", "1")
    assert directives(script)["signal"] == "B:TERM@120"
    assert script.endswith(f"exec {sys.executable} {cluster.ROOT}/deepy.py train.py 'my run.yml'\n")


def test_jobs_on_one_node_use_different_ports_unless_master_port_is_set(emitted):
    assert "MASTER_PORT=$((29500 + SLURM_JOB_ID % 1000))\n" in emitted("", "--gpus", "2")
    assert "MASTER_PORT=1234\n" in emitted("master_port: 1234\n", "--gpus", "2")


def test_account_comment_and_launcher_args_reach_slurm(emitted):
    text = "launcher: srun\nnum_nodes: 1\nnum_gpus: 2\naccount: physics\ncomment: a b\nlauncher_args: --mpi=none\n"
    script = emitted(text, "--set", "lr=0.1")
    assert directives(script)["account"] == "physics"
    assert directives(script)["comment"] == "'a b'"
    assert "srun --kill-on-bad-exit=1 --mpi=none " in script
    assert f"{cluster.ROOT}/deepy.py train.py 'my run.yml' --set=lr=0.1" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_the_shell_interprets_no_launcher_args(emitted, tmp_path):
    """The lines of the script are run by bash, with an `srun` that prints its words."""
    args = "--mpi=none; touch executed; echo $(touch executed) `touch executed` 'a b' --x=$HOME"
    script = emitted(f"launcher: srun\nnum_nodes: 1\nnum_gpus: 2\nlauncher_args: {json.dumps(args)}\n")
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1", "HOME": "/home/me"}
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=environ, cwd=tmp_path)
    assert done.stdout.splitlines()[1 : 1 + len(shlex.split(args))] == shlex.split(args)
    assert not (tmp_path / "executed").exists()


def test_nodes_without_a_hostfile_name_the_launcher_that_needs_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my.yml").write_text(f"{smallest.YAML}num_nodes: 2\nnum_gpus: 4\n")
    assert main(["train.py", "my.yml", "--emit", "sbatch"]) == 1
    assert "launcher: srun" in capsys.readouterr().err


def test_a_job_that_may_restart_is_queued_again(emitted):
    """Only then: by Slurm if a node fails, by the script if a rank has died."""
    script = emitted("restarts: 3\n", "--gpus", "2")
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append"} <= set(script.splitlines())
    assert "  if [ $restart -lt 3 ]\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert "requeue" not in emitted("", "--gpus", "2")


@pytest.mark.parametrize(
    ("does", "restart", "queued"),
    [
        ("os.kill(os.getpid(), 9)", 0, True),
        ("os.kill(os.getpid(), 9)", 2, True),
        ("os.kill(os.getpid(), 9)", 3, False),
        (
            "from neoxargs.base.problems import Problem as P, Problems as Ps; raise Ps(P('', id='data-file-missing'))",
            0,
            False,
        ),
        ("pass", 0, False),
    ],
)
def test_the_script_queues_a_job_again_after_a_death_only(emitted, tmp_path, does, restart, queued):
    """`srun` starts one supervised rank here; `sleep` and `scontrol` only write down what they were told."""
    environ = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "gpu0"}
    environ |= {"SLURM_RESTART_COUNT": str(restart)} if restart else {}
    logs = f"runs/logs/{attempt(environ)}"
    rank = tmp_path / "rank.py"
    rank.write_text(
        "import os, pathlib, sys\nfrom neoxargs.processes import failures, supervisor\n"
        f"def run():\n    try:\n        {does}\n    except Exception as error:\n"
        "        failures.record_exception(error)\n        return 1\n    return 0\n"
        f"sys.exit(supervisor.run_supervised(run, pathlib.Path({logs!r})))\n"
    )
    for name, body in {"srun": f"{sys.executable} {rank}", "sleep": "echo slept $1 >> told",
                       "scontrol": '[ $1 = show ] && echo gpu0 || echo $1 $2 >> told'}.items():  # fmt: skip
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    environ["PATH"], environ["PYTHONPATH"] = f"{tmp_path}/bin:{os.environ['PATH']}", str(cluster.ROOT)
    script = emitted("restarts: 3\nrun_dir: runs\n", "--gpus", "2")
    done = subprocess.run(["bash"], input=script, text=True, env=environ, capture_output=True)
    assert (done.returncode == 0) == (does == "pass"), done.stderr
    told = Path("told").read_text() if Path("told").exists() else ""
    assert told == (f"slept {1 << restart}\nrequeue 7\n" if queued else "")


#: A user's script, which writes its rank to a file; test_two_hosts.py tests train.py under srun.
SCRIPT = """
import json, os, pathlib, sys
from neoxargs.processes import failures
from neoxargs.targets.wire_format import parse_rank_arguments
from neoxargs.processes.supervisor import run_supervised
from neoxargs.train.process import mpi
arguments = parse_rank_arguments(sys.argv[1:])
mpi.set_rank_environment(arguments.config)

def run():
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    pathlib.Path(f"rank{os.environ['RANK']}.json").write_text(json.dumps([os.environ[name] for name in names]))
    return int(os.path.exists("fail") and os.environ["RANK"] == "1")

sys.exit(run_supervised(run, failures.logs_folder(arguments.config, arguments.attempt)))
"""


@pytest.fixture
def own_script(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(SCRIPT)
    return tmp_path


def ranks(folder: Path) -> list[list[str]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


@pytest.mark.timeout(200)
def test_a_submitted_script_starts_the_ranks_and_reports_which_failed(own_script, node):
    """On a real Slurm of one node; each task reads its rank from the environment."""
    cluster.require_programs("sbatch")
    cluster.write_run(own_script, num_nodes=1, num_gpus=2, launcher="srun", master_addr=None, master_port=1234)
    words = [sys.executable, str(cluster.ROOT / "deepy.py"), "own.py", "run.yml", "--emit", "sbatch"]
    made = subprocess.run(words, cwd=own_script, env=node, capture_output=True, text=True, check=True)
    (own_script / "job").write_text(made.stdout.replace("srun ", "srun --overcommit "))

    def submitted() -> tuple[int, str]:
        sbatch = ["sbatch", "--wait", "--overcommit", "--output=said", "job"]
        done = subprocess.run(sbatch, cwd=own_script, env=node, capture_output=True, text=True, timeout=90)
        return done.returncode, (own_script / "said").read_text()

    code, said = submitted()
    assert code == 0, said
    assert said.count("2 = tensor 1 x pipeline 1 x data 2") == 1
    assert ranks(own_script) == [["0", "2", "0", "1234"], ["1", "2", "1", "1234"]]
    (own_script / "fail").touch()
    code, said = submitted()
    assert code in (1, 128 + signal.SIGTERM), said  # srun's is the largest: it terminates the other task
    assert f"rank 1 on {os.uname().nodename} failed first: exit code 1" in said


@pytest.mark.timeout(600)
def test_a_job_is_queued_again_after_a_rank_has_died(tmp_path, node):
    """By a real Slurm; the second start continues from the last checkpoint, and the run ends as an undisturbed one."""
    cluster.require_programs("sbatch", "scontrol")
    save = tmp_path / "out"
    changes = {"checkpoint_factor": 10, "train_iters": 40, "num_gpus": 2}
    by_slurm = {"launcher": "srun", "num_nodes": 1, "master_addr": None, "restarts": 1, "save": str(save)}
    cluster.write_run(tmp_path, **changes, **by_slurm)
    words = [sys.executable, str(cluster.ROOT / "deepy.py"), "train.py", "run.yml", "--emit", "sbatch"]
    made = subprocess.run(words, cwd=tmp_path, env=node, capture_output=True, text=True, check=True)
    (tmp_path / "job").write_text(made.stdout.replace("srun ", "srun --overcommit "))

    def slurm(*words: str) -> str:
        return subprocess.run(words, cwd=tmp_path, env=node, capture_output=True, text=True, check=True).stdout

    number = slurm("sbatch", "--parsable", "--overcommit", "--output=said", "job").strip()
    try:
        cluster.wait_until((save / "latest").exists, "a checkpoint", 150, often=0.01)
        cluster.kill(cluster.ranks(tmp_path, 1)[-1])
        cluster.wait_until(lambda: ended(slurm("scontrol", "show", "job", number)), "the end of the job", 300, often=1)
    finally:
        slurm("scancel", number)
    said = (tmp_path / "said").read_text()
    assert "JobState=COMPLETED" in slurm("scontrol", "show", "job", number), said
    assert "Restarts=1 " in slurm("scontrol", "show", "job", number)
    assert f"rank 1 on {os.uname().nodename} failed first: SIGKILL" in said
    assert "resuming after iteration " in said
    assert len(list(save.glob(f"logs/slurm-{number}.*"))) == 2
    assert not cluster.remaining_ranks(tmp_path)
    quiet = tmp_path / "undisturbed"
    quiet.mkdir()
    done = cluster.run_training(quiet, cluster.cpu_environ(), save=str(quiet / "out"), **changes)
    assert done.returncode == 0, done.stdout
    assert losses(tmp_path) == losses(quiet)


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in step_rows(folder)]


def ended(job: str) -> bool:
    return not any(f"JobState={state}" in job for state in ("PENDING", "RUNNING", "COMPLETING"))


@pytest.mark.timeout(120)
def test_ranks_that_torchrun_has_started(own_script):
    cluster.write_run(own_script, master_port=None)
    port = free_port()
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    words += [str(cluster.ROOT / "deepy.py"), "own.py", "run.yml"]
    done = subprocess.run(words, cwd=own_script, env=cluster.cpu_environ(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 = tensor 1 x pipeline 1 x data 2") == 1
    assert ranks(own_script) == [["0", "2", "0", str(port)], ["1", "2", "1", str(port)]]
    assert len(list(own_script.glob("out/logs/*/rank-*.log"))) == 2
