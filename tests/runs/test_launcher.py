"""One machine needs no launcher, unless a parameter is set that only a launcher implements."""

from __future__ import annotations

import pytest

from neoxargs.config.config import Config
from neoxargs.hosts.hosts import Resources
from neoxargs.resolve import File, complete, draft
from neoxargs.runs.launcher import launcher_of
from neoxargs.runs.run_spec import RunSpec
from neoxargs.runs.summary import to_text
from tests.support import smallest

CPUS = Resources({"localhost": [0, 1]}, "cpu", {"num_gpus": "2"})
NEEDS_DEEPSPEED = {
    "launcher": "pdsh", "save_pid": "true", "bind_cores_to_rank": "true", "bind_core_list": "0-1", "module": "true",
    "no_python": "true", "no_local_rank": "true", "enable_each_rank_log": "logs", "venv_script": "activate",
    "launcher_args": '"-v"', "autotuning_run": "tune",
}  # fmt: skip


def configured(text: str) -> Config:
    return complete(draft([File("my.yml", f"{smallest.YAML}{text}\n")]), 2)


@pytest.mark.parametrize(
    "text", ["", "num_gpus: 2", "include: localhost:0,1", "master_port: 29600", "master_addr: 127.0.0.1", "quiet: true",
             "log_level: debug", "no_ssh_check: true", "ssh_port: 22"],
)  # fmt: skip
def test_deepy_starts_the_ranks_of_one_machine(text: str) -> None:
    config = configured(text)
    assert launcher_of(config, CPUS).name == "local"
    assert "launcher" not in to_text(RunSpec(config, CPUS))


@pytest.mark.parametrize(("name", "value"), NEEDS_DEEPSPEED.items())
def test_a_setting_that_only_deepspeeds_launcher_has_selects_it_and_the_summary_says_so(name: str, value: str) -> None:
    config = configured(f"{name}: {value}")
    flag = {"autotuning_run": "autotuning"}.get(name, name)
    assert launcher_of(config, CPUS).through_deepspeed
    assert f"launcher   DeepSpeed's launcher, because of {flag}" in to_text(RunSpec(config, CPUS))


@pytest.mark.parametrize("hosts", [{"a": [0], "b": [0]}, {"localhost": [0, 1]}])
def test_several_machines_and_those_reached_over_the_network_need_a_launcher(hosts: dict[str, list[int]]) -> None:
    assert launcher_of(configured(""), Resources(hosts, "cuda", remote=True)).name == "pdsh"
