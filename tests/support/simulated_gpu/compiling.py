"""Compiles the simulated GPU once for each torch and source, into the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).with_name("csrc")
#: It uses names of torch that are not public, so another version may need other code.
TESTED_TORCH = "2.13.0"


class Unavailable(Exception):
    """Why the simulated GPU is not available on this machine."""


@cache
def library() -> Path:
    """Return the path of the compiled device; raises Unavailable."""
    compiler = _require()
    folder = _cache_folder() / _key()
    folder.mkdir(parents=True, exist_ok=True)
    found = folder / "simulated_gpu.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be compiling it
        if not found.exists():
            _compile(compiler, found)
    return found


def torch_folder() -> Path:
    """Return the folder that torch is installed in, without importing it."""
    spec = find_spec("torch")
    assert spec and spec.origin
    return Path(spec.origin).parent


def _require() -> str:
    """Return the C++ compiler; raises Unavailable if it or a fitting torch is missing."""
    try:
        installed, _, build = version("torch").partition("+")
    except PackageNotFoundError:
        raise Unavailable("torch is not installed") from None
    if installed != TESTED_TORCH:
        raise Unavailable(f"the simulated GPU is made for torch {TESTED_TORCH}, not {installed}")
    if (torch_folder() / "lib" / "libtorch_cuda.so").exists():
        raise Unavailable(f"the simulated GPU needs torch's build for CPUs, not {installed}+{build}")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise Unavailable("no C++ compiler for the simulated GPU: neither g++ nor clang++")
    return compiler


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "neoxargs" / "simulated_gpu"


def _key() -> str:
    text = [version("torch"), *(path.read_text() for path in sorted(SOURCES.iterdir()))]
    return hashlib.sha256("\0".join(text).encode()).hexdigest()[:16]


def _compile(compiler: str, target: Path) -> None:
    torch = torch_folder()
    include, lib = torch / "include", torch / "lib"
    unfinished = target.with_suffix(".unfinished")
    command = [
        compiler, "-shared", "-fPIC", "-O0", "-w", "-std=c++20", str(SOURCES / "main.cpp"), "-o", str(unfinished),
        f"-I{include}", f"-I{include}/torch/csrc/api/include", f"-L{lib}", f"-Wl,-rpath,{lib}", "-lc10", "-ltorch_cpu",
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"the simulated GPU does not compile\n{' '.join(command)}\n{result.stderr[-4000:]}")
    unfinished.rename(target)
