"""What starting costs: CPU time of `deepy check` beside Python's own start, and of its imports alone.

    python bench/startup.py [--runs 15] [--json]

CPU time (user and system) of whole child processes, medians, so that other load on the machine matters little.
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
#: Compiled modules are kept, as in an installed package; where they may not be, every start compiles the sources.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "imports of deepy check": ["-c", "import neoxargs.cli, neoxargs.tools.check"],
    "deepy.py check configs/quickstart.yml": ["deepy.py", "check", "configs/quickstart.yml"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="of each command (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cost(COMMANDS["deepy.py check configs/quickstart.yml"])  # writes the .pyc files
    medians = {name: statistics.median(cost(words) for _ in range(options.runs)) for name, words in COMMANDS.items()}
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    base = medians["python -c pass"]
    for name, milliseconds in medians.items():
        print(f"{name:40} {milliseconds:6.0f} ms  {milliseconds / base:5.1f} x")


def cost(arguments: list[str]) -> float:
    """CPU milliseconds of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


if __name__ == "__main__":
    main()
