"""The lock on a run's folders: of two runs that write to one folder, the second is refused.

    run_dir/run.lock     who holds the folder; removed when the run ends
    save/run.lock        the same, if checkpoints are written to another folder
    PREFIX.lock          who writes this token file

The lock is created by linking a complete file to its name, which is atomic on NFS too. All processes of the run hold it
together: deepy, whose descriptor its child processes inherit (`kernel_lock.py`), and the supervisor of every rank,
which joins it. Whoever of them still runs touches it every `BEAT` seconds.

A lock is dead if no process of the run is left, where that can be seen (same machine), or if it has not been touched
for `DEAD_AFTER` seconds. Its age is the difference to a new file in the same folder, so that the clocks of hosts need
not agree.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.base.request import HOLDER_FILE
from neoxargs.config.config import Config
from neoxargs.hosts.slurm import job, requeues
from neoxargs.processes import kernel_lock
from neoxargs.processes.interrupts import delayed
from neoxargs.processes.process_tree import HIDDEN, start_time

#: Between the name of a lock and its token in the name of the file whose creator may replace it when it is dead.
AFTER = ".after-"
#: Beginning of the name of this file for the lock of a folder.
GUARD = f".{HOLDER_FILE}{AFTER}"
#: Seconds that the processes of a killed run have to notice that, and to end.
ENDING = 10.0
#: Beginning of `Holder.launch` of a deepy that starts the ranks; otherwise, rank 0 holds the lock.
BY_DEEPY = "deepy "
#: Seconds between two touches of a lock.
BEAT = 10.0
#: Seconds without a touch after which a lock of another machine is dead. NFS clients may see times a minute late.
DEAD_AFTER = 180.0
#: Seconds after which a lock that cannot be read, and that no process holds, is dead: nobody is about to write it.
UNREADABLE_AFTER = 2.0
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
        return cls(socket.gethostname(), this_machine(), os.getpid(), start_time(os.getpid()), time.time(),
                   uuid.uuid4().hex, launch, job(environ), requeues(environ))  # fmt: skip

    @property
    def ended(self) -> bool:
        """Whether the process, which is one of this machine, has ended."""
        return start_time(self.pid) not in (self.started, HIDDEN)


#: A lock whose content cannot be read: only its age says whether it is dead.
UNKNOWN = Holder("", "", 0, "", 0.0, "")


class _Held(Exception):
    """The lock of a live run. age: seconds since its last touch. left: its processes, if deepy itself has ended."""

    def __init__(self, holder: Holder, age: float, left: list[int] | None = None) -> None:
        self.holder, self.age, self.left = holder, age, left


class RunLock:
    """The locks that this process holds. Use as a context manager, which releases them.

    joined: whether another process has taken the locks, which this one then holds too, and does not release.
    lost: the run that has taken one of them over; this one must end without writing anything.
    """

    def __init__(self, holder: Holder, paths: list[Path], joined: bool = False) -> None:
        self.holder, self.paths, self.joined = holder, paths, joined
        self.lost: Holder | None = None
        self.descriptors: dict[Path, int] = {}
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
        if not self.joined:
            release(self.holder, self.paths)
        for descriptor in self.descriptors.values():
            os.close(descriptor)
        self.descriptors.clear()

    @property
    def deepy_ended(self) -> bool:
        """Whether the deepy that started this rank was a process of this machine, and has ended."""
        holder = self.holder
        return holder.launch.startswith(BY_DEEPY) and holder.machine == this_machine() and holder.ended

    def lost_now(self) -> Holder | None:
        """Return the run that has taken one of the locks over, also since the last touch; None if none has."""
        for holder in map(read, self.paths):
            if holder and holder is not UNKNOWN and holder.token != self.holder.token:
                self.lost = holder
        return self.lost

    def hold(self) -> RunLock:
        """Take part in the system's lock on each file; processes that start from now on do so too."""
        for path in self.paths:
            with contextlib.suppress(OSError):
                self._hold(path)
        return self

    def _hold(self, path: Path) -> None:
        present = self.descriptors.get(path)
        if present is not None and os.path.samestat(os.fstat(present), path.stat()):
            return
        self.descriptors[path] = kernel_lock.hold(path)
        if present is not None:  # the file in a folder that was removed or renamed
            os.close(present)

    def _keep_touching(self) -> None:
        while not self.ended.wait(BEAT):
            for path in self.paths:
                with contextlib.suppress(OSError):  # a folder that has vanished is reported by what writes to it
                    self._touch(path)

    def _touch(self, path: Path) -> None:
        holder = read(path)
        if holder is UNKNOWN:  # a file system that fails for a moment does not end the run
            return
        if self.joined:
            self._touch_joined(path, holder)
        elif holder is None:  # the folder was removed or renamed, and created again
            with _own_file(path, self.holder) as own:
                _link(own, path)
            self._hold(path)
        elif holder.token == self.holder.token:
            os.utime(path)  # without a time: an NFS server then uses its own clock
        else:
            self.lost = holder

    def _touch_joined(self, path: Path, holder: Holder | None) -> None:
        """Touch a lock of this rank's launch, which rank 0 may take later than this rank starts."""
        if holder and holder.launch == self.holder.launch:
            self.holder = holder
            self._hold(path)
            if os.environ.get("LOCAL_RANK", "0") == "0":  # one process of each host is enough
                os.utime(path)
        elif holder and path in self.descriptors:
            self.lost = holder


