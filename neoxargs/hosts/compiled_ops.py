"""The C++ ops of DeepSpeed on this machine: which are compiled, and which can be."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from neoxargs.base.files import replace_text
from neoxargs.base.problems import Problem

#: The file beside a library that names the torch and DeepSpeed installations it was built with.
BUILT_WITH = "built_with.txt"

#: Op -> the settings that do not need it, as a hint.
ALTERNATIVES = {
    "cpu_adam": "set optimizer: {params: {torch_adam: true}} to use PyTorch's Adam, which needs no compiler",
    "cpu_adagrad": "set zero_optimization: {offload_optimizer: {device: none}}, which needs no compiler",
    "async_io": "set zero_optimization: {offload_optimizer: {device: cpu}, offload_param: {device: cpu}}, which needs "
    "no libaio",
}
#: Op -> the parameters that select it.
ABOUT = {
    "cpu_adam": ("optimizer.type", "zero_optimization.offload_optimizer.device"),
    "cpu_adagrad": ("optimizer.type", "zero_optimization.offload_optimizer.device"),
    "async_io": ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"),
}
#: A minimal program with the requirements of an op, the linker flags for it, and the Debian packages it needs.
_TRIAL_PROGRAM = "#include <Python.h>\nint main() { return 0; }\n", (), "g++ python3-dev"
_NVME_TRIAL_PROGRAM = (
    f"{_TRIAL_PROGRAM[0]}#include <libaio.h>\nint (*submit)(io_context_t, long, iocb **) = io_submit;\n",
    ("-laio",),
    f"{_TRIAL_PROGRAM[2]} libaio-dev",
)


def uncompilable(ops: list[str], environ: Mapping[str, str]) -> Iterator[Problem]:
    """Return a problem for each op that is not compiled and cannot be: no compiler, or no header files."""
    for op in ops:
        program, flags, packages = _NVME_TRIAL_PROGRAM if op == "async_io" else _TRIAL_PROGRAM
        if not is_compiled(op, environ) and (why := _compiler_error(program, flags, environ)):
            hint = f"on Debian or Ubuntu, run apt install {packages}; or {ALTERNATIVES[op]}"
            what = f"DeepSpeed's {op} cannot be compiled on this machine: {why}"
            yield Problem(what, hint=hint, id="op-cannot-compile", about=ABOUT[op])


def cache_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders of torch's extension cache, one per op."""
    chosen = environ.get("TORCH_EXTENSIONS_DIR")
    if chosen:
        return [folder for folder in Path(chosen).glob("*") if folder.is_dir()]
    cache = Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return [folder for folder in cache.glob(f"torch_extensions/{python}_*/*") if folder.is_dir()]


def record_installation(folder: Path) -> None:
    """Write to a folder of the cache which installations its library was built with."""
    replace_text(folder / BUILT_WITH, _installation())


def is_compiled(op: str, environ: Mapping[str, str]) -> bool:
    """Return whether there is a library built with these installations; the ranks would recompile any other."""
    package = _package("deepspeed")
    # Installed with the op compiled (DS_BUILD_OPS=1).
    is_installed = package is not None and any(package.parent.glob(f"ops/*/{op}_op*.so"))
    return is_installed or any(folder.name == op and _is_ours(folder) for folder in cache_folders(environ))


def _is_ours(folder: Path) -> bool:
    try:
        built_with = (folder / BUILT_WITH).read_text(encoding="utf-8")
    except OSError:
        return False
    return (folder / f"{folder.name}.so").exists() and built_with == _installation()


def _installation() -> str:
    """Return paths and times of torch and DeepSpeed, because ninja recompiles when their headers change."""
    packages = [package for name in ("torch", "deepspeed") if (package := _package(name))]
    return "".join(f"{package} {package.stat().st_mtime_ns}\n" for package in packages)


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    return Path(spec.origin) if spec and spec.origin else None


def _compiler_error(program: str, flags: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return the first error of compiling a program; empty if it compiles."""
    compiler = environ.get("CXX", "c++")
    words = [*shlex.split(compiler), "-x", "c++", "-", f"-I{sysconfig.get_path('include')}", "-o", os.devnull]
    words += [*shlex.split(environ.get("CFLAGS", "")), *shlex.split(environ.get("LDFLAGS", "")), *flags]
    try:
        done = subprocess.run(words, input=program, env=dict(environ), capture_output=True, text=True, timeout=60)
    except OSError:
        return f"the compiler {compiler} is not installed"
    except subprocess.TimeoutExpired:
        return ""  # compile_op has its own limit
    # "cannot find" is the linker's message for a missing library.
    errors = [line for line in done.stderr.splitlines() if "error" in line or "cannot find" in line]
    return (errors or [f"{compiler} failed without an error message"])[0].strip() if done.returncode else ""
