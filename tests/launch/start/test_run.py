"""Runs are started through DeepSpeed's own launcher, end with the right exit code, and leave no process behind."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from neoxargs.config.config import Config
from neoxargs.hosts.environment import with_package
from neoxargs.hosts.hosts import Resources
from neoxargs.hosts.launchers import Launcher
from neoxargs.hosts.rendezvous import free_port
from neoxargs.launch.command.command import Command, command, runner_flags
from neoxargs.launch.start import run
from neoxargs.launch.start.run import start
from neoxargs.processes import failures
from neoxargs.processes.process_tree import SessionGuard, session_members
from neoxargs.resolve import File, complete, draft
from tests.support import smallest
from tests.support.cluster import wait_until
from tests.support.paths import ROOT
from tests.support.processes import is_running

YAML = smallest.YAML
CPUS = Resources({"localhost": [0, 1]}, "cpu", {"num_gpus": "2"})


def resolved(text: str = "") -> Config:
    return complete(draft([File("my.yml", YAML + text)]), 2)


def quietly(text: str) -> None:
    """Instead of a message on the terminal."""


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_of_one_machine_starts_its_ranks_with_the_script_and_all_payloads():
    made = command(resolved("master_port: 29731\n"), CPUS, "any/script.py", {"OMP_NUM_THREADS": "5"})
    assert made.words[:4] == (sys.executable, "-u", "-m", "neoxargs.train.local_ranks")
    assert made.words[4:8] == ("--devices=0,1", "--master_addr=127.0.0.1", "--master_port=29731", "any/script.py")
    assert made.words[8::2] == ("--deepspeed_config", "--megatron_config", "--deepy_config", "--deepy_places")
    assert made.environment == {"DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}


def test_a_set_launcher_is_deepspeeds_runner_with_the_script_and_all_payloads():
    config = resolved("master_port: 29731\nlauncher: pdsh\n")
    made = command(config, CPUS, "any/script.py", {"OMP_NUM_THREADS": "5"})
    assert made.words[:3] == (sys.executable, "-m", "deepspeed.launcher.runner")
    script = made.words.index("any/script.py")
    assert made.words[script + 1 :: 2] == (
        "--deepspeed_config",
        "--megatron_config",
        "--deepy_config",
        "--deepy_places",
    )
    parsed = pytest.importorskip("deepspeed.launcher.runner").parse_args(list(made.words[3:]))
    assert (parsed.num_gpus, parsed.master_port, parsed.user_script) == (2, 29731, "any/script.py")
    assert made.environment == {"DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}


def test_cores_are_shared_between_the_ranks_of_this_machine():
    threads = command(resolved(), CPUS, "s.py", {}).environment["OMP_NUM_THREADS"]
    assert int(threads) == max(1, len(os.sched_getaffinity(0)) // 2)


def test_the_launcher_gets_the_hosts_of_the_batch_equation():
    """Also with `include` beside `num_gpus`, `worker-0` without slots, and the hostfile of the environment."""
    resources = Resources({"a": [0, 1], "b": [3]}, "cuda", {"hostfile": "/h", "include": "a:0,1@b:3"}, remote=True)
    config = resolved('include: "a@b:3"\nhostfile: /elsewhere\nnum_gpus: 4\nlauncher: openmpi\nforce_multi: true\n')
    parsed = pytest.importorskip("deepspeed.launcher.runner").parse_args([*runner_flags(config, resources), "s.py"])
    assert (parsed.hostfile, parsed.include, parsed.num_gpus) == ("/h", "a:0,1@b:3", -1)
    assert (parsed.launcher, parsed.force_multi, parsed.log_level) == ("openmpi", True, "warning")


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm"])
def test_every_launcher_of_deepspeed_can_be_chosen(launcher):
    flags = runner_flags(resolved(f"launcher: {launcher}\n"), CPUS)
    assert pytest.importorskip("deepspeed.launcher.runner").parse_args([*flags, "s.py"]).launcher == launcher


def test_a_set_log_level_is_passed_on():
    assert "--log_level=critical" in runner_flags(resolved(), CPUS)
    assert not any("critical" in flag for flag in runner_flags(resolved("log_level: debug\n"), CPUS))


def test_visible_devices_are_not_passed_on():
    made = command(resolved(), CPUS, "s.py", {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert "CUDA_VISIBLE_DEVICES" not in made.environ({"CUDA_VISIBLE_DEVICES": "0,1"})
    assert str(made).startswith("env -uCUDA_VISIBLE_DEVICES DS_ACCELERATOR=cpu ")


def test_every_local_run_has_its_own_port_unless_master_port_is_set():
    ports = {free_port(resolved(), CPUS) for _ in range(5)}
    assert len(ports) > 1  # the system may choose one twice
    assert all(f"--master_port={port}" in runner_flags(resolved(), CPUS, port) for port in ports)
    assert free_port(resolved("master_port: 29500\n"), CPUS) is None
    assert free_port(resolved(), Resources({"a": [0]}, "cuda", remote=True)) is None


# -- processes -------------------------------------------------------------------------------------------------------

#: Stands for DeepSpeed's runner and launcher: a process whose child starts two ranks and passes a failure on.
LAUNCHER = """
import subprocess, sys
if sys.argv[1] == "runner":
    sys.exit(subprocess.run([sys.executable, __file__, "launch", *sys.argv[2:]]).returncode)
