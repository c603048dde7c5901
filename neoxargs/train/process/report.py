"""What a rank says when it cannot go on: each sentence once, by whichever rank comes to it first."""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta

import torch.distributed

from neoxargs.launch.processes import failures
from neoxargs.problems import Problems, render


def report_failure(error: BaseException) -> None:
    """Word an error on standard error: a problem as `deepy check` words it, anything else with its traceback."""
    failures.record_exception(error)
    if isinstance(error, Problems):
        print_once(render(error.problems))
    elif failures.cause_of(error) is failures.Cause.LOST_CONNECTION:
        print(f"[rank {_rank()}] lost the connection to another rank, which has exited", file=sys.stderr, flush=True)
    else:
        trace = "".join(traceback.format_exception(error))
        print_once(f"[rank {_rank()}] {trace}", key=f"{type(error).__name__}: {error}")


def print_once(text: str, key: str = "") -> None:
    """Print on standard error unless another rank has said the same (texts with an equal key count as the same)."""
    if _is_first(key or text):
        print(text, file=sys.stderr, flush=True)
    else:
        failures.append_log(text)


def _is_first(key: str) -> bool:
    if not torch.distributed.is_initialized():
        return _rank() == 0
    store = torch.distributed.distributed_c10d._get_default_store()
    try:
        store.set_timeout(timedelta(seconds=5))
        return bool(store.add(f"said: {key}", 1) == 1)
    except RuntimeError:  # rank 0, which keeps the store, has ended; it will have said it
        return False


def _rank() -> int:
    return int(os.environ.get("RANK", 0))
