"""Measure the training throughput of each layout on this machine's CPU cores, beside other trainers, in turns.

    python bench/train_cpu.py [--against DIR ...] [--layouts "1 process" pp2] [--vocabulary 512] [--turns 15] [--json]
    python bench/train_cpu.py --experts
    python bench/train_cpu.py --profile [--layouts pp2]

For each layout, all runs that are compared are started and paused. Then they take turns: each run continues for a few
steps, alone, and is paused again. One process is compared with peers.py: a GPT in plain torch, transformers', and a
step's matrix products and attention alone; with experts, transformers' Mixtral. Each other layout is compared with
deepy in one process on the same cores. `--experts` measures all layouts of a model with experts. `--against` adds a
checkout whose deepy.py reads the same file: GPT-NeoX, or another version of deepy. A turn is repeated if other
processes use much of the CPU meanwhile. Each figure is a median over the turns; ratios are of the tokens per second in
the same round. cpu_runs.py has the model and the layouts.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import Any, NamedTuple

import psutil
from cpu_runs import LAYOUTS, ROOT, TOKENS_PER_STEP, command, configuration_file, environment, prepare

#: The same in one process: of the dense model, and of the one with experts.
ALONE, EXPERTS_ALONE = "1 process", "1 process, experts"
#: Layout in one process -> the programs of peers.py with the same model.
PEERS = {ALONE: ("plain", "transformers", "kernels"), EXPERTS_ALONE: ("mixtral",)}
#: The line after each step of all trainers.
STEP = re.compile(rb"\biteration\s+\d+\s*/")
#: Steps before the first turn, in which a run allocates memory; and more steps than a run ever makes.
WARM_UP, ITERATIONS = 5, 10_000
#: Seconds that a run may take to its first steps or for a turn.
PATIENCE = 300
#: The share of the cores that other processes may use during a turn, and how often such a turn is repeated.
DISTURBANCE, ATTEMPTS = 0.05, 6


class Turn(NamedTuple):
    """A few steps of a run."""

    speed: float
    """Tokens per second."""
    cpu: float
    """CPU seconds of the run per step."""
    others: float
    """The share of the cores that processes outside the run used."""


class Command(NamedTuple):
    """The command of a run, the number of its ranks, and the checkout whose train.py and package it takes."""

    words: list[str]
    ranks: int
    trainer: Path = ROOT


class Run:
    """The processes of a training run, which can be paused; steps are timed by the lines that the run prints."""

    def __init__(self, command: Command) -> None:
        self.ends: list[float] = []
        self.output: deque[bytes] = deque(maxlen=40)
        self.ended, self.changed = False, Condition()
        self.process = subprocess.Popen(
            command.words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=command.trainer,
            env=environment(command.ranks, command.trainer),
        )  # fmt: skip
        self.reader = Thread(target=self._read, daemon=True)
        self.reader.start()
        self._await_steps(WARM_UP)
        self._signal("suspend")

    def turn(self, steps: int) -> Turn:
        """Continue for some steps, after the one that the pause interrupted."""
        done = len(self.ends)
        self._signal("resume")
        self._await_steps(done + 1)
        # Read at the ends of steps, like the clock: CPU seconds and steps then belong together.
        before = self._cpu_seconds()
        self._await_steps(done + 1 + steps)
        after = self._cpu_seconds()
        self._signal("suspend")
        seconds = self.ends[done + steps] - self.ends[done]
        own, others = (later - sooner for later, sooner in zip(after, before, strict=True))
        return Turn(steps * TOKENS_PER_STEP / seconds, own / steps, others / seconds / psutil.cpu_count())

    def end(self) -> None:
        """Kill all processes of the run."""
        self._signal("kill")
        self.process.wait()
        self.reader.join()
        assert self.process.stdout
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self.changed:
                self.output.append(line)
                if STEP.search(line):
                    self.ends.append(time.perf_counter())
                self.changed.notify()
        with self.changed:
            self.ended = True
            self.changed.notify()

    def _await_steps(self, count: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: len(self.ends) >= count or self.ended, PATIENCE)
        if len(self.ends) < count:
            self.end()
            sys.exit(b"".join(self.output).decode(errors="replace"))

    def _processes(self) -> list[psutil.Process]:
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]

    def _signal(self, name: str) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                getattr(process, name)()

    def _cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU seconds that the run has used so far, and those of all other processes of the machine."""
        times, processes = psutil.cpu_times(), [process.cpu_times() for process in self._processes()]
        own = sum(used.user + used.system for used in processes)
        return own, sum(times) - times.idle - times.iowait - own


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no paused run is left
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for vocabulary in options.vocabulary:
            config = prepare(folder, vocabulary, ITERATIONS)
            if options.profile:
                for layout in options.layouts:
                    profile(config | LAYOUTS[layout], folder)
                continue
            for layout in options.layouts:
                turns = measure(layout, config, folder, options)
                rows = {name: [turn._asdict() for turn in found] for name, found in turns.items()}
                row = {"layout": layout, "vocabulary": vocabulary, "turns": rows}
                print(json.dumps(row) if options.json else table(layout, vocabulary, turns), flush=True)