ranks = [subprocess.Popen([sys.executable, sys.argv[2], str(rank)]) for rank in range(2)]
codes = [rank.wait() for rank in ranks]
sys.exit(max(codes, key=abs))
"""


@pytest.fixture
def fake(tmp_path: Path):
    """Start two ranks of a script under the stand-in for the launcher."""

    def words(script: str) -> Command:
        (tmp_path / "launcher.py").write_text(LAUNCHER)
        (tmp_path / "rank.py").write_text(script)
        return Command((sys.executable, str(tmp_path / "launcher.py"), "runner", str(tmp_path / "rank.py")), {})

    return words


def signalled(fake_command: Command, folder: Path, number: int, times: int = 1, grace: float = 200.0) -> int:
    """Exit code of a `start` in a process of its own that gets a signal once its ranks are up."""
    process = subprocess.Popen(starting(fake_command, grace), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    _wait_for(lambda: len(_pids(folder)) == 2)
    for answer in ("asked the ranks to stop", "killed the ranks")[:times]:
        process.send_signal(number)
        assert process.stdout and answer in process.stdout.readline()
        time.sleep(run.SAME_REQUEST if times > 1 else 0)
    rest, _ = process.communicate(timeout=200)
    assert "killed the ranks" not in rest
    return process.returncode


def starting(made: Command, grace: float = 200.0, logs: Path | None = None) -> list[str]:
    """A process that does what deepy.py does to start ranks."""
    launcher = Launcher(made.launcher.name, passes_stop_on=made.launcher.passes_stop_on)
    program = f"""
import sys
from pathlib import Path, PosixPath
from neoxargs.hosts.launchers import Launcher
from neoxargs.launch.command.command import Command
from neoxargs.launch.start.run import start
say = lambda text: print(text, flush=True)
made = Command({made.words!r}, {dict(made.environment)!r}, {made.without!r}, {launcher!r})
sys.exit(start(made, {dict(os.environ)!r}, say, grace={grace}, logs={logs!r}).code)
"""
    return [sys.executable, "-c", program]


_wait_for = partial(wait_until, what="what the ranks do", seconds=200)


def _alive(folder: Path) -> list[int]:
    return [pid for pid in _pids(folder) if is_running(pid)]


def _pids(folder: Path) -> list[int]:
    return [int(text) for path in folder.glob("up*") if (text := path.read_text())]  # empty: being written


UP = "import os, pathlib, sys, time, signal\nhere = pathlib.Path(__file__).parent\n"
WAIT = "(here / f'up{sys.argv[1]}').write_text(str(os.getpid()))\ntime.sleep(900)\n"


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(0)", 0), ("sys.exit(5)", 5), ("os.kill(os.getpid(), 9)", 247)])
def test_the_exit_code_is_the_launchers_if_no_rank_has_recorded_one(fake, ends, code):
    """As it is: 247 may be a signal or not."""
    said: list[str] = []
    assert start(fake(f"{UP}\nif sys.argv[1] == '1': {ends}"), os.environ, said.append).code == code
    assert bool(said) == bool(code)


@pytest.mark.parametrize(
    ("remote", "code", "sentence"),
    [
        (True, 255, "the connection to a host failed or was lost"),
        (False, 255, "the launcher failed with exit code 255"),
    ],
)
def test_exit_code_255_is_that_of_ssh_only_if_the_ranks_are_remote(remote, code, sentence):
    said: list[str] = []
    ended = start(Command((sys.executable, "-c", "raise SystemExit(255)"), {}), os.environ, said.append, remote)
    assert ended.code == code
    assert [text.partition(",")[0] for text in said] == [sentence]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ranks_without_a_handler_end_at_once(fake, tmp_path, number):
    code = signalled(fake(UP + WAIT), tmp_path, number)
    assert code == 128 + number
    assert not _alive(tmp_path)


def test_ranks_get_exactly_one_signal_and_may_finish(fake, tmp_path):
    handler = """
