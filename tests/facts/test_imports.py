"""Any module of `sizes` can be the first one that a program imports, also those that rules of `resolve` use."""

import subprocess
import sys

from tests.support.paths import ROOT

#: In one process, because the start of Python would take most of the time.
PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "neoxargs"]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""


def test_every_module_can_be_imported_first() -> None:
    names = [f"neoxargs.facts.{path.stem}" for path in sorted((ROOT / "neoxargs/facts").glob("[!_]*.py"))]
    assert "neoxargs.facts.model" in names
    done = subprocess.run([sys.executable, "-c", PROGRAM, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
