"""A long run that is killed again and again, compared with an undisturbed one: `python bench/soak.py --folder soak`.

A tiny GPT trains on tp2 x pp2 with evaluation, checkpoints and logs. Random ranks, supervisors, the process that starts
the ranks, and deepy itself are killed with SIGKILL, at random moments of steps, saves, evaluations and starts. deepy
restarts the ranks (`--restarts`); deepy itself is started again with the same command, as a user would do. The report
says whether all losses and the last checkpoint are equal bit for bit, whether memory and open files stay the same, what
is left over, and how long it takes from a death to the next step. If the program is stopped, the same command goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.files.token_files import writer as indexed  # noqa: E402

CONFIG = {
    "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32, "max_position_embeddings": 32,
    "model_parallel_size": 2, "pipe_parallel_size": 2, "num_gpus": 4, "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "eval_interval": 50, "eval_iters": 2,
    "checkpoint_factor": 25, "keep_last_n_checkpoints": 2, "log_interval": 10, "hidden_dropout": 0.1,
    "attention_dropout": 0.1, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "dialect": "neox-2026",
    "tokenizer_type": "ByteLevelTokenizer", "split": "8,1,1", "distributed_backend": "gloo",
}  # fmt: skip
KINDS = ("rank", "supervisor", "starter", "deepy")
#: Share of the kills that happen while the run starts again after the kill before.
AT_START = 0.2
#: Seconds between two looks at the memory of the processes.
LOOK = 2.0
#: What no run may leave behind in its folder.
LEFTOVERS = ("**/.writing-*", "**/.removing-*", "**/run.lock", "**/.run.lock*", "**/.rank-*", "tmp/*")
#: The folder of torch's compiler cache, which every process that imports torch's compiler creates.
TORCH_CACHE = "torchinductor_"


@dataclass
class Kill:
    """A process that is killed: at a step, or some seconds after the kill before it."""

    kind: str
    number: int
    """Which rank or supervisor."""
    step: int
    delay: float
    at_start: bool = False


@dataclass
class Death:
    """A kill that has happened. seconds: until the next step; None if the run was killed again before."""

    kind: str
    step: int
    seconds: float | None = None


@dataclass
class State:
    """The progress of the disturbed run, which is kept in a file."""

    deaths: list[Death] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    """Open files of deepy at its first step and after every restart."""
    died: float | None = None
    """When the last one died, by the monotonic clock."""

    @classmethod
    def read(cls, path: Path) -> State:
        if not path.exists():
            return cls()
        values = json.loads(path.read_text())
        return cls([Death(**death) for death in values["deaths"]], values["descriptors"])

    def following(self, kills: list[Kill]) -> Kill | None:
        """Return the next kill."""
        return kills[len(self.deaths)] if len(self.deaths) < len(kills) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, required=True, help="for the runs and the report; must be empty, or of this"
    )
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    shared = set(os.listdir("/dev/shm"))
    quiet, killed = Run(folder / "undisturbed", options.steps), Run(folder / "disturbed", options.steps)
    memory = quiet.undisturbed()
    state = killed.disturbed(planned(options.steps, options.kills, options.seed))
    report = {
        **_compared(quiet, killed), **_memory(memory), **_left(quiet, killed, shared), **_deaths(state),
    }  # fmt: skip
    print("\n".join(f"{name:<44} {value}" for name, value in report.items()))
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(value != "NO" for value in report.values()) else 1


def planned(steps: int, kills: int, seed: int) -> list[Kill]:
    """Return the kills in their order, the same for the same arguments."""
    draw = random.Random(seed)
    at = sorted(draw.randrange(1, max(2, steps - 1)) for _ in range(kills))
    found = []
    for number, step in enumerate(at):
        at_start = bool(number) and draw.random() < AT_START
        # A random moment of a start, or a quarter of a second on average after a step has begun.
        delay = draw.uniform(0, 10) if at_start else draw.expovariate(4)
        found.append(Kill(draw.choice(KINDS), draw.randrange(4), step, delay, at_start))
    return found


class Run:
    """One run in a folder of its own."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps, self.out, self.done = folder, steps, folder / "out", folder / "done"
        self.state_file, self.before = folder / "state.json", None
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        save = str(self.out)
        values = {**CONFIG, "train_iters": steps, "data_path": str(_tokens(folder)), "run_dir": save, "save": save,
                  "load": save}  # fmt: skip
        (folder / "run.yml").write_text(json.dumps(values))

    # -- the two runs ------------------------------------------------------------------------------------------------

    def undisturbed(self) -> dict[str, list[int]]:
        """Run to the end and return the memory of deepy, the supervisors and the ranks over time."""
        path, memory = self.folder / "memory.json", dict[str, list[int]]()
        if not self.done.exists():
            with self._started(0) as deepy:
                while deepy.poll() is None:
                    time.sleep(LOOK)
                    present = self._processes(deepy.pid)
                    if self.step() > 1 and len(present["rank"]) == CONFIG["num_gpus"]:
                        for name, pids in present.items():
                            memory.setdefault(name, []).append(sum(map(_memory_of, pids)))
            self._finish(deepy.returncode)
            path.write_text(json.dumps(memory))
        found: dict[str, list[int]] = json.loads(path.read_text())
        return found

    def disturbed(self, kills: list[Kill]) -> State:
        """Run to the end while these processes are killed."""
        state = State.read(self.state_file)
        while not self.done.exists():
            with self._started(10 * len(kills) + 10) as deepy:
                self._disturb(deepy, kills, state)
                if deepy.poll() is None or deepy.returncode != -signal.SIGKILL:
                    self._finish(deepy.wait())
        return state

    def _disturb(self, deepy: subprocess.Popen[bytes], kills: list[Kill], state: State) -> None:
        """Kill what is due until deepy itself is killed or ends."""
        attempt = self.before
        while kill := state.following(kills):
            if not kill.at_start:
                self._await_step(deepy, state, attempt)
            if not self._await_moment(deepy, kill):
                return
            attempt, state.died = self._attempt(), time.monotonic()
            kind = self._kill(deepy, kill)
            state.deaths.append(Death(kind, self.step()))
            self._keep(state)
            print(f"{len(state.deaths)}/{len(kills)}: killed {kind} at step {state.deaths[-1].step}", flush=True)
            if kind == "deepy":
                deepy.wait()
                return
        self._await_step(deepy, state, attempt)

    def _await_moment(self, deepy: subprocess.Popen[bytes], kill: Kill) -> bool:
        """Wait for the moment of a kill; return whether deepy still runs."""
        while not kill.at_start and deepy.poll() is None and self.step() < kill.step:
            time.sleep(0.02)
        time.sleep(kill.delay)
        return deepy.poll() is None

    def _await_step(self, deepy: subprocess.Popen[bytes], state: State, attempt: int | None) -> None:
        """Wait for the first step after a death, whose metrics are in another file. attempt: that of the death."""
        while deepy.poll() is None and (self._attempt() in (None, attempt) or not self.stepped()):
            time.sleep(0.02)
        if deepy.poll() is None:
            state.descriptors.append(len(os.listdir(f"/proc/{deepy.pid}/fd")))
            if state.died:
                state.deaths[-1].seconds = time.monotonic() - state.died
        self._keep(state)

    def _keep(self, state: State) -> None:
        part = self.state_file.with_suffix(".part")
        part.write_text(json.dumps(asdict(state)))
        part.replace(self.state_file)

    def _finish(self, code: int) -> None:
        if code:
            raise SystemExit(f"deepy ended with code {code}: see {self.folder / 'console.log'}")
        self.done.touch()

    @contextlib.contextmanager
    def _started(self, restarts: int) -> Iterator[subprocess.Popen[bytes]]:
        words = [sys.executable, str(ROOT / "deepy.py"), "train.py", "run.yml", f"--restarts={restarts}"]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TMPDIR": str(self.folder / "tmp")}
        self.before = self._attempt()
        with (self.folder / "console.log").open("ab") as log:
            deepy = subprocess.Popen(words, cwd=self.folder, env=environ, stdout=log, stderr=log)
        try:
            yield deepy
        finally:
            deepy.terminate()
            deepy.wait()

    # -- what is seen from outside -----------------------------------------------------------------------------------

    def _metrics(self) -> Path:
        return self.out / "metrics.jsonl"

    def rows(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            lines = self._metrics().read_text().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]
        return []

    def step(self) -> int:
        """Return the last step so far."""
        with contextlib.suppress(OSError, ValueError):
            with self._metrics().open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                # The first line may be cut.
                lines = file.read().splitlines(keepends=True)[1:]
            return max((json.loads(line)["step"] for line in lines[-3:] if line.endswith(b"\n")), default=0)
        return 0

    def stepped(self) -> bool:
        """Return whether this attempt has taken a step: each writes a row when it starts."""
        with contextlib.suppress(OSError), self._metrics().open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
            return b'"event": "step"' in file.read().rpartition(b'"event": "start"')[2].partition(b"\n")[2]
        return False

    def _attempt(self) -> int | None:
        """Identify the metrics of an attempt: each begins a new file with the rows that it keeps."""
        with contextlib.suppress(OSError):
            return self._metrics().stat().st_ino
        return None

    def _processes(self, deepy: int) -> dict[str, list[int]]:
        starters = [pid for pid in _children(deepy) if b"local_ranks" in _command(pid)]
        supervisors = [pid for starter in starters for pid in _children(starter)]
        ranks = [pid for supervisor in supervisors for pid in _children(supervisor)[:1]]
        return {"deepy": [deepy], "starter": starters, "supervisor": supervisors, "rank": ranks}

    def _kill(self, deepy: subprocess.Popen[bytes], kill: Kill) -> str:
        """Kill a process of this kind, or the nearest that exists while the run starts, and return its kind."""
        present = self._processes(deepy.pid)
        kind = next(kind for kind in (*KINDS[KINDS.index(kill.kind) :], "deepy") if present[kind])
        pids = present[kind]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[kill.number % len(pids)], signal.SIGKILL)
        return kind