# -- the folders of a run --------------------------------------------------------------------------------------------


def locked_folders(config: Config) -> dict[str, Path]:
    """Return the folders that a run writes to, by the parameter that names them, each folder once."""
    folders = {"run_dir": config.logging.run_dir, "save": config.checkpoint.save}
    # Reversed twice, so that the first of two parameters with the same folder names it.
    # os.path.realpath, because Path.resolve raises for symbolic links in a circle.
    by_path = {Path(os.path.realpath(folder)): name for name, folder in reversed(folders.items()) if folder}
    return {name: path for path, name in reversed(by_path.items())}


def new_launch() -> str:
    """Return a name for a launch of this deepy."""
    return BY_DEEPY + uuid.uuid4().hex


def run_of(launch: str) -> str:
    """Return what identifies the run of a launch, as its checkpoints record it; a new id if no deepy launched it."""
    return launch.removeprefix(BY_DEEPY) if launch.startswith(BY_DEEPY) else uuid.uuid4().hex


def lock_run(
    config: Config, environ: Mapping[str, str], say: Callable[[str], None], break_lock: bool = False, launch: str = "",
) -> RunLock:  # fmt: skip
    """Take the locks of a run's folders; raise Problems, and leave nothing behind, if another run holds one.

    break_lock: take over the locks of live runs too. launch: see `Holder`.
    """
    me, folders = Holder.of_this_process(environ, launch), locked_folders(config)
    paths = [folder / HOLDER_FILE for folder in folders.values()]
    try:
        # existing folders first, so that a refused run creates none
        for name, folder in sorted(folders.items(), key=lambda item: not item[1].exists()):
            _lock_folder(config, name, folder, me, say, break_lock)
    except BaseException:  # also Ctrl-C and SIGTERM
        release(me, paths)
        raise
    return RunLock(me, paths).hold()


def _lock_folder(
    config: Config, name: str, folder: Path, me: Holder, say: Callable[[str], None], break_lock: bool
) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replaced = _take(folder / HOLDER_FILE, me, break_lock)
    except _Held as held:
        what, ways = _refusal(f"{name} ({config.get(name)})", held)
        hint = listed([*ways, f"set {name} to another folder"])
        hint += "; if you are certain that the run no longer exists, add --break-lock"
        raise Problems(Problem(what, config.place(name), hint, id="run-folder-in-use", about=(name,))) from None
    except OSError as error:
        what, hint = f"{name} ({folder}): {error.strerror}", f"set {name} to a folder that this user can write to"
        raise Problems(Problem(what, config.place(name), hint, id="folder-not-writable", about=(name,))) from error
    if replaced:
        why = " (--break-lock)" if break_lock else "; that run has ended"
        say(f"took over the lock of {_named(replaced)}{why}")


