"""What every test relies on: CPU only, one thread, third parties' own warnings let through."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.support import selection, shows, snapshots

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As for an installed package: otherwise every process compiles the sources, which takes longer than `deepy check`.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Under nohup, or with & in a script, all child processes would ignore the SIGHUP and SIGINT that some tests send.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.fixtures"]
#: Warnings that torch raises about its own code while DeepSpeed is imported.
THIRD_PARTY = (r"ignore:`torch\.jit\.script_method` is deprecated:DeprecationWarning",)


def pytest_configure(config: pytest.Config) -> None:
    for line in THIRD_PARTY:
        config.addinivalue_line("filterwarnings", line)


def pytest_addoption(parser: pytest.Parser) -> None:
    selection.add_option(parser)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return selection.processes(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import all tests, and so torch and DeepSpeed, without visiting their objects in every collection of garbage."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[shows.SHOWN] = shows.collect(items)
    selection.select(config, items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    snapshots.begin(item)
