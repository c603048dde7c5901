"""Measure how long commands take before they do their work: `check` and `--dry-run`, and `train.py` to its first step.

    python bench/startup.py [--runs 15] [--starts 3] [--before DIR] [--against DIR] [--json]

`check`, `--dry-run` and `plan`, also with a search, are measured in CPU time, on which other load on the machine has
little effect, beside an empty Python. `--before` measures the same commands of an earlier checkout. The start of a run
is measured in wall time, beside a bare `import torch, deepspeed`, for one process and for tp2 x pp2: to the line of
iteration 1, and from the last line to the end of the command. `--against` measures another trainer that starts with
`python DIR/deepy.py train.py FILE`, such as GPT-NeoX, with the same file; it gets stand-ins for torch.cuda
(cuda_stand_ins/). All commands take turns. Each figure is a median. With `--starts 0`, no run is started.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from cpu_runs import LAYOUTS, ROOT, command, configuration_file, environment, prepare

ENVIRONMENT = environment(ranks=1)
EMPTY, IMPORTS = "python -c pass", "imports of deepy check"
COMMANDS = {
    EMPTY: ["-c", "pass"],
    IMPORTS: ["-c", "import neoxargs.cli, neoxargs.commands.check.command"],
    "deepy.py check configs/quickstart.yml": ["deepy.py", "check", "configs/quickstart.yml"],
    "deepy.py train.py configs/quickstart.yml --dry-run": [
        "deepy.py", "train.py", "configs/quickstart.yml", "--dry-run",
    ],
    "deepy.py plan configs/quickstart.yml": ["deepy.py", "plan", "configs/quickstart.yml"],
    "deepy.py plan --search, 256 x H100": [
        "deepy.py", "plan", "configs/models/llama-2-70b.yml", "configs/layouts/tp8-pp4.yml",
        "configs/machines/a100.yml", "--gpus", "256", "--device", "H100", "--search",
    ],
}  # fmt: skip
IMPORT = "import torch, deepspeed"
STARTED = ("1 process", "tp2 x pp2")
#: The line of a first step, here and in GPT-NeoX.
FIRST_STEP = re.compile(rb"\biteration\s+1\s*/")


class Start(NamedTuple):
    """Seconds of a run of one step."""

    to_first_step: float
    to_exit: float
    """From the last line of output to the end of the command."""


def main() -> None:
    options = _options()
    medians = measured_commands(options.runs, options.before)
    starts = measured_starts(options.starts, options.against) if options.starts else {}
    if options.json:
        print(json.dumps({"cpu_ms": medians, "start_s": starts}, indent=2))
        return
    for name, milliseconds in medians.items():
        print(f"{name:52} {milliseconds:6.0f} ms CPU  {milliseconds / medians[EMPTY]:5.1f} x")
    for name, seconds in starts.items():
        print(f"{name:52} {seconds:6.1f} s       {seconds / starts[IMPORT]:5.2f} x")


def cpu_time(arguments: list[str], folder: Path = ROOT) -> float:
    """Return the CPU milliseconds of Python with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=folder, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def measured_commands(repetitions: int, before: Path | None) -> dict[str, float]:
    """Return median CPU milliseconds by name, of commands that take turns. The first round is not counted: it compiles.

    before: an earlier checkout, whose commands are measured too; its modules may have other names.
    """
    commands = {name: (words, ROOT) for name, words in COMMANDS.items()}
    if before:
        earlier = COMMANDS.keys() - {EMPTY, IMPORTS}
        commands |= {f"{name}, before": (words, before) for name, words in COMMANDS.items() if name in earlier}
    rounds = [{name: cpu_time(*command) for name, command in commands.items()} for _ in range(1 + repetitions)]
    return {name: statistics.median(times[name] for times in rounds[1:]) for name in commands}


def measured_starts(repetitions: int, other: Path | None) -> dict[str, float]:
    """Return median seconds by name, of commands that take turns. The first round is not counted: it compiles."""
    trainers = {"deepy": ROOT} | ({other.name: other.resolve()} if other else {})
    with tempfile.TemporaryDirectory() as folder:
        config = prepare(Path(folder), 512, 1)
        rounds = [_starts(config, Path(folder), trainers) for _ in range(1 + repetitions)]
    return {name: statistics.median(times[name] for times in rounds[1:]) for name in rounds[0]}


def _starts(config: dict[str, Any], folder: Path, trainers: dict[str, Path]) -> dict[str, float]:
    """Return seconds by name, of one round of all commands."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORT], env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)  # fmt: skip
    seconds = {IMPORT: time.perf_counter() - began}
    for layout in STARTED:
        changed = config | LAYOUTS[layout]
        file = configuration_file(changed, folder / "run")
        for name, trainer in trainers.items():
            start = timed_start(trainer, file, changed["num_gpus"])
            seconds[f"{name}, {layout}, to the first step"] = start.to_first_step
            seconds[f"{name}, {layout}, from the last line to the end"] = start.to_exit
    return seconds


def timed_start(trainer: Path, file: Path, ranks: int) -> Start:
    """Run a command to its end, in the trainer's folder, and time its output."""
    began = time.perf_counter()
    first = last = 0.0
    output = []
    # Timed by the command's own output, so that other trainers can be measured in the same way.
    with subprocess.Popen(command(trainer, file), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=trainer,
                          env=environment(ranks, trainer)) as process:  # fmt: skip
        assert process.stdout
        for line in process.stdout:
            last = time.perf_counter()
            output.append(line)
            if not first and FIRST_STEP.search(line):
                first = last
    if process.returncode or not first:
        sys.exit(b"".join(output[-40:]).decode(errors="replace"))
    return Start(first - began, time.perf_counter() - last)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="runs of each command (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=3, help="starts of each run (default: %(default)s)")
    parser.add_argument("--before", type=Path, metavar="DIR", help="earlier checkout of deepy")
    parser.add_argument("--against", type=Path, metavar="DIR", help="checkout of another trainer")
    parser.add_argument("--json", action="store_true", help="print milliseconds and seconds as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