def lock_folder(folder: Path, environ: Mapping[str, str]) -> RunLock:
    """Take the lock of one folder, for a program that changes what runs have written; raises Problems."""
    me, path = Holder.of_this_process(environ), folder / HOLDER_FILE
    try:
        _take(path, me, break_lock=False)
    except _Held as held:
        what, ways = _refusal(str(folder), held)
        raise Problems(Problem(what, hint=listed(ways), id="run-folder-in-use")) from None
    except OSError as error:
        what, hint = f"{folder}: {error.strerror}", "run this command as a user that can write to this folder"
        raise Problems(Problem(what, hint=hint, id="folder-not-writable")) from error
    return RunLock(me, [path]).hold()


def lock_token_file(prefix: Path, environ: Mapping[str, str]) -> RunLock:
    """Take the lock of a token file that a command is about to write; raises Problems and OSError."""
    me, path = Holder.of_this_process(environ), prefix.with_name(f"{prefix.name}.lock")
    try:
        _take(path, me, break_lock=False)
    except _Held as held:
        what, ways = _refusal(f"--output-prefix ({prefix})", held, "command", "these files")
        hint = listed([*ways, "choose a different --output-prefix"])
        raise Problems(Problem(what, hint=hint, id="data-file-in-use")) from None
    except OSError as error:  # of a file with a random name
        raise OSError(error.errno, error.strerror, str(prefix)) from error
    return RunLock(me, [path]).hold()


def inherited_lock(config: Config) -> RunLock | None:
    """Return the locks that this process took before it became another program, None if it holds none."""
    # A process keeps its number and start time when it executes another program.
    me = this_machine(), os.getpid(), start_time(os.getpid())
    paths, holders = _present(config)
    mine = [holder for holder in holders if holder and (holder.machine, holder.pid, holder.started) == me]
    return RunLock(mine[0], paths).hold() if len(mine) == len(paths) else None


def joined_lock(config: Config, environ: Mapping[str, str], launch: str) -> RunLock | None:
    """Return the locks of the launch that this rank belongs to, to hold them too; None if it takes none.

    They are lost if another run has taken them over, because the deepy of this launch was killed.
    """
    if not launch:
        return None
    paths, holders = _present(config)
    mine = [holder for holder in holders if holder and holder.launch == launch]
    lock = RunLock(mine[0] if mine else Holder.of_this_process(environ, launch), paths, joined=True)
    lock.lost = held_by_another_launch(config, environ, launch)
    return lock.hold() if mine and not lock.lost else lock


def held_by_another_launch(config: Config, environ: Mapping[str, str], launch: str) -> Holder | None:
    """Return the live run of another launch that holds a folder of this run; None if there is none. Writes nothing."""
    me = Holder.of_this_process(environ, launch)
    for path, holder in zip(*_present(config), strict=True):
        if holder and holder.launch != launch and holder.machine == me.machine and not _run_ended(holder, path, me):
            return holder
    return None


def _present(config: Config) -> tuple[list[Path], list[Holder | None]]:
    """Return the locks of a run's folders, and who holds each."""
    paths = [folder / HOLDER_FILE for folder in locked_folders(config).values()]
    return paths, [read(path) for path in paths]


