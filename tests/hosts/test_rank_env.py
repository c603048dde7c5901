"""What the variables of launchers and of Slurm say, also if they say nothing sensible."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from neoxargs.base.problems import Problems
from neoxargs.hosts import hosts, rank_env, slurm
from neoxargs.processes.run_lock import Holder
from tests.support.configure import configure
from tests.support.paths import ROOT
from tests.support.snapshots import pinned

RANK = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
BAD = ["two", "", "-1", "1.5", "0x2"]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", RANK)
def test_a_number_that_is_none_is_a_problem(name, value):
    with pytest.raises(Problems, match=rf"the environment variable {name} \({value}\) must be a whole number"):
        rank_env.numbers(rank_env.TORCH, {**RANK, name: value})


def test_deepy_reports_it_in_one_line():
    environ = {**os.environ, **RANK, "WORLD_SIZE": "two", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, str(ROOT / "deepy.py"), "train.py", str(ROOT / "configs" / "quickstart.yml")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    pinned(done.stderr, "[rank-variable-not-a-number]")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("value", ["abc", "0", "65536", "-5"])
def test_a_master_port_that_is_none_is_a_problem(value, tmp_path):
    with pytest.raises(Problems, match=rf"MASTER_PORT \({value}\) must be a port"):
        hosts.resources(configure(f"hostfile: {tmp_path}/none\n").runner, 1, {"MASTER_PORT": value}, dev=tmp_path)


@pytest.mark.parametrize(("value", "count"), [(None, 0), ("", 0), ("0", 0), ("2", 2), ("x", 0)])
def test_how_often_slurm_has_queued_a_job_again(value, count):
    environ = {"SLURM_JOB_ID": "5"} | ({} if value is None else {"SLURM_RESTART_COUNT": value})
    assert slurm.requeues(environ) == Holder.of_this_process(environ).requeues == count
    assert rank_env.attempt(environ).endswith("-restart2") == bool(count)


def test_the_name_of_a_job():
    assert slurm.job({"SLURM_CLUSTER_NAME": "one", "SLURM_JOB_ID": "5"}) == "one.5"
    assert slurm.job({"SLURM_JOB_ID": "5"}) == "5"
    assert slurm.job({"SLURM_CLUSTER_NAME": "one"}) == ""
