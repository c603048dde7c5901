"""Stands for the program that runs trials, and fails at one named `fails`: `python -m tests.support.trial_program`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from neoxargs.targets.trial import Trial

if __name__ == "__main__":
    for line in sys.stdin:
        file, ranks = json.loads(line)
        with open(f"{file}.log", "a") as log:
            os.dup2(log.fileno(), 2)
        for trial in map(Trial.of, Path(file).read_text(encoding="utf-8").splitlines()):
            if trial.name == "fails":
                sys.exit("[rank1]: ValueError: it fails")
            with open(f"{file}.observed", "a") as shown:
                shown.write(json.dumps({"name": trial.name, "process": os.getpid(), "ranks": ranks}) + "\n")
        Path(f"{file}.ended").touch()