def read(path: Path) -> Holder | None:
    """Return the holder of a lock; None if there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        # Without what a later version adds.
        return Holder(**{field.name: found[field.name] for field in fields(Holder) if field.name in found})
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


def _refusal(name: str, held: _Held, kind: str = "run", what_for: str = "this folder") -> tuple[str, list[str]]:
    """Return why a folder or file cannot be used, and the ways out. kind: of program that holds it."""
    holder = held.holder
    what = f"{name} is in use: {_named(holder, kind)}"
    if held.left is not None:
        numbers = " ".join(map(str, held.left))
        what += f" has ended, but {f'its processes {numbers}' if numbers else 'other processes of it'} still run"
        return what, ["wait until they end", *([f"stop them (kill {numbers})"] if numbers else [])]
    since, ways = "", [f"wait until that {kind} ends"]
    if holder is not UNKNOWN:
        since = f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(holder.since))}"
        ways.append(f"stop it (kill {holder.pid} on {holder.host})")
    what += f" has been writing to {what_for}{since} and was last active {max(0, round(held.age))} s ago"
    return what, ways


def taken_over(by: Holder) -> str:
    """Return the message of a run whose lock another run has taken over."""
    return f"{_named(by)} has taken over this run's folder (--break-lock), so this run ended without saving"


def _named(holder: Holder, kind: str = "run") -> str:
    return f"an unknown {kind}" if holder is UNKNOWN else f"the {kind} of process {holder.pid} on {holder.host}"


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
            dead = break_lock or _is_dead(holder, path, me, own)
            if dead and _replace(path, holder, me, own, break_lock):
                return holder
            if not dead and holder is not UNKNOWN:
                left = holder.machine == me.machine and holder.ended
                if left and kernel_lock.is_free_within(path, ENDING):
                    continue
                raise _Held(holder, _age(path, own), kernel_lock.processes_with(path) if left else None)
            time.sleep(0.1)  # another run is replacing the same lock, or may be about to write one that is unreadable
        raise _Held(read(path) or UNKNOWN, _age(path, own))


@contextlib.contextmanager
def _own_file(path: Path, me: Holder) -> Iterator[Path]:
    """Write a complete file beside the lock, which becomes the lock by a link or by a new name."""
    own = path.with_name(f".{HOLDER_FILE}-{me.token}")
    try:
        own.write_text(json.dumps(asdict(me)), encoding="utf-8")
        yield own
    finally:
        with contextlib.suppress(OSError):  # of a read-only file system, which says so above
            own.unlink(missing_ok=True)


def _link(own: Path, target: Path) -> bool:
    """Give a file another name unless that name is taken; return whether it has it."""
    try:
        os.link(own, target)
    except FileExistsError:  # perhaps by this very call: NFS repeats a request whose answer was lost
        with contextlib.suppress(FileNotFoundError):
            return os.path.samefile(own, target)
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return _create(own, target)
    return True


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
    # Two runs may find the same dead lock. Whoever links a file to the name of the dead holder's guard may replace its
    # lock. That name is never given twice, not even if the guard's own run was killed: its successor needs the guard
    # that is named after it. So no run can remove the guard of a live one, which it believed to be that of a dead one.
    beginning = f".{path.name}{AFTER}"
    guard = path.with_name(f"{beginning}{dead.token}")
    while not _link(own, guard):
        by = read(guard) or UNKNOWN
        if not (break_lock or _is_dead(by, guard, me, own)):
            return False
        guard = path.with_name(f"{beginning}{by.token}" if by.token else f"{guard.name}+")
    present = read(path)
    if present is None or present.token != dead.token:
        guard.unlink(missing_ok=True)
        return False
    own.rename(path)  # replaces it in one step: no third run can create a lock in between
    for used in path.parent.glob(f"{glob.escape(beginning)}*"):
        used.unlink(missing_ok=True)
    return True


def _is_dead(holder: Holder, path: Path, me: Holder, own: Path) -> bool:
    if holder.machine == me.machine:
        return _run_ended(holder, path, me)
    if holder.job and holder.job == me.job and holder.requeues < me.requeues:
        return True  # Slurm has ended the job before it queued it again
    limit = UNREADABLE_AFTER if holder is UNKNOWN and kernel_lock.is_held(path) is False else DEAD_AFTER
    # A live run would have touched a lock that is dated ahead.
    return abs(_age(path, own)) > limit


def _run_ended(holder: Holder, path: Path, me: Holder) -> bool:
    """Return whether no process of a run on this machine is left. path: of its lock."""
    if (holder.pid, holder.started) == (me.pid, me.started):
        return True
    return holder.ended and not kernel_lock.is_held(path)


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
