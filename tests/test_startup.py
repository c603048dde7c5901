"""`check` answers before a person notices that it was started: what it may load, and how it ends."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.snapshots import pinned

PACKAGE = ROOT / "neoxargs"
HEAVY = {"torch", "deepspeed", "megatron", "transformers", "numpy", "tokenizers", "matplotlib", "tensorboard"}
#: Loaded when something is drawn or launched, never by a check.
NOT_FOR_CHECK = {
    *HEAVY, "rich", "subprocess", "socket", "asyncio", "dataclasses", "inspect", "ast", "hashlib", "zipfile",
    "concurrent", "logging",
    "neoxargs.train", "neoxargs.launch.start.run", "neoxargs.checks.checkpoint.changes",
    "neoxargs.registry.docstrings",
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules in a process that has checked the quickstart."""
    elsewhere = f"save={tmp_path_factory.mktemp('save')}"  # a folder with an earlier run's checkpoint is an error
    program = (
        "import sys; from neoxargs.cli import main\n"
        f"code = main(['check', 'configs/quickstart.yml', '--set', '{elsewhere}'])\n"
        "print('\\n'.join(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok\n")
    return set(done.stderr.split())


def test_a_check_loads_neither_torch_nor_anything_else_that_takes_long(loaded):
    assert not {name for name in loaded if name.partition(".")[0] in NOT_FOR_CHECK or name in NOT_FOR_CHECK}
    assert {"neoxargs.registry", "neoxargs.resolve", "yaml"} <= loaded


def test_a_command_ends_after_its_exit_handlers_without_freeing_modules(tmp_path):
    elsewhere = f"save={tmp_path}"
    program = (
        "import atexit, sys\n"
        "class Freed:\n    __del__ = lambda self: print('freed')\n"
        f"kept, sys.argv = Freed(), ['deepy', 'check', 'configs/quickstart.yml', '--set', '{elsewhere}']\n"
        "atexit.register(print, 'exit handler')\n"
        "from neoxargs.cli import program; program()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert (first, last) == ("ok", "exit handler")


RUN = ["configs/quickstart.yml", "--set", "save=SAVE"]
COMMANDS = [
    ["--help"], ["check", *RUN], ["check", *RUN, "--json"], ["explain", "--all", *RUN],
    ["train.py", *RUN, "--set", "run_dir=SAVE", "--dry-run"],
    ["data", "--count", "nothing"], ["check", "nothing.yml", "--json"],
]  # fmt: skip


def with_streams(words, tmp_path, redirection):
    words = [word.replace("SAVE", str(tmp_path / "run")) for word in words]
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "deepy.py", *words]
    return subprocess.run(shell, cwd=ROOT, env=os.environ, capture_output=True, text=True)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_output_that_cannot_be_written_is_an_error(words, tmp_path):
    done = with_streams(words, tmp_path, ">/dev/full")
    assert done.returncode == 1
    if "nothing" not in words:
        pinned(done.stderr)


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-", "2>&-"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_closed_stream_is_as_dev_null(words, closed, tmp_path):
    null = closed.replace("&-", "/dev/null")
    done, same = with_streams(words, tmp_path, closed), with_streams(words, tmp_path, null)
    assert (done.returncode, done.stdout, done.stderr) == (same.returncode, same.stdout, same.stderr)


def test_a_closed_standard_input_answers_no_question(tmp_path):
    for iteration in (1, 2):
        (tmp_path / f"global_step{iteration}").mkdir()
        (tmp_path / f"global_step{iteration}" / "model.pt").write_bytes(b"x")
    done = with_streams(["checkpoints", str(tmp_path), "--prune", "1"], tmp_path, "<&-")
    assert done.returncode == 1
    pinned(done.stderr, "[prune-needs-yes]")
