"""No secret reaches a command line, neither from the configuration nor from the environment."""

from __future__ import annotations

import pytest

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.launch.environment import passed_on
from neoxargs.launch.preflight import secrets
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import DEFAULT, Value

LOCAL = Resources({"localhost": [0]}, "cuda")
REMOTE = Resources({"w0": [0], "w1": [0]}, "cuda", remote=True)
SHELL = {"WANDB_API_KEY": "hunter2"}


pytestmark = pytest.mark.usefixtures("env_file")


def config(**values: str) -> Config:
    return Config({name: Value(value, DEFAULT) for name, value in values.items()})


def test_a_secret_that_a_launcher_would_put_on_a_command_line_is_refused(env_file):
    [problem] = secrets.problems(config(), REMOTE, SHELL)
    assert (problem.where.file, problem.where.line) == (str(env_file), 3)
    assert "hunter" not in f"{problem}"
    for resources, launcher in ((LOCAL, "pdsh"), (REMOTE, "ssh"), (REMOTE, "srun")):
        assert not list(secrets.problems(config(launcher=launcher), resources, SHELL))


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "slurm"])
def test_a_secret_variable_that_deepspeed_exports_is_refused(launcher):
    secret = SHELL | {"MLFLOW_TRACKING_PASSWORD": "hunter5"}
    told = list(secrets.problems(config(launcher=launcher), REMOTE, secret))
    assert "MLFLOW_TRACKING_PASSWORD" in [problem.what.split()[4] for problem in told]
    assert "hunter" not in "".join(map(str, told))
    assert not list(secrets.problems(config(launcher="ssh"), REMOTE, secret))
    assert passed_on(secret, "/")["MLFLOW_TRACKING_PASSWORD"] == "hunter5"


def test_a_secret_in_the_configuration_is_refused_on_one_machine_too():
    [problem] = secrets.problems(config(**{"comet.api_key": "hunter4"}), LOCAL, SHELL)
    assert problem.hint == "remove comet.api_key and set COMET_API_KEY in the environment"
    assert "hunter" not in f"{problem}"
