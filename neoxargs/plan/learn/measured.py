"""The step time of a run, from its folder or from what bench/on_gpu.py wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.record import Record
from neoxargs.base.request import LOCK_FILE
from neoxargs.checks.checkpoint.changes import recorded_config
from neoxargs.config.config import Config
from neoxargs.facts.batch import sequences_per_batch
from neoxargs.facts.layout import Layout
from neoxargs.files import metrics
from neoxargs.hosts.device_table import Device, reported_device, unknown_device
from neoxargs.plan.estimate import model_variance, rows_of
from neoxargs.plan.given.assumptions import DEFAULT, Assumptions
from neoxargs.plan.given.target import cpu
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.stages import pipeline_stages
from neoxargs.plan.time.speed import estimate_speed
from neoxargs.resolve.yaml.read import read_text
from neoxargs.runs.lockfile import read_lock

#: Of the steps that bench/on_gpu.py measures, whose median it reports.
BENCH_SPREAD = 0.01


class Measured(Record):
    """The step time of one run."""

    name: str
    config: Config
    device: Device
    slots: int
    """Devices of a host."""
    seconds: float
    """The median step."""
    spread: float
    """The standard deviation of the logarithm of the steps, by their median deviation."""
    rows: int
    """Of the vocabulary, read while the tokenizer's file is there."""
    steps: int = 0

    @property
    def variance(self) -> float:
        """Of log(measured / planned) with the right rates."""
        return self.spread**2 + model_variance(DEFAULT)

    def planned(self, assumed: Assumptions) -> float:
        """Return the planned seconds of a step."""
        sizes, stages = ActivationSizes(self.config, self.device.kind, assumed), pipeline_stages(self.config, self.rows)
        return estimate_speed(sizes, self.rows, stages, self.device, self.slots).step


def measured_runs(operand: str) -> list[Measured]:
    """Return what was measured in a run folder, or what bench/on_gpu.py --json wrote. Raises Problems."""
    return _measured_by_bench(Path(operand)) if operand.endswith(".json") else [_measured_run(operand)]


def _measured_by_bench(path: Path) -> list[Measured]:
    """Return the models that bench/on_gpu.py measured, on one GPU or several of one host. Raises Problems."""
    try:
        results = json.loads(read_text(str(path)).text)
        device = reported_device(results["machine"]["gpu"]) or unknown_device()
        rows = [row for row in results["models"] if "config" in row]
        runs = [
            Measured(row["name"], config, device, gpus, row["seconds"], BENCH_SPREAD, rows_of(config), row["steps"])
            for row in rows
            for config, gpus in ((_config(row["config"]), row.get("gpus", 1)),)
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        runs = []
    if runs:
        return runs
    what = "this file has no models measured by bench/on_gpu.py with their configurations"
    hint = "python bench/on_gpu.py --json FILE writes them"
    raise Problems(Problem(what, Place(str(path), 0, 0), hint, id="learn-metrics-unreadable"))


def _config(values: Mapping[str, Any]) -> Config:
    return recorded_config({name: entry["value"] for name, entry in values.items()})


def _measured_run(folder: str) -> Measured:
    """Return the step time of the run in a folder. Raises Problems."""
    file = Path(folder, LOCK_FILE)
    if not file.is_file():
        what, hint = f"this is not the folder of a run: it has no {LOCK_FILE}", "pass the run_dir of a run of train.py"
        raise Problems(Problem(what, Place(folder, 0, 0), hint, id="learn-metrics-unreadable"))
    lock = read_lock(str(file))
    config = _config(lock.values)
    device, slots = _hardware(lock.sections["hardware"], Layout.of(config).ranks)
    path = Path(folder, metrics.FILE)
    tokens, batch = sequences_per_batch(config) * config.shape.seq_length, config.batch.train_batch_size
    try:
        steps = (row for row in metrics.read(path) if row["event"] == "step")
        # Not those of a ramp, which have smaller batches or shorter sequences.
        whole = {"batch": batch, "seq_length": config.shape.seq_length}
        steps = (row for row in steps if all(row.get(name, size) == size for name, size in whole.items()))
        rows = [row["tokens_per_second"] for row in steps]
        logs = sorted(math.log(tokens / rate) for rate in rows[metrics.WARM_UP :])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"the metrics of this run cannot be read: {error!r}"
        raise Problems(Problem(what, Place(str(path), 0, 0), id="learn-metrics-unreadable")) from None
    if len(logs) < metrics.LEAST:
        least, uncounted = metrics.WARM_UP + metrics.LEAST, metrics.WARM_UP
        what = f"this run has {len(rows)} steps; at least {least} are needed, the first {uncounted} do not count"
        raise Problems(Problem(what, Place(str(path), 0, 0), "train for some 50 steps", id="learn-too-few-steps"))
    middle = median(logs)
    # of a normal distribution, half of the values are within 0.6745 standard deviations
    spread = median(abs(log - middle) for log in logs) / 0.6745
    return Measured(folder, config, device, slots, math.exp(middle), spread, rows_of(config), len(logs))


def _hardware(found: Mapping[str, Any], ranks: int) -> tuple[Device, int]:
    """Return the device of a run and the number of devices of a host. found: `hardware` of its run.lock.yml."""
    gpus = found.get("gpus")
    if not gpus:
        return cpu(ranks, found.get("cores") or 1), ranks
    named = reported_device(gpus[0]) if isinstance(gpus, list) else None
    return named or unknown_device(), min(ranks, len(gpus) if isinstance(gpus, list) else gpus)
