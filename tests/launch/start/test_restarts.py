"""Ranks that have died are started again, from the newest checkpoint of their own run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neoxargs.config.config import Config
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.run_record import RECORD_FILE
from neoxargs.hosts.hosts import Resources
from neoxargs.launch.command.command import Command
from neoxargs.launch.start import restarts
from neoxargs.launch.start.restarts import continued, continues_job, requeued, start_ranks, wait_before
from neoxargs.launch.start.run import Ended
from neoxargs.processes.run_lock import BY_DEEPY
from neoxargs.resolve import File, complete, draft
from neoxargs.runs.run_spec import RunSpec
from tests.support import smallest
from tests.support.configure import configure
from tests.support.snapshots import pinned

DIED, REFUSED, DONE = Ended(137, True), Ended(1, False), Ended(0, False)


def config(folder: Path, more: str = "") -> Config:
    return configure(f"run_dir: {folder}/run\nsave: {folder}/save\ncheckpoint_factor: 5\n{more}")


def checkpoint(folder: Path, iteration: int, run: str = "") -> Path:
    """Write a checkpoint of a run, or as of another program, the newest of its folder."""
    path = folder / f"global_step{iteration}"
    path.mkdir(parents=True)
    (path / "mp_rank_00_model_states.pt").touch()
    if run:
        (path / checkpoint_folder.RUN).write_text(checkpoint_folder.Written(run).to_json())
    (folder / "latest").write_text(path.name)
    return path


class Attempts:
    """Attempts that end as listed; each may do something first. configs: what each was started with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: Ended, does: Callable[[int], Any] = lambda _: None):
        self.ends, self.does, self.said, self.waits = list(ends), does, list[str](), list[float]()
        self.configs: list[Config] = []
        monkeypatch.setattr(restarts, "command", self._command)
        monkeypatch.setattr(restarts, "start", self._start)
        monkeypatch.setattr(restarts.time, "sleep", self.waits.append)
        monkeypatch.setattr(restarts.failures, "new_attempt", lambda _: "attempt")

    def _command(self, config: Config, *_: Any) -> Command:
        self.configs.append(config)
        return Command((), {})

    def _start(self, *_: Any, **__: Any) -> Ended:
        self.does(len(self.configs))
        return self.ends.pop(0)

    def run(self, config: Config, lock: Any = None) -> int:
        return start_ranks("train.py", RunSpec(config, Resources({"localhost": [0]}, "cpu")), self.said.append, lock)


#: The lock of a launch, as far as restarts need it.
LOCK = SimpleNamespace(holder=SimpleNamespace(launch=f"{BY_DEEPY}mine"))


@pytest.mark.parametrize(
    ("ends", "number", "code"),
    [
        ((DONE,), 3, 0),
        ((DIED, DONE), 3, 0),
        ((DIED, DIED), 1, 137),
        ((DIED,), 0, 137),
        ((DIED, REFUSED), 3, 1),
        ((Ended(143, False),), 3, 143),
    ],
)
def test_a_run_is_restarted_after_a_death_only_and_so_many_times(tmp_path, monkeypatch, ends, number, code):
    attempts = Attempts(monkeypatch, *ends)
    assert attempts.run(config(tmp_path, f"restarts: {number}\n")) == code
    assert not attempts.ends
    assert len(attempts.said) == len(attempts.waits) == len(ends) - 1


def test_waits_double_until_a_checkpoint_is_saved(tmp_path, monkeypatch):
    save = tmp_path / "save"
    attempts = Attempts(monkeypatch, *[DIED] * 6, DONE, does=lambda number: number == 4 and checkpoint(save, 5))
    attempts.run(config(tmp_path, "restarts: 6\n"))
    assert attempts.waits == [2, 4, 8, 1, 2, 4]
    pinned(attempts.said[0])
    assert attempts.said[3] == f"restart 4 of 6 in 1 s, from {save}/global_step5"
    assert [wait_before(number) for number in (0, 8, 9, 1000)] == [1, 256, 300, 300]