# -- the report ------------------------------------------------------------------------------------------------------


def _compared(quiet: Run, killed: Run) -> dict[str, Any]:
    # a run that is killed after its last step evaluates again, and must find the same
    rows = [{_figures(row) for row in run.rows() if row["event"] in ("step", "evaluation")} for run in (quiet, killed)]
    same = rows[0] == rows[1]
    return {
        "steps": sum(row["event"] == "step" for row in killed.rows()),
        "losses, norms and evaluations bit-equal": "yes" if same else "NO",
        "last checkpoint bit-equal": "yes" if _same_checkpoint(quiet.out, killed.out) else "NO",
    }


def _figures(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("event", "step", "split", "loss", "grad_norm", "lr"))


def _same_checkpoint(one: Path, other: Path) -> bool:
    """Return whether weights, optimizer states and random states are equal; not the paths in configurations."""
    import torch

    names = [(folder / "latest").read_text().strip() for folder in (one, other)]
    saved = [folder / name for folder, name in zip((one, other), names, strict=True)]
    files = [sorted(path.name for path in folder.glob("*.pt")) for folder in saved]
    if files[0] != files[1] or names[0] != names[1] or not files[0]:
        return False
    pairs = [[torch.load(folder / file, weights_only=True) for folder in saved] for file in files[0]]
    return all(_equal(*pair) for pair in pairs)


