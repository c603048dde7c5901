"""What torch's flight recorder has recorded names the rank that lacks, the operation and the line that called it.

gloo's records are written by torch. NCCL's have the same format, in which this test gives them the ranks of a group and
the names that NCCL's operations have.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from neoxargs.processes import failures, flight_records
from neoxargs.processes.watch import Watch
from neoxargs.train.process import flight_recorder
from tests.support import hanging
from tests.support.ports import free_port
from tests.support.ranks import run_ranks
from tests.support.snapshots import pinned


def waited(folder: str) -> str:
    """Begin an operation, before which the last rank writes its record, and wait for it; return this line's place."""
    rank, watch = dist.get_rank(), Watch()
    flight_recorder.write_when_asked(failures.CurrentRank(Path(folder), rank, watch=watch))
    group = dist.new_group(list(range(dist.get_world_size())), group_desc="tensor")
    dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()
    work = begun(group) if rank < 2 else None
    assert not flight_records.record_file(Path(folder), rank).exists()
    watch.ask_for_record()
    until(lambda: all(_complete(flight_records.record_file(Path(folder), other)) for other in range(3)))
    (work or begun(group)).wait()
    return f"{__file__}:{begun.__code__.co_firstlineno + 1}"


def begun(group: Any) -> Any:
    return dist.all_reduce(torch.ones(5), group=group, async_op=True)


def until(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.05)


def _complete(file: Path) -> bool:
    try:
        return bool(flight_records.read(file))
    except (ValueError, OSError):
        return False


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Records of three ranks, the last of which has not begun an operation, and the line that begins it."""
    folder = tmp_path_factory.mktemp("records")
    places = run_ranks(waited, 3, str(folder))
    assert len(set(places)) == 1
    return folder, places[0]


def test_a_rank_that_has_not_begun_an_operation_is_named_with_it_and_its_line(written: tuple[Path, str]) -> None:
    folder, place = written
    [said] = flight_records.sentences(folder)
    assert said.count(place) == 1
    pinned(plain(said))


def plain(text: str) -> str:
    """Return a sentence without the lines of files and the names of process groups."""
    return re.sub("process group [^ ,]+", "process group G", re.sub(r"\S*/(\w+\.py):\d+", r"\1:LINE", text))


def as_of_nccl(folder: Path, changed: Callable[[int, dict[str, Any]], None]) -> Iterator[str]:
    """Return what is said of these records with NCCL's names, the group's ranks, and a change of each rank's."""
    for rank in range(3):
        file = flight_records.record_file(folder, rank)
        record = pickle.loads(file.read_bytes())
        for entry in record["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("gloo", "nccl")
            name, description = entry["process_group"]
            record["pg_config"][name] = {"name": name, "desc": description, "ranks": "[0, 1, 2]"}
        changed(rank, record)
        file.write_bytes(pickle.dumps(record, protocol=2))
    return flight_records.sentences(folder)


@pytest.fixture
def copied(written: tuple[Path, str], tmp_path: Path) -> Path:
    for rank in range(3):
        name = flight_records.record_file(written[0], rank).name
        (tmp_path / name).write_bytes((written[0] / name).read_bytes())
    return tmp_path


def test_of_nccl(copied: Path) -> None:
    [said] = as_of_nccl(copied, lambda rank, record: None)
    pinned(plain(said))


def test_a_rank_that_has_begun_nothing_in_a_group(copied: Path) -> None:
    def without(rank: int, record: dict[str, Any]) -> None:
        if rank == 2:
            record["entries"] = [each for each in record["entries"] if each["process_group"][1] != "tensor"]

    pinned(plain("\n".join(as_of_nccl(copied, without))))


def _repeated(record: dict[str, Any], **values: Any) -> None:
    """Give a rank an unfinished operation of the group after its last one, unless it has one."""
    last = next(entry for entry in reversed(record["entries"]) if entry["process_group"][1] == "tensor")
    if last["retired"]:
        last = {**last, "retired": False, "collective_seq_id": last["collective_seq_id"] + 1}
        record["entries"].append(last)
    last.update(values)


def test_ranks_that_began_different_operations(copied: Path) -> None:
    def differ(rank: int, record: dict[str, Any]) -> None:
        _repeated(record, input_sizes=[[5]], **({"profiling_name": "nccl:broadcast"} if rank == 2 else {}))

    [said] = as_of_nccl(copied, differ)
    pinned(plain(said))


def test_an_operation_that_all_ranks_began(copied: Path) -> None:
    [said] = as_of_nccl(copied, lambda rank, record: _repeated(record, input_sizes=[[5]]))
    pinned(plain(said))


def test_a_message_that_did_not_arrive(copied: Path) -> None:
    def receives(rank: int, record: dict[str, Any]) -> None:
        values = {"is_p2p": True, "p2p_seq_id": 7, "profiling_name": "nccl:recv 1<-0"}
        _repeated(record, **(values if rank == 1 else {"state": "completed"}))

    [said] = as_of_nccl(copied, receives)
    pinned(plain(said))


@pytest.mark.parametrize(
    "content",
    [b"", b"no pickle", pickle.dumps({"entries": 1}), pickle.dumps(Watch.late)],
    ids=["empty", "no pickle", "incomplete", "a function"],
)
def test_a_record_that_is_damaged_is_left_out(copied: Path, content: bytes) -> None:
    """One that is not of plain values is not loaded: a pickle can run any code."""
    file = flight_records.record_file(copied, 2)
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is no record of torch's flight recorder"):
        flight_records.read(file)
    [said] = flight_records.sentences(copied)
    pinned(plain(said))


def test_nothing_is_said_without_records(tmp_path: Path) -> None:
    assert list(flight_records.sentences(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rank_that_sleeps_is_told_with_its_step_and_what_the_other_one_waits_for(tmp_path: Path) -> None:
    environment = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }  # fmt: skip
    command = [sys.executable, "-m", hanging.__name__, str(tmp_path)]
    own = [{**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    with ExitStack() as stack:
        ranks = [stack.enter_context(subprocess.Popen(command, env=each)) for each in own]
        try:
            assert [rank.wait(250) for rank in ranks] == [-signal.SIGKILL] * 2
        finally:
            for rank in ranks:
                rank.kill()
    _, said = failures.summarize(tmp_path)
    pinned(said[0].replace(os.uname().nodename, "HOST"))
    [lacking] = [line for line in said if "did not begin" in line]
    assert "/neoxargs/train/" in lacking
    pinned(re.sub(r"number \d+", "number N", plain(lacking)))
