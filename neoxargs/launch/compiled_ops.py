"""C++ that DeepSpeed compiles at first use, compiled once and in sight before the ranks start.

Left to the ranks, a compilation shows nothing for a minute or more, takes 4.5 GB, and if it is killed its `lock`
file makes every later run wait for ever without a word.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from neoxargs.problems import Problem, Problems

#: Compiling takes 30 s to 8 minutes on the slowest and busiest machine measured; who waits longer waits for nothing.
TIME_LIMIT = 15 * 60
#: A lock that no process on this machine holds may be held by another one that shares the home directory; a
#: compilation there changes files in its folder at least this often.
QUIET = 120
#: The file beside a library that names the torch and the DeepSpeed it was built with.
BUILT_WITH = "built_with.txt"

#: How to do without an op.
_WITHOUT = {
    "cpu_adam": "optimizer: {params: {torch_adam: true}} uses PyTorch's Adam, which needs no compiler",
    "cpu_adagrad": "zero_optimization: {offload_optimizer: {device: none}} needs no compiler",
    "async_io": "zero_optimization: {offload_optimizer: {device: cpu}, offload_param: {device: cpu}} needs no libaio",
}
#: The parameters that choose an op.
_ABOUT = {
    "cpu_adam": ("optimizer.type", "zero_optimization.offload_optimizer.device"),
    "cpu_adagrad": ("optimizer.type", "zero_optimization.offload_optimizer.device"),
    "async_io": ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"),
}
#: The smallest program that needs what an op needs, the flags to link it, and Debian's packages with all that.
_TRIAL_PROGRAM = "#include <Python.h>\nint main() { return 0; }\n", (), "g++ python3-dev"
_NVME_TRIAL_PROGRAM = (
    f"{_TRIAL_PROGRAM[0]}#include <libaio.h>\nint (*submit)(io_context_t, long, iocb **) = io_submit;\n",
    ("-laio",),
    f"{_TRIAL_PROGRAM[2]} libaio-dev",
)

Say = Callable[[str], None]


def uncompilable(ops: list[str], environ: Mapping[str, str]) -> Iterator[Problem]:
    """Why ops that are not built cannot be: no compiler, no header files."""
    for op in ops:
        program, flags, packages = _NVME_TRIAL_PROGRAM if op == "async_io" else _TRIAL_PROGRAM
        if not _is_compiled(op, environ) and (why := _compiler_error(program, flags, environ)):
            hint = f"on Debian and Ubuntu: apt install {packages}; {_WITHOUT[op]}"
            what = f"DeepSpeed's {op} cannot be compiled on this machine: {why}"
            yield Problem(what, hint=hint, id="op-cannot-compile", about=_ABOUT[op])


def compile_missing(ops: list[str], environ: Mapping[str, str], say: Say, limit: float = TIME_LIMIT) -> None:
    """Remove stale locks, wait for live ones, build what is missing; raises Problems."""
    for folder in _cache_folders(environ):
        lock = folder / "lock"
        if lock.exists() and (folder.name in ops or _stale(lock)):
            _release(lock, say, limit)
    for op in ops:
        if not _is_compiled(op, environ):
            compile_op(op, environ, say, limit)


def compile_op(op: str, environ: Mapping[str, str], say: Say, limit: float = TIME_LIMIT) -> None:
    """Compile one op in a process of its own, which is stopped with all its compilers at the limit."""
    usually = "a few minutes" if op == "async_io" else "30 to 90 s"
    say(f"compiling DeepSpeed's {op} for this machine, once (usually {usually}) ...")
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "neoxargs.train.process.ops", op], env=dict(environ), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
    except BaseException as stop:
        _kill_compilers(process, environ, op)
        if isinstance(stop, subprocess.TimeoutExpired):
            raise _failure(op, f"compiling DeepSpeed's {op} took more than {limit:.0f} s and was stopped") from None
        raise
    if process.returncode:
        tail = "\n".join(output.strip().splitlines()[-15:])
        raise _failure(op, f"DeepSpeed's {op} does not compile here:\n{tail}")
    say(f"compiled {op} in {time.monotonic() - begin:.0f} s")


def lock_holders(lock: Path) -> list[int] | None:
    """Processes that have the file open, as torch keeps it while it compiles; None where the system cannot tell."""
    if not Path("/proc/self/fd").exists():
        return None
    pids = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(descriptor) == str(lock.resolve()):
                pids.append(int(descriptor.parts[2]))
        except OSError:
            continue  # gone meanwhile, or another user's
    return pids


def _release(lock: Path, say: Say, limit: float) -> None:
    """Wait until whoever compiles has finished, or nobody is left who could."""
    begin = time.monotonic()
    if not _stale(lock):
        say(f"{lock} says that another process is compiling {lock.parent.name}; waiting until it has finished ...")
    while lock.exists() and not _stale(lock):
        if time.monotonic() - begin > limit:
            what = f"{lock} has been held for more than {limit:.0f} s"
            hint = "stop the process that holds it, or delete the file"
            raise Problems([Problem(what, hint=hint, id="op-lock-held")])
        time.sleep(0.5)
    if lock.exists():
        lock.unlink(missing_ok=True)
        say(f"removed {lock}: a compilation was killed and its lock would have blocked every run")


def _stale(lock: Path) -> bool:
    if lock_holders(lock):
        return False
    try:
        return time.time() - max(entry.stat().st_mtime for entry in (lock, *lock.parent.iterdir())) > QUIET
    except OSError:
        return False  # files come and go: somebody compiles


def _cache_folders(environ: Mapping[str, str]) -> list[Path]:
    """The folders of torch's extension cache, one per op."""
    chosen = environ.get("TORCH_EXTENSIONS_DIR")
    if chosen:
        return [folder for folder in Path(chosen).glob("*") if folder.is_dir()]
    cache = Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return [folder for folder in cache.glob(f"torch_extensions/{python}_*/*") if folder.is_dir()]


