"""Compiles the C++ ops of DeepSpeed once, before the ranks start, instead of at their first use.

A compilation by the ranks shows no message for a minute or more and takes 4.5 GB of memory. If it is killed, its `lock`
file makes every later run wait forever without a message.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.programs import COMPILE_OP
from neoxargs.hosts.compiled_ops import ABOUT, ALTERNATIVES, cache_folders, is_compiled
from neoxargs.processes import interrupts
from neoxargs.processes.process_tree import signal_group

#: Seconds. Compiling took 30 s to 8 minutes on the machines measured while idle, and more than 15 on a busy one.
TIME_LIMIT = 30 * 60
#: Seconds. A lock that no process of this machine holds may belong to another machine with the same home directory; a
#: compilation there changes files in its folder at least this often.
STALE_AFTER = 120

Say = Callable[[str], None]


def compile_missing(ops: list[str], environ: Mapping[str, str], say: Say, limit: float = TIME_LIMIT) -> None:
    """Remove stale locks, wait for those in use, and compile the missing ops; raises Problems."""
    for folder in cache_folders(environ):
        lock = folder / "lock"
        if lock.exists() and (folder.name in ops or _stale(lock)):
            _release(lock, say, limit)
    for op in ops:
        if not is_compiled(op, environ):
            compile_op(op, environ, say, limit)


def compile_op(op: str, environ: Mapping[str, str], say: Say, limit: float = TIME_LIMIT) -> None:
    """Compile one op in a child process, which is killed with its compilers after `limit` seconds."""
    usually = "a few minutes" if op == "async_io" else "30 to 90 s"
    say(f"compiling DeepSpeed's {op} once for this machine, which usually takes {usually} ...")
    begin = time.monotonic()
    process = None
    try:
        with interrupts.ignored_by_children():
            process = subprocess.Popen(
                # A session of its own, with which ninja and the compilers are killed too.
                [sys.executable, "-m", COMPILE_OP, op], env=dict(environ), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
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


def _kill_compilers(process: subprocess.Popen[str], environ: Mapping[str, str], op: str) -> None:
    signal_group(process.pid, signal.SIGKILL)
    process.communicate()
    for folder in cache_folders(environ):
        if folder.name == op and not lock_holders(folder / "lock"):
            (folder / "lock").unlink(missing_ok=True)


def _failure(op: str, what: str) -> Problems:
    return Problems([Problem(what, hint=ALTERNATIVES[op], id="op-cannot-compile", about=ABOUT[op])])