def _equal(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        keys = set(one) - {"ds_config"}
        return keys == set(other) - {"ds_config"} and all(_equal(one[key], other[key]) for key in keys)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _memory(memory: dict[str, list[int]]) -> dict[str, str]:
    """Return the growth of each kind of process, from the second tenth of the undisturbed run to its last tenth."""
    report, flat = {}, True
    for kind, samples in memory.items():
        sizes = samples[:-1] or samples  # at the last look, some processes may have ended
        tenth = max(1, len(sizes) // 10)
        early, late = median(sizes[tenth : 2 * tenth] or sizes), median(sizes[-tenth:])
        report[f"memory of {kind} (MB), growth"] = f"{late / 1e6:.1f}, {late / early - 1:+.1%}"
        flat = flat and late <= 1.02 * early
    return report | {"memory flat (2 %)": "yes" if flat else "NO"}


def _left(quiet: Run, killed: Run, shared: set[str]) -> dict[str, str]:
    report = {}
    for run in (quiet, killed):
        found = [path for pattern in LEFTOVERS for path in run.folder.glob(pattern)]
        files = [str(path.relative_to(run.folder)) for path in found if not path.name.startswith(TORCH_CACHE)]
        report[f"files left, {run.folder.name}"] = ", ".join(files[:5]) or "none"
    # Processes are found by their working folder, because their parents may have been killed.
    ours = [
        int(path.name) for path in Path("/proc").glob("[0-9]*") if _working_folder(path).startswith(str(killed.folder))
    ]
    memory = [name for name in set(os.listdir("/dev/shm")) - shared if name.startswith(("torch_", "gloo", "sem.mp-"))]
    report["processes left (each holds its ports)"] = str(ours) if ours else "none"
    report["shared memory left (of any program)"] = ", ".join(memory) or "none"
    clean = all(value == "none" for name, value in report.items() if "any program" not in name)
    return report | {"nothing left": "yes" if clean else "NO"}


def _deaths(state: State) -> dict[str, Any]:
    report: dict[str, Any] = {"kills": len(state.deaths)}
    for kind in KINDS:
        found = [death for death in state.deaths if death.kind == kind]
        seconds = [death.seconds for death in found if death.seconds]
        took = f"{mean(seconds):.1f}, {max(seconds):.1f}" if seconds else "-"
        report[f"  of a {kind}: number; s to next step (mean, max)"] = f"{len(found)}; {took}"
    everything = [death.seconds for death in state.deaths if death.seconds]
    report["mean time from death to next step (s)"] = f"{mean(everything):.1f}" if everything else "-"
    report["open files of deepy (least, most)"] = f"{min(state.descriptors)}, {max(state.descriptors)}"
    report["open files constant"] = "yes" if max(state.descriptors) <= min(state.descriptors) + 1 else "NO"
    return report


# -- processes -------------------------------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _memory_of(pid: int) -> int:
    """Return the bytes that a process has allocated; 0 if it has just ended.

    Pages that it shares with the process it was forked from count too: otherwise each page that is written for the
    first time, such as by a reference count, would look like growth.
    """
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Anonymous:", "Swap:")))
    return 0


def _working_folder(process: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(process / "cwd")
    return ""


def _tokens(folder: Path) -> Path:
    """Write random tokens unless they exist, and return the prefix of their files."""
    prefix = folder / "tokens"
    if not indexed.exists(prefix):
        with indexed.new_file(prefix, np.uint16) as writer:
            writer.add(np.random.default_rng(0).integers(0, 256, 20_000).astype(np.uint16), [200] * 100, [True] * 100)
    return prefix


if __name__ == "__main__":
    if not Path("/proc/self/smaps_rollup").exists():
        raise SystemExit("this program reads /proc, which only Linux has")
    sys.exit(main())
