"""Error reports of ranks: each message is printed once, by the first rank that has it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed

from neoxargs.base.problems import Problem, Problems, render, report
from neoxargs.config.config import Config
from neoxargs.processes import failures

#: This rank's configuration, whose places problems get; empty until it is decoded.
config = Config({})


def report_failure(error: BaseException) -> None:
    """Print an error to standard error: Problems as `deepy check` prints them, anything else with its traceback."""
    failures.record_exception(error)
    if isinstance(error, Problems):
        print_once(render([config.located(problem) for problem in error.problems]))
    elif failures.cause_of(error) is failures.Cause.LOST_CONNECTION:
        print(f"[rank {_rank()}] lost the connection to another rank, which has exited", file=sys.stderr, flush=True)
    else:
        trace = "".join(traceback.format_exception(error))
        print_once(f"[rank {_rank()}] {trace}", key=f"{type(error).__name__}: {error}")


def warn(problems: Sequence[Problem]) -> None:
    """Print problems that do not end the run."""
    report([config.located(problem).as_warning() for problem in problems])


def print_once(text: str, key: str = "") -> None:
    """Print to standard error, or only to this rank's log if another rank has printed a text with the same key.

    key: the text itself if empty.
    """
    if _is_first(key or text):
        print(text, file=sys.stderr, flush=True)
    else:
        failures.append_log(text)


def _is_first(key: str) -> bool:
    if not torch.distributed.is_initialized():
        return _rank() == 0
    store = torch.distributed.distributed_c10d._get_default_store()
    try:
        # Not the timeout of collectives: a rank that reports a failure should exit soon, even if rank 0 does not
        # answer.
        store.set_timeout(timedelta(seconds=5))
        return bool(store.add(f"said: {key}", 1) == 1)  # add is atomic: exactly one rank gets 1
    except RuntimeError:  # rank 0 holds the store and has exited; it has reported the error itself
        return False


def _rank() -> int:
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdecimal() else 0