def record_installation(folder: Path) -> None:
    """Note in a folder of the cache which installation its library was built with."""
    (folder / BUILT_WITH).write_text(_installation(), encoding="utf-8")


def _is_compiled(op: str, environ: Mapping[str, str]) -> bool:
    """Is there a library, and of this installation? Any other one would be compiled anew by the ranks."""
    return _is_installed(op) or any(folder.name == op and _is_ours(folder) for folder in _cache_folders(environ))


def _is_ours(folder: Path) -> bool:
    try:
        built_with = (folder / BUILT_WITH).read_text(encoding="utf-8")
    except OSError:
        return False
    return (folder / f"{folder.name}.so").exists() and built_with == _installation()


def _is_installed(op: str) -> bool:
    """Did whoever installed DeepSpeed have the op compiled with it (DS_BUILD_OPS=1)?"""
    package = _package("deepspeed")
    return package is not None and any(package.parent.glob(f"ops/*/{op}_op*.so"))


def _installation() -> str:
    """Where torch and DeepSpeed lie and since when: by paths and times of their headers ninja decides to compile."""
    packages = [package for name in ("torch", "deepspeed") if (package := _package(name))]
    return "".join(f"{package} {package.stat().st_mtime_ns}\n" for package in packages)


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    return Path(spec.origin) if spec and spec.origin else None


def _compiler_error(program: str, flags: Iterable[str], environ: Mapping[str, str]) -> str:
    """The compiler's first complaint about a program; empty if there is none."""
    compiler = environ.get("CXX", "c++")
    words = [*shlex.split(compiler), "-x", "c++", "-", f"-I{sysconfig.get_path('include')}", "-o", os.devnull]
    words += [*shlex.split(environ.get("CFLAGS", "")), *shlex.split(environ.get("LDFLAGS", "")), *flags]
    try:
        done = subprocess.run(words, input=program, env=dict(environ), capture_output=True, text=True, timeout=60)
    except OSError:
        return f"there is no compiler {compiler}"
    except subprocess.TimeoutExpired:
        return ""  # the build has a limit of its own
    errors = [line for line in done.stderr.splitlines() if "error" in line or "cannot find" in line]
    return (errors or [f"{compiler} fails"])[0].strip() if done.returncode else ""


def _kill_compilers(process: subprocess.Popen[str], environ: Mapping[str, str], op: str) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for folder in _cache_folders(environ):
        if folder.name == op and not lock_holders(folder / "lock"):
            (folder / "lock").unlink(missing_ok=True)


def _failure(op: str, what: str) -> Problems:
    return Problems([Problem(what, hint=_WITHOUT[op], id="op-cannot-compile", about=_ABOUT[op])])
