"""`check` answers before a person notices that it was started: what it may load, and how it ends."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_an_error(tmp_path):
    with open("/dev/full", "w") as full:
        words = [sys.executable, "deepy.py", "check", "configs/quickstart.yml", "--set", f"save={tmp_path}"]
        done = subprocess.run(words, cwd=ROOT, env=os.environ, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