def stopped(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "", saves: int = 0) -> list[str]:
    """Return what is said about a run that is told to end after it has saved a checkpoint or none."""
    attempts = Attempts(
        monkeypatch, Ended(130, asked=True), does=lambda _: saves and checkpoint(folder / "save", saves)
    )
    assert attempts.run(config(folder, more), LOCK) == 130
    return attempts.said


@pytest.mark.parametrize(
    "more", ["", "load: {save}\n", "load: {other}\nfinetune: true\niteration: 7\n"], ids=["new", "same", "other"]
)
def test_a_stopped_run_says_how_to_continue(tmp_path, monkeypatch, more):
    folders = {"save": tmp_path / "save", "other": tmp_path / "other"}
    [line] = stopped(tmp_path, monkeypatch, more.format(**folders), saves=5)
    pinned(line)


@pytest.mark.parametrize("saves", [5, 0])
def test_a_run_whose_rank_has_died_says_how_to_continue(tmp_path, monkeypatch, saves):
    attempts = Attempts(monkeypatch, DIED, does=lambda _: saves and checkpoint(tmp_path / "save", saves))
    assert attempts.run(config(tmp_path), LOCK) == 137
    assert [line.partition(";")[0] for line in attempts.said] == (
        [f"the newest checkpoint is {tmp_path}/save/global_step5"] if saves else []
    )


def test_the_values_that_a_stopped_run_names_can_be_set(tmp_path):
    file = File(
        "my.yml",
        f"{smallest.YAML}save: {tmp_path}\ncheckpoint_factor: 5\nload: {tmp_path}\nfinetune: true\niteration: 7\n",
    )
    made = complete(draft([file], ["iteration=null", "finetune=false"]), 1)
    assert (made.get("iteration"), made.get("finetune")) == (None, False)


def test_a_run_that_stops_before_its_first_checkpoint_says_so(tmp_path, monkeypatch):
    """Checkpoints from before the run are not its own."""
    checkpoint(tmp_path / "save", 3)
    assert stopped(tmp_path, monkeypatch) == ["no checkpoint was written"]


def test_the_shared_memory_of_an_attempt_is_removed(tmp_path, monkeypatch):
    """Only the files of its own user and port; DeepSpeed's name them by user, address, port and rank."""
    monkeypatch.setattr(restarts.shared_buffers, "FOLDER", tmp_path)
    prefix, user = "deepspeed_allreduce_buffer_", os.getuid()
    own = [f"{prefix}{user}_127.0.0.1_1234_{rank}" for rank in (0, 11)]
    others = [f"{prefix}{user + 1}_127.0.0.1_1234_0", f"{prefix}{user}_127.0.0.1_12345_0", f"{prefix}{user}_w_1_1234"]
    for name in (*own, *others, "psm_1234"):
        (tmp_path / name).touch()
    attempts = Attempts(monkeypatch, DONE)
    attempts.run(config(tmp_path / "run", "master_port: 1234\n"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "psm_1234"])


def test_a_run_that_loads_elsewhere_continues_from_its_own_checkpoint(tmp_path, monkeypatch):
    """Also one that starts from an iteration of its own folder, and one that loads only weights."""
    save = tmp_path / "save"
    checkpoint(tmp_path / "other", 100)
    loads = f"load: {tmp_path}/other\niteration: 100\nfinetune: true\nno_load_optim: true\nno_load_rng: true\n"
    attempts = Attempts(monkeypatch, DIED, DIED, DONE, does=lambda number: number == 2 and checkpoint(save, 5))
    attempts.run(config(tmp_path, "restarts: 2\n" + loads))
    first, second, third = attempts.configs
    assert first.values == second.values
    names = ("load", "iteration", "finetune", "no_load_optim", "no_load_rng")
    assert [first.get(name) for name in names] == [str(tmp_path / "other"), 100, True, True, True]
    assert [third.get(name) for name in names] == [str(save), None, False, False, False]
    assert attempts.said[0].startswith(f"restart 1 of 2 in 2 s, from {tmp_path}/other again")


