"""The lock on a run's folders: of two runs that write to one folder, the second is refused.

    run_dir/run.lock     who holds the folder; removed when the run ends
    save/run.lock        the same, if checkpoints are written to another folder

The lock is created by linking a complete file to its name, which is atomic on NFS too. Its holder touches it every
`BEAT` seconds. A lock is dead if its process has ended, where that can be seen (same machine), or if it has not been
touched for `DEAD_AFTER` seconds. Its age is the difference to a new file in the same folder, so that the clocks of
hosts need not agree.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from neoxargs.launch.processes.interrupts import delayed
from neoxargs.launch.processes.process_tree import HIDDEN, start_time
from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config

FILE = "run.lock"
#: Seconds between two touches of a lock.
BEAT = 10.0
#: Seconds without a touch after which a lock of another machine is dead. NFS clients may see times a minute late.
DEAD_AFTER = 180.0
#: Attempts to create a lock that another run is creating or removing at the same time.
TRIES = 50
#: What `os.link` raises on file systems without hard links.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    host: str
    machine: str
    """Boot ID and PID namespace: processes for which they are the same can look each other up by PID."""
    pid: int
    started: str
    """Start time of the process, which distinguishes it from a later one with the same PID."""
    since: float
    """Time at which the lock was taken, in seconds since the epoch; only for messages."""
    token: str
    launch: str = ""
    """Identifies the launch, so that its ranks recognise their own lock; empty if unknown."""
    job: str = ""
    """The Slurm job; empty if there is none. A requeued job replaces the lock of its earlier start."""
    requeues: int = 0

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str], launch: str = "") -> Holder:
        job = ".".join(filter(None, (environ.get("SLURM_CLUSTER_NAME"), environ.get("SLURM_JOB_ID"))))
        requeues = int(environ.get("SLURM_RESTART_COUNT") or 0)
        return cls(socket.gethostname(), this_machine(), os.getpid(), start_time(os.getpid()), time.time(),
                   uuid.uuid4().hex, launch, job, requeues)  # fmt: skip

    def is_this_process(self) -> bool:
        mine = this_machine(), os.getpid(), start_time(os.getpid())
        return (self.machine, self.pid, self.started) == mine


#: A lock whose content cannot be read: only its age says whether it is dead.
UNKNOWN = Holder("", "", 0, "", 0.0, "")


class _Held(Exception):
    """The lock of a live run. age: seconds since its last touch."""

    def __init__(self, holder: Holder, age: float) -> None:
        self.holder, self.age = holder, age


class RunLock:
    """The locks that this process holds. Use as a context manager, which releases them.

    lost: the run that has taken one of them over; this one must end without writing anything.
    """

    def __init__(self, holder: Holder, paths: list[Path]) -> None:
        self.holder, self.paths = holder, paths
        self.lost: Holder | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._keep_touching, name="run lock", daemon=True)

    def __enter__(self) -> RunLock:
        with delayed(signal.valid_signals()):  # none for the thread, or `delayed` could not delay any later
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        if self.thread.is_alive():  # it could create a lock again that has just been released
            self.thread.join()
        release(self.holder, self.paths)

    def _keep_touching(self) -> None:
        while not self.ended.wait(BEAT):
            for path in self.paths:
                with contextlib.suppress(OSError):  # a folder that has vanished is reported by what writes to it
                    self._touch(path)

    def _touch(self, path: Path) -> None:
        holder = read(path)
        if holder is None:  # the folder was removed or renamed, and created again
            with _own_file(path, self.holder) as own:
                _link(own, path)
        elif holder.token == self.holder.token:
            os.utime(path)  # without a time: an NFS server then uses its own clock
        elif holder is not UNKNOWN:  # a file system that fails for a moment does not end the run
            self.lost = holder


# -- the folders of a run --------------------------------------------------------------------------------------------


def locked_folders(config: Config) -> dict[str, Path]:
    """Return the folders that a run writes to, by the parameter that names them, each folder once."""
    folders = {"run_dir": config.logging.run_dir, "save": config.checkpoint.save}
    # Reversed twice, so that the first of two parameters with the same folder names it.
    by_path = {Path(folder).resolve(): name for name, folder in reversed(folders.items()) if folder}
    return {name: path for path, name in reversed(by_path.items())}


def lock_run(
    config: Config, environ: Mapping[str, str], say: Callable[[str], None], break_lock: bool = False, launch: str = "",
) -> RunLock:  # fmt: skip
    """Take the locks of a run's folders; raise Problems, and leave nothing behind, if another run holds one.

    break_lock: take over the locks of live runs too. launch: see `Holder`.
    """
    me, folders = Holder.of_this_process(environ, launch), locked_folders(config)
    paths = [folder / FILE for folder in folders.values()]
    try:
        # existing folders first, so that a refused run creates none
        for name, folder in sorted(folders.items(), key=lambda item: not item[1].exists()):
            _lock_folder(config, name, folder, me, say, break_lock)
    except BaseException:  # also Ctrl-C and SIGTERM
        release(me, paths)
        raise
    return RunLock(me, paths)


def _lock_folder(
    config: Config, name: str, folder: Path, me: Holder, say: Callable[[str], None], break_lock: bool
) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replaced = _take(folder / FILE, me, break_lock)
    except _Held as held:
        raise Problems([_refusal(config, name, held)]) from None
    except OSError as error:
        what, hint = f"{name} ({folder}): {error.strerror}", f"set {name} to a folder that this user can write to"
        problem = Problem(what, config.place(name), hint, id="folder-not-writable", about=(name,))
        raise Problems([problem]) from error
    if replaced:
        why = " (--break-lock)" if break_lock else "; that run has ended"
        say(f"took over the lock of {_named(replaced)}{why}")


def inherited_lock(config: Config) -> RunLock | None:
    """Return the locks that this process took before it became another program, None if it holds none."""
    # A process keeps its number and start time when it executes another program.
    paths = [folder / FILE for folder in locked_folders(config).values()]
    holders = [read(path) for path in paths]
    mine = [holder for holder in holders if holder and holder.is_this_process()]
    return RunLock(mine[0], paths) if len(mine) == len(paths) else None


def held_by_another_launch(config: Config, environ: Mapping[str, str], launch: str) -> bool:
    """Return whether a live run of another launch holds a folder of this run. Writes nothing."""
    me = Holder.of_this_process(environ, launch)
    for folder in locked_folders(config).values():
        holder = read(folder / FILE)
        if holder and holder.launch != launch and holder.machine == me.machine and not _process_ended(holder, me):
            return True
    return False


def read(path: Path) -> Holder | None:
    """Return the holder of a lock; None if there is no such file."""
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return UNKNOWN


def release(holder: Holder, paths: list[Path]) -> None:
    """Remove the locks of this holder only."""
    for path in paths:
        with contextlib.suppress(OSError):
            if os.getpid() == holder.pid and (present := read(path)) and present.token == holder.token:
                path.unlink()


def _refusal(config: Config, name: str, held: _Held) -> Problem:
    holder = held.holder
    what = f"{name} ({config.get(name)}) is in use: {_named(holder)} has been writing to this folder"
    since = stop = ""
    if holder is not UNKNOWN:
        since, stop = f" since {_time(holder.since)}", f"stop it (kill {holder.pid} on {holder.host}), "
    what += f"{since} and was last active {max(0, round(held.age))} s ago"
    hint = f"wait until that run ends, {stop}or set {name} to another folder"
    hint += "; if you are certain that the run no longer exists, add --break-lock"
    return Problem(what, config.place(name), hint, id="run-folder-in-use", about=(name,))


def taken_over(by: Holder) -> str:
    """Return the message of a run whose lock another run has taken over."""
    return f"{_named(by)} has taken over this run's folder (--break-lock), so this run ended without saving"


def _named(holder: Holder) -> str:
    return "an unknown run" if holder is UNKNOWN else f"the run of process {holder.pid} on {holder.host}"


def _time(since: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))


# -- one lock --------------------------------------------------------------------------------------------------------


def _take(path: Path, me: Holder, break_lock: bool) -> Holder | None:
    """Create a lock and return the holder of the dead lock that it replaces, if any; raise _Held if one is alive."""
    with _own_file(path, me) as own:
        for _ in range(TRIES):
            if _link(own, path):
                return None
            holder = read(path)
            if holder is None:  # it was released just now
                continue
            if not break_lock and not _is_dead(holder, path, me, own):
                raise _Held(holder, _age(path, own))
            if _replace(path, holder, me, own, break_lock):
                return holder
            time.sleep(0.1)
    raise _Held(read(path) or UNKNOWN, 0.0)


@contextlib.contextmanager
def _own_file(path: Path, me: Holder) -> Iterator[Path]:
    """Write a complete file beside the lock, which becomes the lock by a link or by a new name."""
    own = path.with_name(f".{FILE}-{me.token}")
    try:
        own.write_text(json.dumps(asdict(me)), encoding="utf-8")
        yield own
    finally:
        own.unlink(missing_ok=True)


def _link(own: Path, target: Path) -> bool:
    """Give a file another name unless that name is taken; return whether it has it."""
    try:
        os.link(own, target)
    except FileExistsError:  # perhaps by this very call: NFS repeats a request whose answer was lost
        return _same_file(own, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return _create(own, target)
    return True


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:
        return False


def _create(own: Path, target: Path) -> bool:
    """Do the same on a file system without hard links, where a reader may see an empty file for a moment."""
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(own.read_text(encoding="utf-8"))
    except FileExistsError:
        return False
    return True


def _replace(path: Path, dead: Holder, me: Holder, own: Path, break_lock: bool) -> bool:
    """Replace a dead lock, unless another run does it at the same time; return whether it is replaced."""
    # Two runs may find the same dead lock. Without the guard, the second could replace the lock that the first has
    # made.
    guard = path.with_name(f".{FILE}.takeover")
    if not _link(own, guard):
        by = read(guard)
        # A run that was killed between these steps has left its guard behind.
        if by and (break_lock or _is_dead(by, guard, me, own)):
            guard.unlink(missing_ok=True)
        return False
    try:
        present = read(path)
        if present is None or present.token != dead.token:
            return False
        own.rename(path)  # replaces it in one step: no third run can create a lock in between
        return True
    finally:
        guard.unlink(missing_ok=True)


def _is_dead(holder: Holder, path: Path, me: Holder, own: Path) -> bool:
    if holder.machine == me.machine:
        return _process_ended(holder, me)
    if holder.job and holder.job == me.job and holder.requeues < me.requeues:
        return True  # Slurm has ended the job before it queued it again
    return _age(path, own) > DEAD_AFTER


def _process_ended(holder: Holder, me: Holder) -> bool:
    return start_time(holder.pid) not in (holder.started, HIDDEN) or (holder.pid, holder.started) == (
        me.pid,
        me.started,
    )


def _age(path: Path, own: Path) -> float:
    """Return the seconds since a lock was touched, by the clock of its file system."""
    try:
        os.utime(own)
        return own.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def this_machine() -> str:
    """Identify the machine since its start, and the process namespace, as of a container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