def stop(*_):
    with open(here / f'asked{sys.argv[1]}', 'a') as file: file.write('x')
    time.sleep(1)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
"""
    code = signalled(fake(UP + handler + WAIT), tmp_path, signal.SIGINT)
    assert code == 128 + signal.SIGINT
    assert [(tmp_path / f"asked{rank}").read_text() for rank in range(2)] == ["x", "x"]
    assert not _alive(tmp_path)


def test_ranks_that_ignore_the_signal_are_killed_after_the_grace_period(fake, tmp_path):
    code = signalled(fake(UP + "signal.signal(15, signal.SIG_IGN)\n" + WAIT), tmp_path, signal.SIGTERM, grace=1.0)
    assert code == 128 + signal.SIGTERM
    assert not _alive(tmp_path)


def test_a_second_signal_kills(fake, tmp_path):
    code = signalled(fake(UP + "signal.signal(15, signal.SIG_IGN)\n" + WAIT), tmp_path, signal.SIGINT, times=2)
    assert code == 128 + signal.SIGINT
    assert not _alive(tmp_path)


def test_signals_at_once_are_one_request(fake, tmp_path):
    """As from `timeout`, which signals its child and then its whole process group."""
    handler = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(0)))\n"
    process = subprocess.Popen(starting(fake(UP + handler + WAIT)), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    _wait_for(lambda: len(_pids(tmp_path)) == 2)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    output, _ = process.communicate(timeout=200)
    assert ("asked the ranks" in output, "killed" in output) == (True, False)
    assert process.returncode == 128 + signal.SIGTERM


def test_processes_that_outlive_the_launcher_are_killed_and_fail_the_run(fake, tmp_path, monkeypatch):
    monkeypatch.setattr("neoxargs.launch.start.run.AFTER_LAUNCHER_ENDED", 1.0)
    script = UP + "if sys.argv[1] == '1': time.sleep(1); os.kill(os.getppid(), 9)\n" + WAIT
    said: list[str] = []
    assert start(fake(script), os.environ, said.append).code == 256 - 9  # as this launcher reports it
    assert any("outlived the launcher" in line for line in said)
    assert not _alive(tmp_path)


def test_process_names_do_not_confuse_the_members_of_a_session():
    """The system cuts a process's name after 15 bytes, which may be in the middle of a letter."""
    program = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xd0'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()
        found = {process.pid for process in session_members(os.getsid(0))}
        other.kill()
    assert {os.getpid(), other.pid} <= found


def interrupting(monkeypatch: pytest.MonkeyPatch, made: Command, moment: str) -> Command:
    """Let SIGTERM arrive just before the launcher starts, or just after."""

    class Interrupting(Command):
        def environ(self, inherited):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().environ(inherited)

    class Guard(SessionGuard):
        def __init__(self, session: int) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super().__init__(session)

    if moment == "before":
        return Interrupting(made.words, made.environment)
    monkeypatch.setattr(run, "SessionGuard", Guard)
    return made