def measure(layout: str, config: dict[str, Any], folder: Path, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """Return the turns of each run by its name, those of the layout first."""
    runs: dict[str, Run] = {}
    try:
        for name, found in commands(layout, config, folder, options.against).items():
            runs[name] = Run(found)
        turns: dict[str, list[Turn]] = {name: [] for name in runs}
        for _ in range(options.turns):
            for name, run in runs.items():
                turns[name].append(undisturbed_turn(run, options.steps))
        return turns
    finally:
        for run in runs.values():
            run.end()


def commands(layout: str, config: dict[str, Any], folder: Path, others: list[Path]) -> dict[str, Command]:
    """Return the command of each run that is compared with a layout, by its name."""
    trainers = {layout: (ROOT, layout)} | {f"{other.name}, {layout}": (other, layout) for other in others}
    if layout not in PEERS:
        alone = EXPERTS_ALONE if "experts" in layout else ALONE
        trainers[alone] = (ROOT, alone)
    found = {}
    for number, (name, (trainer, of)) in enumerate(trainers.items()):
        changed = config | LAYOUTS[of]
        file = configuration_file(changed, folder / f"run{number}")
        found[name] = Command(command(trainer, file), changed["num_gpus"], trainer)
    file = configuration_file(config | LAYOUTS[layout], folder / "peers")
    for peer in PEERS.get(layout, ()):
        found[peer] = Command([sys.executable, str(ROOT / "bench/peers.py"), peer, str(file)], 1)
    return found


def undisturbed_turn(run: Run, steps: int) -> Turn:
    """Return the first turn without much other work on the machine, or the least disturbed one of several."""
    turns: list[Turn] = []
    while not turns or (turns[-1].others > DISTURBANCE and len(turns) < ATTEMPTS):
        turns.append(run.turn(steps))
    # On a busy machine no turn is undisturbed.
    return min(turns, key=lambda turn: turn.others)


def table(layout: str, vocabulary: int, turns: Mapping[str, list[Turn]]) -> str:
    """Return a line for each run: tokens and CPU seconds, and the layout's speed divided by that of the run."""
    lines = [f"{layout}, vocabulary {vocabulary}"]
    for name, found in turns.items():
        ratio = statistics.median(mine.speed / other.speed for mine, other in zip(turns[layout], found, strict=True))
        speed, cpu = statistics.median(turn.speed for turn in found), statistics.median(turn.cpu for turn in found)
        line = f"  {name:34}{speed:8,.0f} tokens/s{cpu:8.3f} CPU s per step"
        lines.append(line + (f"{ratio:7.2f} x" if name != layout else ""))
    return "\n".join(lines)


#: Part of a step -> the operators whose own time it is; the first that matches counts.
PARTS = {
    "matrix products": r"aten::(mm|addmm|bmm)$",
    "attention": "scaled_dot_product",
    "GELU, norms": "gelu|layer_norm",
    "optimizer, gradient norm": r"adamw|Optimizer|vector_norm",
    "messages, waiting": "gloo|c10d",
    "other operators": "",
}


def profile(config: dict[str, Any], folder: Path) -> None:
    """Print the shares of two steps of rank 0, and its slowest operators."""
    file = configuration_file(config | {"train_iters": 20}, folder / "profiled")
    words = [*command(ROOT, file), "--set", "profile=true"]
    env = environment(config["num_gpus"])
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    lines = (file.parent / "profile.txt").read_text().splitlines()
    print(
        "two steps of rank 0: " + ", ".join(f"{part} {share:.1%}" for part, share in shares(file.parent, lines).items())
    )
    for line in lines[:25]:
        print(line[:60] + line[60:].replace("  ", " ")[:90])


def shares(folder: Path, lines: Sequence[str]) -> dict[str, float]:
    """Return the share of each part in the time of the profiled steps, and that of the time without an operator."""
    events = [event for event in json.loads((folder / "profile.json").read_text())["traceEvents"]
              if event.get("cat") == "cpu_op"]  # fmt: skip
    whole = max(event["ts"] + event["dur"] for event in events) - min(event["ts"] for event in events)
    found = dict.fromkeys(PARTS, 0.0)
    for name, number, unit in re.findall(
        r"^\s*(\S.*?)\s+[\d.]+%\s+([\d.]+)(us|ms|s)\s", "\n".join(lines), re.MULTILINE
    ):
        part = next(part for part, operators in PARTS.items() if re.search(operators, name))
        found[part] += float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit] / whole
    return found | {"between operators": 1 - sum(found.values())}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    with_experts = [name for name in LAYOUTS if "experts" in name]
    layouts = [name for name in LAYOUTS if not name.startswith("1 process, ") and name not in with_experts]
    parser.add_argument("--against", type=Path, nargs="+", default=[], metavar="DIR", help="checkouts to compare with")
    parser.add_argument(
        "--layouts", nargs="+", default=layouts, choices=list(LAYOUTS), help="default: all with a pipeline"
    )
    parser.add_argument(
        "--experts", dest="layouts", action="store_const", const=with_experts, help="all layouts with experts"
    )
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[512], help="sizes (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=15, help="turns of each run (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps of each turn (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="profile the layouts instead")
    parser.add_argument("--json", action="store_true", help="print the tokens per second of all turns as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
