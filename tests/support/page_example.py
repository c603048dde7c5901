"""Runs the commands of the example at the beginning of a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from tests.support.paths import DOCS, ROOT


def run_example(page: str, folder: Path, short: str, shorter: Mapping[str, str] | None = None) -> str:
    """Run the commands up to the second heading in a folder, and return what they print.

    short: appended to launches, so that a few steps show that everything fits together. shorter: words of commands, and
    what replaces them for the same reason.
    """
    example = "".join((DOCS / page).read_text(encoding="utf-8").partition("\n## ")[2].partition("\n## ")[0])
    commands = "".join(re.findall(r"^```sh\n(.*?)^```", example, flags=re.M | re.S)).replace("\\\n", " ").splitlines()
    commands = [reduce(lambda text, pair: text.replace(*pair), (shorter or {}).items(), each) for each in commands]
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / ".venv" / "bin" / "python").chmod(0o755)
    for name in ("deepy.py", "configs", "docs", "neoxargs"):
        (folder / name).symlink_to(ROOT / name)
    environment, printed = os.environ | {"PYTHONPATH": str(ROOT)}, ""
    for command in commands:
        assert command.startswith(".venv/bin/python deepy.py "), command
        launches = re.search(r"deepy\.py (train|generate)\.py", command)
        words = ["bash", "-c", f"{command} {short}" if launches else command]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        printed += done.stdout
    return printed
