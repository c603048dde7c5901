"""Errors that launchers would report with a traceback, or not at all, are reported before the start."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.files import Text
from neoxargs.checks.machine import launcher as launcher_checks
from neoxargs.cli import main
from neoxargs.config.config import Config
from neoxargs.hosts.hosts import Resources, resources
from neoxargs.hosts.launchers import BUILT_IN
from neoxargs.launch.start.prepare import with_launch
from neoxargs.registry.runner import Runner
from tests.support import smallest
from tests.support.configure import config_of
from tests.support.snapshots import pinned

REMOTE = Resources({"w0": [0], "w1": [0]}, "cuda", remote=True)
LOCAL = Resources({"localhost": [0]}, "cpu")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working directory, and every program that a launcher needs."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for program in {launcher.program for launcher in BUILT_IN}:
        (tmp_path / "bin" / program).touch(0o755)
    return tmp_path


def told(launcher: str, resources: Resources = REMOTE, words: Any = ("x",), script: str = "/s.py", **more: Any) -> str:
    config = config_of(**more, launcher=launcher)
    found = launcher_checks.problems(config, resources, script, words, {"PATH": str(Path("bin").absolute())})
    return "\n".join(problem.what for problem in found)


def test_a_missing_program_matters_only_with_remote_hosts():
    Path("bin/pdsh").unlink()
    pinned(told("pdsh"))
    assert told("pdsh", LOCAL) == ""


def test_a_missing_program_is_reported_before_anything_is_written(here, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(here))
    for name in ("tokens.bin", "tokens.idx"):
        Path(name).touch()
    run = "data_path: tokens\ntokenizer_type: ByteLevelTokenizer\nlauncher: srun\nnum_nodes: 1\nnum_gpus: 1\n"
    Path("my.yml").write_text(smallest.YAML + run)
    assert main(["train.py", "my.yml"]) == 1
    pinned(capsys.readouterr().err, "[launcher-program-missing]")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("launcher", "hosts", "address", "refused"),
    [
        ("ssh", ("localhost", "w1"), "", "localhost"),
        ("torchrun", ("127.0.0.1", "w1"), "", "127.0.0.1"),
        ("pdsh", ("w0", "w1"), "127.0.0.1", "127.0.0.1"),
        ("pdsh", ("localhost", "w1"), "", ""),  # DeepSpeed asks the first host for its address
        ("ssh", ("localhost", "w1"), "10.0.0.1", ""),
        ("ssh", ("127.0.0.1", "127.0.0.2"), "", ""),
        ("ssh", ("w0", "w1"), "", ""),
        ("slurm", ("w0",), "127.0.0.1", ""),
    ],
)
def test_a_loopback_rendezvous_address(launcher, hosts, address, refused):
    there = Resources({host: [0] for host in hosts}, "cuda", remote=True)
    said = told(launcher, there, master_addr=address)
    assert bool(said) == bool(refused) and refused in said
    pinned(said)


def test_lines_that_deepspeed_cannot_read(here):
    """It needs a variable on every line, and crashes on an empty one."""
    Path(".deepspeed_env").write_text("A=1\n\n# a remark\n")
    line = "this line is not of the form NAME=VALUE, which DeepSpeed's launcher expects on every line"
    assert told("pdsh") == told("openmpi") == f"{line}\n{line}"
    assert told("ssh") == told("srun") == told("pdsh", LOCAL) == ""


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "ssh"])
@pytest.mark.parametrize("line", ["A;touch executed;B=1", "$(touch executed)=1", "export A=1"])
def test_lines_whose_name_a_shell_would_interpret(here, launcher, line):
    Path(".deepspeed_env").write_text(f"{line}\n")
    pinned(told(launcher))


def test_values_that_deepspeed_does_not_quote(here):
    Path(".deepspeed_env").write_text("A=$(touch executed)\nB=plain,value\n")
    said = "the value of A contains special characters, which DeepSpeed does not quote for remote shells"
    assert told("pdsh") == said
    assert told("ssh") == ""
    Path(".deepspeed_env").unlink()
    for name in ("master_addr", "venv_script", "enable_each_rank_log"):
        assert told("pdsh", **{name: "10.0.0.1; touch executed"}).startswith(
            f"{name} (10.0.0.1; touch executed) contains"
        )
        assert told("pdsh", **{name: "10.0.0.1"}) == ""
        refused = "master_addr (a b) is not the name or the address of a host" if name == "master_addr" else ""
        assert told("ssh", **{name: "a b"}) == refused


def test_paths_that_deepspeed_does_not_quote(here, monkeypatch):
    (here / "my run").mkdir()
    monkeypatch.chdir(here / "my run")
    startable_there = {"PATH": str(here / "bin")}
    for launcher, count in (("pdsh", 2), ("ssh", 0), ("openmpi", 0)):
        found = launcher_checks.problems(config_of(launcher=launcher), REMOTE, "/a;b/s.py", ["x"], startable_there)
        assert len(list(found)) == count


def test_a_configuration_that_is_too_long_for_a_command_line(here):
    paths = [f"/data/part-{number}" for number in range(9000)]
    what = "the configuration needs 140,000 bytes on the command line, but the system allows at most 131,071"
    assert told("pdsh", LOCAL, ["a" * 140_000], train_data_paths=paths) == what
    assert told("pdsh", LOCAL, ["a" * 70_000] * 2) == ""
    assert told("pdsh", REMOTE, ["a" * 70_000] * 2).startswith("the configuration needs 140,002 bytes")
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["true", "a" * (launcher_checks.MAX_ARGUMENT_BYTES + 1)])
    subprocess.run(["true", "a" * launcher_checks.MAX_ARGUMENT_BYTES], check=True)


def test_files_that_only_explain_do_not_make_it_too_long():
    """A letter that is not ASCII takes six in JSON."""
    for letter, count, kept in (("a", 30_000, True), ("я", 5_000, True), ("я", 30_000, False)):
        config = with_launch(Config({}), "s.py", [Text("my.yml", f"# {letter * count}")])
        assert (config.get("config_files") is not None) == kept


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "warning"),  # as in GPT-NeoX's own configurations
        ({"force_multi": True}, "error"),
        ({"launcher": "openmpi"}, "error"),
        ({"launcher": "ssh"}, "error"),
        ({"launcher": "ssh", "no_ssh": True}, "warning"),
        ({"launcher": "openmpi", "hostfile": ""}, "warning"),
    ],
)
def test_a_named_hostfile_that_is_missing_is_an_error_if_the_launcher_needs_it(given: dict[str, Any], expected: str):
    runner = Runner(**{"hostfile": "/mock_path", **given})
    found = resources(runner, 1, {"DS_ACCELERATOR": "cpu"})
    assert [problem.id for problem in found.warnings] == ["hostfile-missing"]
    more = {"hostfile": runner.hostfile, "force_multi": runner.force_multi, "no_ssh": runner.no_ssh}
    refused = told(runner.launcher, found, **more)
    what = f"launcher {runner.launcher} starts ranks on other machines, but the hostfile /mock_path does not exist"
    assert refused.startswith(what) if expected == "error" else "hostfile" not in refused
