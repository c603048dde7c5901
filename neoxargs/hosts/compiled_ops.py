"""Compiles the C++ ops of DeepSpeed once, before the ranks start, instead of at their first use.

A compilation by the ranks shows no message for a minute or more and takes 4.5 GB of memory. If it is killed, its `lock`
file makes every later run wait forever without a message.
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

from neoxargs.base.problems import Problem, Problems
from neoxargs.processes import interrupts
from neoxargs.processes.process_tree import signal_group

#: Seconds. Compiling took 30 s to 8 minutes on the machines measured while idle, and more than 15 on a busy one.
TIME_LIMIT = 30 * 60
#: Seconds. A lock that no process of this machine holds may belong to another machine with the same home directory; a
#: compilation there changes files in its folder at least this often.
STALE_AFTER = 120
#: The file beside a library that names the torch and DeepSpeed installations it was built with.
BUILT_WITH = "built_with.txt"

#: Op -> the settings that do not need it, as a hint.
_ALTERNATIVES = {
    "cpu_adam": "set optimizer: {params: {torch_adam: true}} to use PyTorch's Adam, which needs no compiler",
    "cpu_adagrad": "set zero_optimization: {offload_optimizer: {device: none}}, which needs no compiler",
    "async_io": "set zero_optimization: {offload_optimizer: {device: cpu}, offload_param: {device: cpu}}, which needs "
    "no libaio",
}
#: Op -> the parameters that select it.
_ABOUT = {
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

Say = Callable[[str], None]


def uncompilable(ops: list[str], environ: Mapping[str, str]) -> Iterator[Problem]:
    """Return a problem for each op that is not compiled and cannot be: no compiler, or no header files."""
    for op in ops:
        program, flags, packages = _NVME_TRIAL_PROGRAM if op == "async_io" else _TRIAL_PROGRAM
        if not _is_compiled(op, environ) and (why := _compiler_error(program, flags, environ)):
            hint = f"on Debian or Ubuntu, run apt install {packages}; or {_ALTERNATIVES[op]}"
            what = f"DeepSpeed's {op} cannot be compiled on this machine: {why}"
            yield Problem(what, hint=hint, id="op-cannot-compile", about=_ABOUT[op])


def compile_missing(ops: list[str], environ: Mapping[str, str], say: Say, limit: float = TIME_LIMIT) -> None:
    """Remove stale locks, wait for those in use, and compile the missing ops; raises Problems."""
    for folder in _cache_folders(environ):
        lock = folder / "lock"
        if lock.exists() and (folder.name in ops or _stale(lock)):
            _release(lock, say, limit)
    for op in ops:
        if not _is_compiled(op, environ):
            compile_op(op, environ, say, limit)


def compile_op(op: str, environ: Mapping[str, str], say: Say, limit: float = TIME_LIMIT) -> None:
    """Compile one op in a child process, which is killed with its compilers after `limit` seconds."""
    usually = "a few minutes" if op == "async_io" else "30 to 90 s"
    say(f"compiling DeepSpeed's {op} once for this machine, which usually takes {usually} ...")
    begin = time.monotonic()
    process = None
    try:
        with interrupts.ignored_by_children():
            process = _start_compilation(op, environ)
        output, _ = process.communicate(timeout=limit)
    # Ctrl-C too: a lock file that stays behind would make every later run wait.
    except BaseException as stop:
        if process:
            _kill_compilers(process, environ, op)
        if isinstance(stop, subprocess.TimeoutExpired):
            what = f"the compilation of DeepSpeed's {op} did not finish within {limit:.0f} s and was stopped"
            raise _failure(op, what) from None
        raise
    if process.returncode:
        tail = "\n".join(output.strip().splitlines()[-15:])
        raise _failure(op, f"DeepSpeed's {op} does not compile on this machine:\n{tail}")
    say(f"compiled {op} in {time.monotonic() - begin:.0f} s")


def _start_compilation(op: str, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        # A session of its own, with which ninja and the compilers are killed too.
        [sys.executable, "-m", "neoxargs.train.process.ops", op], env=dict(environ), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip


def lock_holders(lock: Path) -> list[int] | None:
    """Return the processes that have a file open, as torch does while it compiles; None if there is no /proc."""
    if not Path("/proc/self/fd").exists():
        return None
    pids = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            # torch keeps the file open while it compiles, so an open descriptor means that it is in use.
            if os.readlink(descriptor) == str(lock.resolve()):
                pids.append(int(descriptor.parts[2]))
        except OSError:
            continue  # the process has ended, or belongs to another user
    return pids


def _release(lock: Path, say: Say, limit: float) -> None:
    """Wait until the process that holds a lock has finished, then remove the lock if it is still there."""
    begin = time.monotonic()
    if not _stale(lock):
        say(f"another process is compiling {lock.parent.name}; waiting until it releases the lock file {lock} ...")
    while lock.exists() and not _stale(lock):
        if time.monotonic() - begin > limit:
            what = f"the lock file {lock} has been held for more than {limit:.0f} s"
            hint = "stop the process that holds the lock file, or delete the file"
            raise Problems([Problem(what, hint=hint, id="op-lock-held")])
        time.sleep(0.5)
    if lock.exists():
        lock.unlink(missing_ok=True)
        say(
            f"removed the lock file {lock}, which was left behind by a compilation that was killed; "
            "every later run would have waited for it"
        )


def _stale(lock: Path) -> bool:
    if lock_holders(lock):
        return False
    try:
        return time.time() - max(entry.stat().st_mtime for entry in (lock, *lock.parent.iterdir())) > STALE_AFTER
    except OSError:
        return False  # a file has just been removed: a compilation is running


def _cache_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders of torch's extension cache, one per op."""
    chosen = environ.get("TORCH_EXTENSIONS_DIR")
    if chosen:
        return [folder for folder in Path(chosen).glob("*") if folder.is_dir()]
    cache = Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return [folder for folder in cache.glob(f"torch_extensions/{python}_*/*") if folder.is_dir()]


def record_installation(folder: Path) -> None:
    """Write to a folder of the cache which installations its library was built with."""
    (folder / BUILT_WITH).write_text(_installation(), encoding="utf-8")


def _is_compiled(op: str, environ: Mapping[str, str]) -> bool:
    """Return whether there is a library built with these installations; the ranks would recompile any other."""
    return _is_installed(op) or any(folder.name == op and _is_ours(folder) for folder in _cache_folders(environ))


def _is_ours(folder: Path) -> bool:
    try:
        built_with = (folder / BUILT_WITH).read_text(encoding="utf-8")
    except OSError:
        return False
    return (folder / f"{folder.name}.so").exists() and built_with == _installation()


def _is_installed(op: str) -> bool:
    """Return whether DeepSpeed was installed with the op compiled (DS_BUILD_OPS=1)."""
    package = _package("deepspeed")
    return package is not None and any(package.parent.glob(f"ops/*/{op}_op*.so"))


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


def _kill_compilers(process: subprocess.Popen[str], environ: Mapping[str, str], op: str) -> None:
    signal_group(process.pid, signal.SIGKILL)
    process.communicate()
    for folder in _cache_folders(environ):
        if folder.name == op and not lock_holders(folder / "lock"):
            (folder / "lock").unlink(missing_ok=True)


def _failure(op: str, what: str) -> Problems:
    return Problems([Problem(what, hint=_ALTERNATIVES[op], id="op-cannot-compile", about=_ABOUT[op])])
