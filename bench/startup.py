"""Measure the CPU time of `deepy check`, of its imports alone, and of the start of Python.

    python bench/startup.py [--runs 15] [--json]

Each figure is the median CPU time (user and system) of several child processes. Other load on the machine has little
effect on it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Without PYTHONDONTWRITEBYTECODE, which would make every start compile the sources, unlike an installed package.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "imports of deepy check": ["-c", "import neoxargs.cli, neoxargs.tools.check"],
    "deepy.py check configs/quickstart.yml": ["deepy.py", "check", "configs/quickstart.yml"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="number of runs of each command (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print milliseconds as JSON")
    options = parser.parse_args()
    cpu_time(COMMANDS["deepy.py check configs/quickstart.yml"])  # writes the .pyc files
    medians = {
        name: statistics.median(cpu_time(words) for _ in range(options.runs)) for name, words in COMMANDS.items()
    }
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    base = medians["python -c pass"]
    for name, milliseconds in medians.items():
        print(f"{name:40} {milliseconds:6.0f} ms  {milliseconds / base:5.1f} x")


def cpu_time(arguments: list[str]) -> float:
    """Return the CPU milliseconds of Python with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


if __name__ == "__main__":
    main()
