"""Which variables reach the ranks is told by name and origin, and no secret comes near a command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neoxargs.launch import environment
from neoxargs.launch.cluster.hosts import Resources
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import DEFAULT, Value
from tests.support import cluster

LOCAL = Resources({"localhost": [0]}, "cuda")
REMOTE = Resources({"w0": [0], "w1": [0]}, "cuda", remote=True)
SHELL = {"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "hunter2", "HOME": "/root", "OMP_NUM_THREADS": "4"}


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and a working directory with a .deepspeed_env."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".deepspeed_env").write_text("NCCL_IB_HCA=mlx5\n\nHF_TOKEN = hunter3\n")
    return tmp_path / ".deepspeed_env"


def config(**values: str) -> Config:
    return Config({name: Value(value, DEFAULT) for name, value in values.items()})


def lines(resources: Resources, launcher: str) -> list[str]:
    found = environment.variables(resources, launcher, SHELL, {"PYTHONPATH": "/repo"})
    return [" ".join(line.split()) for line in environment.shown(found).splitlines()]


def test_ranks_on_this_machine_inherit_all_of_the_shell():
    assert lines(LOCAL, "pdsh") == [
        "NCCL_DEBUG INFO (this shell)",
        "OMP_NUM_THREADS 4 (this shell)",
        "PYTHONPATH /repo (deepy)",
        "WANDB_API_KEY *** (this shell)",
    ]


def test_other_machines_get_what_deepspeed_exports(file):
    left = "; does not reach other machines: "
    assert lines(REMOTE, "pdsh") == [
        f"HF_TOKEN *** ({file})",
        "NCCL_DEBUG INFO (this shell)",
        f"NCCL_IB_HCA mlx5 ({file})",
        f"OMP_NUM_THREADS 4 (this shell{left}write it in .deepspeed_env)",
        "PYTHONPATH /repo (deepy)",
        f"WANDB_API_KEY *** (this shell{left}launcher: ssh hands it over)",
    ]
    assert "WANDB_API_KEY *** (this shell)" in lines(REMOTE, "ssh")
    assert "WANDB_API_KEY *** (this shell)" in lines(REMOTE, "srun")
    assert f"NCCL_IB_HCA mlx5 ({file})" in lines(REMOTE, "slurm")
    assert f"NCCL_IB_HCA mlx5 ({file}{left}srun reads no file, and hands this shell's variables over)" in lines(
        REMOTE, "srun"
    )


def test_what_deepspeed_exports_is_what_is_assumed():
    runner = pytest.importorskip("deepspeed.launcher.runner")
    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    exports = [*runner.EXPORT_ENVS, *CUDA_Accelerator.export_envs(CUDA_Accelerator.__new__(CUDA_Accelerator))]
    ours = set(environment.EXPORTED)
    assert ours <= {name for name in exports if not name.startswith("DLTS")} | ours
    assert all(name.startswith(tuple(ours)) for name in exports if name not in runner.NEBULA_EXPORT_ENVS)


def test_a_secret_that_a_launcher_would_write_on_a_command_line_is_refused(file):
    [problem] = environment.exposed(config(), REMOTE, SHELL)
    assert (problem.where.file, problem.where.line) == (str(file), 3)
    assert "hunter" not in f"{problem}"
    for resources, launcher in ((LOCAL, "pdsh"), (REMOTE, "ssh"), (REMOTE, "srun")):
        assert not list(environment.exposed(config(launcher=launcher), resources, SHELL))


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "slurm"])
def test_so_is_one_of_this_shell_that_deepspeed_hands_over_by_its_name(launcher):
    secret = SHELL | {"MLFLOW_TRACKING_PASSWORD": "hunter5"}
    told = list(environment.exposed(config(launcher=launcher), REMOTE, secret))
    assert "MLFLOW_TRACKING_PASSWORD" in [problem.what.partition(":")[0] for problem in told]
    assert "hunter" not in "".join(map(str, told))
    assert not list(environment.exposed(config(launcher="ssh"), REMOTE, secret))
    assert environment.passed_on(secret, "/")["MLFLOW_TRACKING_PASSWORD"] == "hunter5"


def test_a_secret_in_the_configuration_is_refused_on_one_machine_too():
    [problem] = environment.exposed(config(**{"comet.api_key": "hunter4"}), LOCAL, SHELL)
    assert problem.hint == "leave it out and set COMET_API_KEY in the environment"
    assert "hunter" not in f"{problem}"


@pytest.mark.timeout(120)
def test_ssh_hands_secrets_over_without_a_command_line(tmp_path: Path, hosts: cluster.Environ) -> None:
    """The command sees the key; no process's arguments do, on either side."""
    look = (
        "import os, pathlib, sys; print(os.environ['WANDB_API_KEY'], os.environ['HF_TOKEN'], *sys.argv[1:]);"
        "print(any(b'hun' b'ter2' in path.read_bytes() for path in pathlib.Path('/proc').glob('[0-9]*/cmdline')"
        " if path.exists()))"
    )
    both = [f"--host={host}=4,5" for host in cluster.HOSTS]
    begin = [sys.executable, "-m", "neoxargs.launch.launchers.ssh", *both, "--", sys.executable, "-c"]
    words = [*begin, look, "n=%n", "c=%c", "d=%d", "/data/50%data"]
    environ = hosts | {"WANDB_API_KEY": "hunter2", "PYTHONPATH": str(cluster.ROOT)}
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    told = sorted(done.stdout.splitlines())
    fail = "import os, sys; sys.exit(3 + ('1' in sys.argv[1]) if os.getcwd() == sys.argv[2] else 1)"
    failed = subprocess.run([*begin, fail, "n=%n", str(tmp_path)], env=environ, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert told == [
        "127.0.0.1: False",
        "127.0.0.1: hunter2 hunter3 n=0 c=2 d=4,5 /data/50%data",
        "127.0.0.2: False",
        "127.0.0.2: hunter2 hunter3 n=1 c=2 d=4,5 /data/50%data",
    ]
    assert failed.returncode in (3, 4)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_nothing_runs_on_when_ssh_is_ended(tmp_path: Path, hosts: cluster.Environ, end: str) -> None:
    look = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    both = [f"--host={host}=0" for host in cluster.HOSTS]
    words = [sys.executable, "-m", "neoxargs.launch.launchers.ssh", *both, "--", sys.executable, "-c", look]
    environ = hosts | {"PYTHONPATH": str(cluster.ROOT)}
    process = subprocess.Popen(words, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pids = [int(process.stdout.readline().split()[-1]) for _ in cluster.HOSTS]
    getattr(process, end)()
    process.communicate(timeout=40)
    cluster.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "both have ended", 30)
