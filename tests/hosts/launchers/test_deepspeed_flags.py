"""Each of the launcher's parameters, changed alone: the flags of DeepSpeed's launcher, and which ranks start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from neoxargs.base.request import Request
from neoxargs.launch.command.command import runner_flags
from neoxargs.runs.run_spec import resolve_run
from tests.support import smallest

HOSTS = "w0 slots=2\nw1 slots=2\n"


class Start(NamedTuple):
    """How a run starts."""

    flags: Any
    """What DeepSpeed's own parser reads."""
    hosts: dict[str, list[int]]
    """The GPUs that the batch is computed for."""
    pool: dict[str, list[int]]
    """The GPUs that DeepSpeed takes for these flags."""
    batch: int


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text(HOSTS)
    Path("others").write_text("w2 slots=3\n")
    runner = pytest.importorskip("deepspeed.launcher.runner")

    def started(text: str) -> Start:
        Path("my.yml").write_text(smallest.YAML + ("" if "hostfile" in text else "hostfile: hosts\n") + text)
        spec = resolve_run(Request(["my.yml"]), {})
        flags = runner.parse_args([*runner_flags(spec.config, spec.resources), "s.py"])
        pool = runner.fetch_hostfile(flags.hostfile)
        chosen = runner.parse_inclusion_exclusion(pool, flags.include, flags.exclude)
        pool = {host: chosen[host] for host in list(chosen)[: flags.num_nodes if flags.num_nodes > 0 else None]}
        most = flags.num_gpus if flags.num_gpus > 0 else None
        pool = {host: slots[:most] for host, slots in pool.items()}
        return Start(flags, spec.resources.hosts, pool, spec.config.batch.train_batch_size)

    return started


def selection(start: Start) -> list[object]:
    """The flags that choose hosts; what `exclude` leaves is told as `include`."""
    return [getattr(start.flags, name) for name in ("hostfile", "include", "num_nodes", "num_gpus")]


@pytest.mark.shows("hostfile", "include", "exclude", "num_nodes", "num_gpus")
@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("hostfile: others", {"w2": [0, 1, 2]}),
        ("include: w1", {"w1": [0, 1]}),
        ('include: "w0:1@w1"', {"w0": [1], "w1": [0, 1]}),
        ('exclude: "w1:0"', {"w0": [0, 1], "w1": [1]}),
        ("num_nodes: 1", {"w0": [0, 1]}),
        ("num_gpus: 1", {"w0": [0], "w1": [0]}),
    ],
)
def test_hosts_and_gpus_are_selected(start: Any, text: str, hosts: dict[str, list[int]]) -> None:
    before, after = start(""), start(text)
    assert before.hosts == before.pool == {"w0": [0, 1], "w1": [0, 1]}
    assert after.hosts == after.pool == hosts
    assert (before.batch, after.batch) == (2 * 4, 2 * sum(map(len, hosts.values())))
    assert selection(after) != selection(before)


@pytest.mark.shows("master_port", "master_addr", "launcher")
@pytest.mark.parametrize(
    ("name", "default", "value"),
    [("master_port", 29500, 29731), ("master_addr", "", "10.1.2.3"), ("launcher", "pdsh", "openmpi")],
)
def test_another_launcher(start: Any, name: str, default: object, value: object) -> None:
    before, after = start(""), start(f"{name}: {value}")
    assert (getattr(before.flags, name), getattr(after.flags, name)) == (default, value)
    assert before.hosts == after.hosts


def executed(flags: Any) -> list[str]:
    """What DeepSpeed's launcher would execute for two hosts."""
    from deepspeed.launcher import multinode_runner as runners

    pool = {"w0": 2, "w1": 2}
    flags.user_args = []
    made: Any = (
        runners.OpenMPIRunner(flags, "world", pool)
        if flags.launcher == "openmpi"
        else runners.PDSHRunner(flags, "world")
    )
    command = made.get_cmd(dict(os.environ), pool)
    return list(command[0] if isinstance(command, tuple) else command)


@pytest.mark.shows("launcher", "master_port", "master_addr")
def test_the_command_of_the_program_that_starts_them(start: Any) -> None:
    def words(text: str) -> list[str]:
        return executed(start(text).flags)

    assert words("")[0] == "pdsh"
    assert words("launcher: openmpi")[0] == "mpirun"
    told = words("master_port: 29731\nmaster_addr: 10.1.2.3")
    assert {"--master_port=29731", "--master_addr=10.1.2.3"} <= {word.strip() for word in told}
    assert "--master_port=29500" in {word.strip() for word in words("")}


@pytest.mark.shows("deepspeed_mpi")
def test_mpi_starts_the_ranks_on_one_machine_too(start: Any) -> None:
    before, after = (start(f"launcher: openmpi\ndeepspeed_mpi: {on}") for on in ("false", "true"))
    assert (before.flags.force_multi, after.flags.force_multi) == (False, True)