def unheard(text: str) -> None:
    """A message on a terminal that is closed."""
    raise BrokenPipeError


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_signal_while_the_launcher_starts_ends_the_run(fake, tmp_path, monkeypatch, moment):
    """Also if the message about it cannot be printed."""
    ended = start(interrupting(monkeypatch, fake(UP + WAIT), moment), os.environ, unheard)
    assert (ended.code, ended.asked) == (128 + signal.SIGTERM, True)
    assert not _alive(tmp_path)


def test_an_error_of_this_process_leaves_no_rank(fake, tmp_path, monkeypatch):
    def fail(_: object) -> None:
        if len(_pids(tmp_path)) == 2:
            raise OSError("the file system of the logs is gone")

    monkeypatch.setattr(run._Run, "_check_failures", fail)
    with pytest.raises(OSError, match="is gone"):
        start(fake(UP + WAIT), os.environ, quietly)
    _wait_for(lambda: not _alive(tmp_path))


def test_a_run_under_nohup_outlives_its_terminal(fake, tmp_path):
    """The first signal that it heeds is SIGTERM."""
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *starting(fake(UP + WAIT))]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    _wait_for(lambda: len(_pids(tmp_path)) == 2)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output.count("SIGTERM: asked the ranks to stop")) == (128 + signal.SIGTERM, 1)


@pytest.mark.parametrize("group", ["", "os.setpgrp()\n", "os.setsid()\n"])
def test_nothing_outlives_a_killed_deepy(fake, tmp_path, group):
    """Not even ranks in groups of their own, like mpirun's, or sessions, like torchrun's, that heed no signal."""
    script = UP + group + "signal.signal(15, signal.SIG_IGN)\n" + WAIT
    process = subprocess.Popen(starting(fake(script)), cwd=ROOT, stdout=subprocess.DEVNULL)
    _wait_for(lambda: len(_alive(tmp_path)) == 2)
    process.kill()
    process.wait()
    _wait_for(lambda: not _alive(tmp_path))


