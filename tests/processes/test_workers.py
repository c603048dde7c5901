"""Worker processes that end with their parent, and not by a signal to the whole run."""

import multiprocessing
import os
import signal
import time

import pytest

from neoxargs.processes.workers import end_workers, obey_the_parent_only


def wait_for_the_end(started) -> None:
    obey_the_parent_only()
    started.set()
    time.sleep(600)


@pytest.fixture
def worker():
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=wait_for_the_end, args=(started,), daemon=True)
    process.start()
    assert started.wait(60)
    yield process
    process.kill()
    process.join()


def send_as_somebody_else(pid, number) -> None:
    other = os.fork()
    if other == 0:
        os.kill(pid, number)
        os._exit(0)
    os.waitpid(other, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_somebody_elses_signal_is_ignored(worker, number) -> None:
    send_as_somebody_else(worker.pid, number)
    worker.join(1.5)  # longer than the worker takes to look for its parent
    assert worker.is_alive()


def test_the_parents_sigterm_ends_it(worker) -> None:
    worker.terminate()
    worker.join(60)
    assert worker.exitcode == 0


def test_a_sigterm_that_merges_with_somebody_elses_is_repeated(worker) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    send_as_somebody_else(worker.pid, signal.SIGTERM)
    worker.terminate()
    os.kill(worker.pid, signal.SIGCONT)
    worker.join(1.5)
    assert worker.is_alive()
    end_workers()
    assert worker.exitcode == 0
