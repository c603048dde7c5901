"""Every launcher, a plugin's like a built-in one: its command, its program, what reaches its ranks, what is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.request import Request
from neoxargs.checks.machine import launcher as startable
from neoxargs.checks.machine import secrets
from neoxargs.hosts import environment
from neoxargs.hosts.launchers import Launcher
from neoxargs.launch.command.command import Command, command, runner_flags
from neoxargs.launch.output import dry_run
from neoxargs.runs import summary
from neoxargs.runs.run_spec import RunSpec, resolve_run
from tests.support import smallest
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

SHELL = {"OMP_NUM_THREADS": "4", "WANDB_API_KEY": "hunter2", "MLFLOW_TRACKING_TOKEN": "hunter3", "NCCL_DEBUG": "INFO"}


@pytest.fixture
def spec(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """A run of four ranks on two hosts."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("w0 slots=2\nw1 slots=2\n")
    Path("my.yml").write_text(f"{smallest.YAML}hostfile: hosts\nlauncher: {launcher.name}\n")
    return resolve_run(Request(["my.yml"]), {})


def started(spec: RunSpec) -> Command:
    return command(spec.config, spec.resources, "/s.py", {})


def test_the_command_is_the_launchers(launcher: Launcher, spec: RunSpec) -> None:
    words = started(spec).words
    assert words[words.index("/s.py") + 1].startswith("--")
    if launcher.through_deepspeed:
        assert words[:3] == (sys.executable, "-m", "deepspeed.launcher.runner")
        assert words[words.index("--launcher") + 1] == launcher.name
        return
    assert "deepspeed.launcher.runner" not in words
    assert ids(refused(runner_flags, spec.config, spec.resources)) == ["launcher-without-flags"]


def test_a_program_that_is_not_installed_is_named(launcher: Launcher, spec: RunSpec) -> None:
    Path("bin").mkdir()
    (Path("bin") / launcher.program).touch(0o755)
    there, nowhere = (
        list(startable.problems(spec.config, spec.resources, "/s.py", ["x"], {"PATH": str(Path(folder).absolute())}))
        for folder in ("bin", "home")
    )
    assert ids(there) == []
    assert [(problem.id, problem.about) for problem in nowhere] == [("launcher-program-missing", ("launcher",))]
    assert f"launcher {launcher.name} needs {launcher.program}" in str(nowhere[0])
    assert nowhere[0].where and nowhere[0].where.line == 9


def test_the_variables_that_reach_the_ranks_follow_from_the_record(launcher: Launcher, spec: RunSpec) -> None:
    Path(".deepspeed_env").write_text("FI_PROVIDER=efa\n")
    found = {variable.name: variable for variable in environment.variables(launcher, True, SHELL, {"PYTHONPATH": "/r"})}
    left = {name for name, variable in found.items() if variable.not_passed_on}
    not_inherited = set() if launcher.inherits_environment else {"OMP_NUM_THREADS", "WANDB_API_KEY"}
    assert left == not_inherited | (set() if launcher.reads_env_files else {"FI_PROVIDER"})
    shown = environment.table(list(found.values()))
    assert "hunter" not in shown
    assert ("MLFLOW_TRACKING_TOKEN  ***  (this shell)" in shown) and ("PYTHONPATH             /r  (deepy)" in shown)
    assert not [v for v in environment.variables(launcher, False, SHELL, {}) if v.not_passed_on]


def test_a_secret_is_refused_only_if_it_would_reach_a_command_line(launcher: Launcher, spec: RunSpec) -> None:
    problems = list(secrets.on_command_lines(spec.config, spec.resources, SHELL))
    assert ids(problems) == ["secret-on-command-line"] * launcher.argv_visible
    assert launcher.argv_visible == launcher.through_deepspeed
    told = json.dumps([problem.to_json() for problem in problems])
    assert "hunter" not in f"{told}{command(spec.config, spec.resources, '/s.py', SHELL)}"


def test_summary_and_dry_run_for_every_launcher(launcher: Launcher, spec: RunSpec, monkeypatch: Any) -> None:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    assert "4 = tensor 1 x pipeline 1 x data 4" in summary.to_text(spec)
    assert "on 2 machines, 2 GPUs each" in summary.to_text(spec)
    said = dry_run.dry_run(spec.config, spec.resources, started(spec))
    pinned(said.partition("\n\n")[0])
    assert "hunter" not in said
    assert ("set launcher: ssh" in said) == (not launcher.inherits_environment)


def test_hosts_that_a_scheduler_will_choose(launcher: Launcher, spec: RunSpec) -> None:
    changes = ["hostfile=None", "num_nodes=3", "num_gpus=2"]
    if not launcher.allocates_hosts:
        assert ids(refused(resolve_run, Request(["my.yml"], changes), {})) == ["num-nodes-without-hostfile"]
        return
    asked = resolve_run(Request(["my.yml"], changes), {})
    assert (asked.resources.gpus, asked.resources.scheduler_picks_hosts, asked.resources.warnings) == (6, True, ())
    assert {"--nodes=3", "--ntasks=6"} <= set(started(asked).words)


def test_account_is_passed_on_or_warned_about(launcher: Launcher, spec: RunSpec) -> None:
    paid = resolve_run(Request(["my.yml"], ["account=physics"]), {})
    unread = [problem for problem in paid.warnings if problem.id == "slurm-account-needs-slurm"]
    assert bool(unread) == (launcher.name not in ("slurm", "srun", "flux"))
    assert unread or "--account=physics" in started(paid).words or launcher.through_deepspeed
