"""Ctrl-C ends every command with one line and exit code 130, whatever it is doing; SIGTERM ends a launch likewise."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neoxargs import cli
from neoxargs.data.text_files import Raw
from neoxargs.launch.start import prepare
from neoxargs.processes import interrupts
from tests.support.paths import ROOT
from tests.support.snapshots import pinned

DATA = (sys.executable, str(ROOT / "deepy.py"), "data", "text.txt", "--tokenizer-type", "ByteLevelTokenizer")


@pytest.fixture(autouse=True)
def ctrl_c_is_not_ignored() -> Iterator[None]:
    """Neither here nor in programs that a test starts: a shell lets background jobs, such as CI, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["plan", "my.yml", "--search"], "deepy: interrupted\n"),
        (["train.py", "my.yml"], "deepy: interrupted; no rank was running\n"),
    ],
)
def test_a_command_prints_one_line(words, line, monkeypatch, capsys):
    def interrupted(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_find_command", lambda _: interrupted)
    assert cli.main(words) == 130
    assert capsys.readouterr().err == line


def test_sigterm_before_the_ranks_start_prints_one_line_and_ends_the_step_that_runs(tmp_path):
    """While text is tokenised, a step that here never ends."""
    program = """
import sys
from neoxargs.cli import main
from neoxargs.launch.start import prepare
step = "import time; print('step', flush=True); time.sleep(99)"
prepare.tokenise = lambda config, environ: prepare._run([sys.executable, "-c", step], environ)
sys.exit(main(["train.py", "configs/quickstart.yml", "--set", "save=SAVE"]))
"""
    words = [sys.executable, "-c", program.replace("SAVE", str(tmp_path))]
    process = subprocess.Popen(
        words, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and "step\n" in iter(process.stdout.readline, "")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)  # the output ends with the step
    assert process.returncode == 143
    pinned(errors.splitlines()[-1])
    assert not list(tmp_path.glob("*.lock"))


def test_a_command_that_imports_its_modules_prints_one_line(tmp_path):
    """A signal that arrives before `main` waits for it."""
    program = """
import os, signal
from neoxargs.processes import interrupts
interrupts.hold()
os.kill(os.getpid(), signal.SIGINT)
import sys
from neoxargs.data.command import main
sys.exit(main(["text.txt", "--output-prefix", "out", "--tokenizer-type", "ByteLevelTokenizer"]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=100, check=False)  # fmt: skip
    assert done.returncode == 130
    pinned(done.stderr)


@pytest.mark.slow
def test_tokenising_with_several_processes_prints_one_line(tmp_path):
    """Ctrl-C on a terminal reaches all processes of the group."""
    (tmp_path / "text.txt").write_text("some words to learn\n" * 8_000_000)
    words = [*DATA, "--output-prefix", "made/out", "--workers", "3"]
    (tmp_path / "made").mkdir()
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "made").glob(".out.bin.*.part")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (130, "deepy: interrupted; made/out has not been written\n")
    assert not list((tmp_path / "made").iterdir())


def ignores_ctrl_c(_: list[Raw]) -> bool:
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def working() -> Callable[[list[Raw]], bool]:
    return ignores_ctrl_c


def printed(program: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.check_output([sys.executable, "-c", program], text=True, timeout=100, env=environ)


def test_workers_leave_ctrl_c_to_their_reader():
    """They ignore it, as does the process that starts them."""
    program = """
from neoxargs.data.parallel import in_parallel
from tests.processes.test_interrupts import ignores_ctrl_c, working
print(*in_parallel(iter([[]]), working, (), 1), ignores_ctrl_c([]))
"""
    assert printed(program) == "True False\n"


def test_ctrl_c_is_not_lost_while_a_process_starts():
    """In a process of its own: threads of the test process could receive the signal, and they do not block it."""
    program = """
import os, signal
from neoxargs.processes import interrupts
try:
    with interrupts.ignored_by_children():
        os.kill(os.getpid(), signal.SIGINT)
        print("delayed")
except KeyboardInterrupt:
    print("not lost")
"""
    assert printed(program) == "delayed\nnot lost\n"


def test_a_step_before_the_ranks_leaves_the_report_of_ctrl_c_to_deepy(capfd):
    """It is ended by SIGTERM; a Ctrl-C of the terminal that reaches it too is ignored, even after `accept`."""
    program = "import os, signal; from neoxargs.processes import interrupts; interrupts.accept(); "
    program += "os.kill(os.getpid(), signal.SIGINT); print('lives')"
    assert prepare._run([sys.executable, "-c", program], {**os.environ, "PYTHONPATH": str(ROOT)}) == 0
    assert capfd.readouterr() == ("lives\n", "")


@pytest.mark.parametrize("step", [False, True])
def test_sigterm_while_text_is_tokenised_prints_one_line(tmp_path, step):
    """A step of a launch leaves it to the launch."""
    program = """
import os, signal, sys
from neoxargs.data import command
def interrupted(*_):
    os.kill(os.getpid(), signal.SIGTERM)
command.build = interrupted
sys.exit(command.main(["text.txt", "--output-prefix", "out", "--tokenizer-type", "ByteLevelTokenizer"]))
"""
    words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"] if step else []
    done = subprocess.run([*words, sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=100, check=False)  # fmt: skip
    line = "" if step else "deepy: interrupted by SIGTERM; out has not been written\n"
    assert (done.returncode, done.stderr) == (143, line)


def test_sigterm_while_a_step_starts_ends_the_step(tmp_path, monkeypatch):
    """Before deepy knows its process."""
    started = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("subprocess.Popen", Popen)
    before = signal.getsignal(signal.SIGTERM)
    interrupts.raise_on_sigterm()
    try:
        with pytest.raises(interrupts.Terminated):
            prepare._run([sys.executable, "-c", "import time; time.sleep(900)"], os.environ)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [step.returncode for step in started] == [-signal.SIGTERM]


def test_the_first_import_prints_one_line(tmp_path):
    """The program itself, before it can import anything of the package."""
    (tmp_path / "neoxargs").mkdir()
    (tmp_path / "neoxargs" / "__init__.py").touch()
    (tmp_path / "neoxargs" / "cli.py").write_text("raise KeyboardInterrupt")
    Path(tmp_path, "deepy.py").write_text((ROOT / "deepy.py").read_text())
    done = subprocess.run([sys.executable, "deepy.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"})  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "deepy: interrupted\n")
