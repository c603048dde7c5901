"""The C++ ops of DeepSpeed that tests load: `python -m tests.support.swap_ops` compiles those that are not there."""

from __future__ import annotations

import os

from neoxargs.hosts.compiled_ops import uncompilable
from neoxargs.launch.start.compile_ops import compile_missing

OPS = ["cpu_adam", "async_io"]


def why_uncompilable() -> str:
    """Return why one of them is not compiled and cannot be on this machine; empty if there is none."""
    return next((f"{problem.what} ({problem.hint})" for problem in uncompilable(OPS, os.environ)), "")


def compile_all() -> None:
    compile_missing(OPS, os.environ, print)


if __name__ == "__main__":
    if why := why_uncompilable():
        print(why)
    else:
        compile_all()
