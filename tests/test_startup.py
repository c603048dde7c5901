"""`check` answers before a person notices that it was started: what it may load."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "neoxargs"
HEAVY = {"torch", "deepspeed", "megatron", "transformers", "numpy", "tokenizers", "matplotlib", "tensorboard"}
#: Loaded when something is drawn or launched, never by a check.
NOT_FOR_CHECK = {*HEAVY, "rich", "subprocess", "socket", "asyncio", "neoxargs.train", "neoxargs.launch.processes.run"}


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules in a process that has checked the quickstart."""
    program = (
        "import sys; from neoxargs.cli import main; code = main(['check', 'configs/quickstart.yml'])\n"
        "from neoxargs.registry.declare import _class_bodies\n"
        "assert not _class_bodies.cache_info().currsize, 'descriptions were parsed from source'\n"
        "print('\\n'.join(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok\n")
    return set(done.stderr.split())


def test_a_check_loads_neither_torch_nor_anything_else_that_takes_long(loaded):
    assert not {name for name in loaded if name.partition(".")[0] in NOT_FOR_CHECK or name in NOT_FOR_CHECK}
    assert {"neoxargs.registry", "neoxargs.resolve", "yaml"} <= loaded