def test_checkpoints_from_before_the_run_are_not_its_own(tmp_path, monkeypatch):
    """It starts from iteration 5 although 10 exists, until it has saved 10 itself."""
    save = tmp_path / "save"
    for iteration in (5, 10):
        checkpoint(save, iteration)

    def save_again(number: int) -> None:
        if number == 2:
            (save / "global_step10").rename(save / "old")
            checkpoint(save, 10)

    attempts = Attempts(monkeypatch, DIED, DIED, DONE, does=save_again)
    attempts.run(config(tmp_path, f"restarts: 2\nload: {save}\niteration: 5\n"))
    assert [config.get("iteration") for config in attempts.configs] == [5, 5, None]


@pytest.mark.parametrize(("run", "loads"), [("mine", True), ("other", False)])
def test_a_checkpoint_is_the_run_s_own_by_what_it_records(tmp_path, monkeypatch, run, loads):
    """Not by whether it is new: its folder may have the inode of one that was removed, or be copied there meanwhile."""
    before = checkpoint(tmp_path / "save", 5, "other")
    if run == "mine":

        def save(number: int) -> None:  # into the same folder
            (before / checkpoint_folder.RUN).write_text(checkpoint_folder.Written(run).to_json())
    else:

        def save(number: int) -> None:
            checkpoint(tmp_path / "save", 5 + number, run)

    attempts = Attempts(monkeypatch, DIED, DONE, does=save)
    attempts.run(config(tmp_path, "restarts: 1\n"), LOCK)
    assert [each.checkpoint.load for each in attempts.configs] == [None, str(tmp_path / "save") if loads else None]


def test_an_optimizer_that_is_not_saved_is_not_loaded(tmp_path):
    checkpoint(tmp_path / "save", 5)
    unsaved = config(tmp_path, "no_save_optim: true\nno_load_optim: true\n")
    assert continued(unsaved, lambda path: True).get("no_load_optim") is True


def of_job(path: Path, job: str) -> None:
    (path / checkpoint_folder.RUN).write_text(json.dumps({"job": job}))


JOB = {"SLURM_CLUSTER_NAME": "one", "SLURM_JOB_ID": "5"}


@pytest.mark.parametrize(("count", "loads"), [(None, False), ("", False), ("0", False), ("1", True), ("2", True)])
@pytest.mark.parametrize("record", ["", "old", "new"])
def test_a_job_that_slurm_queues_again_continues_what_it_has_saved(tmp_path, count, loads, record):
    """Whatever an earlier start has recorded, and when: one may have died before that."""
    environ = JOB if count is None else {**JOB, "SLURM_RESTART_COUNT": count}
    if record:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / RECORD_FILE).touch()
    of_job(checkpoint(tmp_path / "save", 3), "one.4")
    if record == "old":
        os.utime(tmp_path / "run" / RECORD_FILE, (1, 1))
    started = config(tmp_path)
    assert requeued(started, environ).checkpoint.load is None
    assert not continues_job(started, environ)
    of_job(checkpoint(tmp_path / "save", 5), "one.5")
    assert requeued(started, environ).checkpoint.load == (str(tmp_path / "save") if loads else None)
    assert continues_job(started, environ) == loads


@pytest.mark.parametrize("written", ["", "not JSON", "[]", "{}", '{"job": "5"}', '{"job": "one.51"}', '{"job": ""}'])
def test_a_checkpoint_that_names_another_job_or_none_is_not_continued(tmp_path, written):
    path = checkpoint(tmp_path / "save", 5)
    if written:
        (path / checkpoint_folder.RUN).write_text(written)
    for job in (JOB, {}):
        assert requeued(config(tmp_path), {**job, "SLURM_RESTART_COUNT": "1"}).checkpoint.load is None


def test_a_restart_says_which_checkpoint_in_load_it_resumes_from(tmp_path, monkeypatch):
    """Not that no checkpoint has been saved, if `load` is `save` and has one."""
    checkpoint(tmp_path / "save", 3)
    attempts = Attempts(monkeypatch, DIED, DONE)
    attempts.run(config(tmp_path, f"restarts: 1\nload: {tmp_path}/save\n"))
    where = f"from {tmp_path}/save again, at global_step3: this run has saved no checkpoint yet"
    assert attempts.said == [f"restart 1 of 1 in 2 s, {where}"]
