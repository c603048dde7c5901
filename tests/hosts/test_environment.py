"""Which variables reach the ranks, by name and origin."""

from __future__ import annotations

import pytest

from neoxargs.hosts import environment
from neoxargs.hosts.launchers import launcher_named

LOCAL, REMOTE = False, True
SHELL = {"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "hunter2", "HOME": "/root", "OMP_NUM_THREADS": "4"}


pytestmark = pytest.mark.usefixtures("env_file")


def lines(remote: bool, launcher: str) -> list[str]:
    found = environment.variables(launcher_named(launcher), remote, SHELL, {"PYTHONPATH": "/repo"})
    return [" ".join(line.split()) for line in environment.table(found).splitlines()]


def test_ranks_on_this_machine_inherit_all_of_the_shell():
    assert lines(LOCAL, "pdsh") == [
        "NCCL_DEBUG INFO (this shell)",
        "OMP_NUM_THREADS 4 (this shell)",
        "PYTHONPATH /repo (deepy)",
        "WANDB_API_KEY *** (this shell)",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_BASE_URL", "https://me:hunter2@host"), ("NCCL_OTHER", "https://me:hunter2@host"),
        ("WANDB_HEADERS", '{"Authorization": "hunter2"}'), ("MLFLOW_TRACKING_URI", "https://me:hunter2@host"),
    ],
)  # fmt: skip
def test_secrets_are_masked_by_the_name_of_a_variable_or_within_its_value(name: str, value: str) -> None:
    found = environment.variables(launcher_named("pdsh"), LOCAL, {name: value}, {})
    assert name in environment.table(found) and "hunter" not in environment.table(found)


def test_other_machines_get_what_deepspeed_exports(env_file):
    left = "; not passed on to other hosts; "
    assert lines(REMOTE, "pdsh") == [
        f"HF_TOKEN *** ({env_file})",
        "NCCL_DEBUG INFO (this shell)",
        f"NCCL_IB_HCA mlx5 ({env_file})",
        f"OMP_NUM_THREADS 4 (this shell{left}add it to .deepspeed_env)",
        "PYTHONPATH /repo (deepy)",
        f"WANDB_API_KEY *** (this shell{left}set launcher: ssh)",
    ]
    assert "WANDB_API_KEY *** (this shell)" in lines(REMOTE, "ssh")
    assert "WANDB_API_KEY *** (this shell)" in lines(REMOTE, "srun")
    assert f"NCCL_IB_HCA mlx5 ({env_file})" in lines(REMOTE, "slurm")
    assert (
        f"NCCL_IB_HCA mlx5 ({env_file}{left}launcher srun does not read this file; export the variable in this shell)"
        in lines(REMOTE, "srun")
    )


def test_settings_of_torch_and_cublas_reach_other_machines(tmp_path):
    shell = {"PYTORCH_ALLOC_CONF": "backend:native", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    assert environment.passed_on(shell, str(tmp_path)).items() >= shell.items()


def test_what_deepspeed_exports_is_what_is_assumed():
    runner = pytest.importorskip("deepspeed.launcher.runner")
    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    exports = [*runner.EXPORT_ENVS, *CUDA_Accelerator.export_envs(CUDA_Accelerator.__new__(CUDA_Accelerator))]
    ours = set(environment.EXPORTED)
    assert ours <= {name for name in exports if not name.startswith("DLTS")} | ours
    assert all(name.startswith(tuple(ours)) for name in exports if name not in runner.NEBULA_EXPORT_ENVS)