# -- real starts -----------------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys, time
from neoxargs.targets.wire_format import parse_rank_arguments
arguments = parse_rank_arguments(sys.argv[1:])
rank = int(os.environ["RANK"])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT")
facts = {name: os.environ[name] for name in (*names, "CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "OMP_NUM_THREADS")}
facts |= {"torch": "torch" in sys.modules, "unbuffered": sys.stdout.line_buffering or sys.stdout.write_through}
facts |= {"local_rank": arguments.local_rank, "hidden_size": arguments.config.shape.hidden_size}
facts |= {"batch": arguments.deepspeed["train_batch_size"], "script": sys.argv[0]}
open(f"rank{rank}.json", "w").write(json.dumps(facts))
while rank == 1 and not os.path.exists("rank0.json"):
    time.sleep(0.05)
sys.exit(3 * rank)
"""


#: A script of the user whose ranks have child processes, and save for a while after a request to stop.
WITH_CHILDREN = """
import os, pathlib, signal, subprocess, sys, time
rank = os.environ["RANK"]
children = [subprocess.Popen(["sleep", "900"]) for _ in range(2)]
def stop(*_):
    with open(f"asked{rank}", "a") as file: file.write("x")
    time.sleep(2)
    with open(f"saved{rank}", "a") as file: file.write(str([child.poll() for child in children]))
    for child in children: child.kill()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
(pathlib.Path("up" + rank)).write_text(str(os.getpid()))
while True: time.sleep(1)
"""
LAUNCHERS = ["", *(pytest.param(f"launcher: {name}\n", marks=pytest.mark.slow) for name in ("torchrun", "pdsh"))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("settings", LAUNCHERS)
def test_a_request_to_stop_reaches_a_script_with_child_processes(tmp_path, monkeypatch, settings):
    """Each rank once, and not its children, which it may need to save."""
    pytest.importorskip("deepspeed")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "my_own_script.py"
    script.write_text(WITH_CHILDREN)
    config = resolved(settings)
    environ, logs = os.environ | {"OMP_NUM_THREADS": "1"}, failures.logs_folder(config, "one")
    made = command(config, CPUS, str(script), environ, free_port(config, CPUS), "one")
    process = subprocess.Popen(
        starting(made, logs=logs), stdout=subprocess.PIPE, text=True, env=with_package(os.environ)
    )
    try:
        _wait_for(lambda: len(_pids(tmp_path)) == 2)
        process.terminate()
        output, _ = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, output
    for rank in range(2):
        assert ((tmp_path / f"asked{rank}").read_text(), (tmp_path / f"saved{rank}").read_text()) == (
            "x",
            "[None, None]",
        )
    assert not _alive(tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("settings", LAUNCHERS[::2])
@pytest.mark.parametrize(("end", "code"), [("sys.exit(200)", 200), ("sys.exit(-1)", 255), ("sys.exit(192)", 192),
                                           ("os.kill(os.getpid(), 9)", 137)])  # fmt: skip
def test_exit_codes_of_ranks_and_their_signals_are_not_mistaken(tmp_path, monkeypatch, settings, end, code):
    pytest.importorskip("deepspeed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_script.py").write_text(
        f"import os, sys, time\nif os.environ['RANK'] == '0': {end}\ntime.sleep(60)\n"
    )
    config = resolved(settings)
    made = command(config, CPUS, "my_own_script.py", os.environ, free_port(config, CPUS), "one")
    assert start(made, os.environ, quietly, logs=failures.logs_folder(config, "one")).code == code


@pytest.mark.timeout(100)
def test_a_guard_that_was_killed_is_replaced(fake, tmp_path):
    process = subprocess.Popen(starting(fake(UP + WAIT)), cwd=ROOT, stdout=subprocess.DEVNULL)
    _wait_for(lambda: len(_alive(tmp_path)) == 2)
    [guard] = guards = _guards(process.pid)
    os.kill(guard, signal.SIGKILL)
    _wait_for(lambda: _guards(process.pid) not in ([], guards))
    process.kill()
    process.wait()
    _wait_for(lambda: not _alive(tmp_path))


def _guards(parent: int) -> list[int]:
    words = [f"/proc/{pid}/cmdline" for pid in _children(parent)]
    return [int(path.split("/")[2]) for path in words if b"import guard" in Path(path).read_bytes()]


def _children(parent: int) -> list[int]:
    return [process.pid for process in session_members(os.getsid(0)) if process.parent == parent]


@pytest.mark.timeout(100)
def test_a_stopped_process_whose_child_has_ended_is_continued(fake, tmp_path):
    """As a supervisor whose rank has ended while somebody had stopped it."""
    script = UP + WAIT.replace("time.sleep(900)", "while not (here / 'go').exists(): time.sleep(0.1)")
    process = subprocess.Popen(starting(fake(script)), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    _wait_for(lambda: len(_alive(tmp_path)) == 2)
    launch = int(Path(f"/proc/{_alive(tmp_path)[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(launch, signal.SIGSTOP)
    (tmp_path / "go").touch()
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, f"process {launch} is stopped" in output) == (0, True)


@pytest.mark.parametrize("settings", ["", pytest.param("launcher: pdsh\n", marks=pytest.mark.slow)])
def test_two_ranks_receive_what_was_encoded_and_one_that_fails_fails_the_run(tmp_path, monkeypatch, capfd, settings):
    """With its own exit code, the same variables from both starts, and no payload on the console."""
    pytest.importorskip("deepspeed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_script.py").write_text(SCRIPT)
    config, environ = resolved(settings), os.environ | {"OMP_NUM_THREADS": "1"}
    port = free_port(config, CPUS)
    made = command(config, CPUS, "my_own_script.py", environ, port, "one")
    assert start(made, environ, quietly, logs=failures.logs_folder(config, "one")).code == 3
    assert "--megatron_config" not in "".join(capfd.readouterr())
    for rank in range(2):
        assert json.loads((tmp_path / f"rank{rank}.json").read_text()) == {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_RANK": "0",
            "CROSS_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": "0,1",
            "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "torch": False, "unbuffered": True, "local_rank": rank,
            "hidden_size": 64, "batch": 4, "script": "my_own_script.py",
        }  # fmt: skip
