"""C++ ops are compiled once before the ranks start, and no step of that can wait forever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neoxargs.hosts import compiled_ops
from neoxargs.launch.start import compile_ops
from tests.support.refused import refused
from tests.support.snapshots import pinned


@pytest.fixture
def cache(tmp_path: Path, monkeypatch):
    """torch's extension cache with a library for one op, and no waiting for other machines."""
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "cpu_adam.so").touch()
    compiled_ops.record_installation(tmp_path / "cpu_adam")
    monkeypatch.setattr(compile_ops, "STALE_AFTER", -1)
    return tmp_path


def prepare(cache: Path, names: list[str], limit: float = 30.0) -> list[str]:
    said: list[str] = []
    compile_ops.compile_missing(names, {**os.environ, "TORCH_EXTENSIONS_DIR": str(cache)}, said.append, limit)
    return said


def test_a_compiled_op_is_not_compiled_again(cache):
    assert prepare(cache, ["cpu_adam"]) == []


@pytest.mark.parametrize("other", ["", "/another/venv/torch/__init__.py 17\n"])
def test_an_op_of_another_installation_is_compiled_again(cache, builder, other):
    (cache / "cpu_adam" / compiled_ops.BUILT_WITH).write_text(other)
    builder("")
    assert prepare(cache, ["cpu_adam"])[0].startswith("compiling DeepSpeed's cpu_adam")


def test_an_op_installed_with_deepspeed_is_not_compiled(tmp_path, monkeypatch):
    (tmp_path / "ops" / "aio").mkdir(parents=True)
    (tmp_path / "ops" / "aio" / "async_io_op.cpython-311-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(compiled_ops, "_package", lambda name: tmp_path / "__init__.py")
    assert prepare(tmp_path, ["async_io"]) == []


def test_a_stale_lock_is_removed_with_a_message_also_for_an_op_that_is_not_needed(cache):
    (cache / "other").mkdir()
    locks = [cache / "cpu_adam" / "lock", cache / "other" / "lock"]
    for lock in locks:
        lock.touch()
    said = prepare(cache, ["cpu_adam"])
    assert not any(lock.exists() for lock in locks)
    assert all(any(str(lock) in line and "removed" in line for line in said) for lock in locks)


def test_a_recent_lock_may_belong_to_another_machine(cache, monkeypatch):
    """Until nothing in its folder changes any more."""
    monkeypatch.setattr(compile_ops, "STALE_AFTER", 1000)
    folder = cache / "cpu_adam"
    (folder / "lock").touch()

    def pass_time(_: float) -> None:
        for path in folder.iterdir():
            os.utime(path, (1, 1))

    monkeypatch.setattr(compile_ops.time, "sleep", pass_time)
    said = prepare(cache, ["cpu_adam"])
    assert "waiting" in said[0] and "removed" in said[1]


HOLD = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)
print("held", flush=True)
sys.stdin.read()
os.remove(sys.argv[1])
"""


def hold(lock: Path) -> subprocess.Popen[str]:
    """A process that holds a lock as torch does, until its input is closed."""
    words = [sys.executable, "-c", HOLD, str(lock)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def test_a_lock_held_by_a_running_process_is_waited_for(cache, monkeypatch):
    lock = cache / "cpu_adam" / "lock"
    with hold(lock) as process:
        assert process.stdin and compile_ops.lock_holders(lock) == [process.pid]
        monkeypatch.setattr(compile_ops.time, "sleep", lambda _: process.stdin.close())
        monkeypatch.setattr(compile_ops, "STALE_AFTER", 1000)  # the process removes its lock just after it lets it go
        assert len(prepare(cache, ["cpu_adam"])) == 1
        monkeypatch.undo()
        assert process.wait() == 0


def test_waiting_for_a_running_process_has_a_limit(cache):
    lock = cache / "cpu_adam" / "lock"
    with hold(lock) as process:
        pinned(refused(prepare, cache, ["cpu_adam"], limit=1.0))
        process.kill()


@pytest.fixture
def builder(monkeypatch, tmp_path):
    """Run a program in place of `python -m neoxargs.train.process.deepspeed_ops`."""

    def install(program: str) -> None:
        start = subprocess.Popen
        words = [sys.executable, "-c", program, str(tmp_path)]
        monkeypatch.setattr(subprocess, "Popen", lambda _, **settings: start(words, **settings))

    return install


def test_building_is_announced_and_timed(cache, builder):
    builder("import sys, pathlib")
    said = prepare(cache, ["async_io"])
    assert said[0].startswith("compiling DeepSpeed's async_io")
    assert said[1].startswith("compiled async_io in")


def test_a_failed_build_shows_the_compilers_last_lines(cache, builder):
    builder("import sys; print('fatal error: omp.h'); sys.exit(1)")
    pinned(refused(prepare, cache, ["async_io"]))


def test_a_build_is_stopped_at_the_limit_and_leaves_no_lock(cache, builder):
    (cache / "async_io").mkdir()
    builder("import sys, pathlib, time; pathlib.Path(sys.argv[1], 'async_io', 'lock').touch(); time.sleep(60)")
    pinned(refused(prepare, cache, ["async_io"], limit=3.0))
    assert not (cache / "async_io" / "lock").exists()
