"""`deepy plan --learn RUN ...`: the rates of a machine, from the step times of runs on it.

Every rate has a prior, its assumption with a spread; each run is one observation: the logarithm of its median step,
with the spread of its steps and the error of the plan's model between layouts. Both are normal, and the posterior is
that of an iterated Kalman filter: the plan is linearised around the rates found so far until none is more likely.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.record import Record
from neoxargs.base.request import LOCK_FILE
from neoxargs.base.text import format_duration, format_number
from neoxargs.base.write_files import require_replaceable, write_all
from neoxargs.checks.checkpoint.changes import recorded_config
from neoxargs.config.config import Config
from neoxargs.facts.batch import sequences_per_batch
from neoxargs.facts.layout import Layout
from neoxargs.facts.model import vocabulary_rows
from neoxargs.facts.vocab import padded_vocab_size
from neoxargs.files import metrics
from neoxargs.hosts.device_table import Device, reported_device, unknown_device
from neoxargs.plan.estimate import model_variance, sensitivities
from neoxargs.plan.given.assumptions import CONFIGURED, DEFAULT, HALF, SINGLE, VOCABULARY, Assumptions
from neoxargs.plan.given.errors import TENTH, Interval
from neoxargs.plan.given.rates import Rates
from neoxargs.plan.given.target import cpu
from neoxargs.plan.memory.stages import pipeline_stages
from neoxargs.plan.time.roofline import compute_rates
from neoxargs.plan.time.speed import estimate_speed
from neoxargs.resolve.yaml.read import read_text
from neoxargs.runs.lockfile import read_lock

#: Rate -> standard deviation of its logarithm before anything is measured: a factor of 1.35 for products of a known
#: GPU, of e for links, whose topology no data sheet of a GPU knows. A CPU has a row of one machine: twice as much.
PRIOR = {
    "products": 0.3, "attention": 0.4, "bandwidth": 0.4, "kernel": 0.5, "link": 1.0, "link_hosts": 1.0, "latency": 1.0,
    "slowdown": 0.15,
}  # fmt: skip
UNSURE_OF_CPUS = 2
#: Steps at the start of a run that are not counted, and that must be left.
FIRST, LEAST = 3, 10
#: Of the steps that bench/on_gpu.py measures, whose median it reports.
BENCH_SPREAD = 0.01
#: Shares of the way to the solution of the linearised plan that are tried, because what a step waits for may change on
#: the way; and what a share must gain.
STEPS, ENOUGH = (1.0, 0.5, 0.25, 0.1), 1e-3

Matrix = list[list[float]]


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
        config, rows = self.config, self.rows
        return estimate_speed(config, rows, pipeline_stages(config, rows), self.device, self.slots, assumed).step


def rows_of(config: Config) -> int:
    """Return the rows of the padded vocabulary, as a plan knows or assumes them."""
    divisor = config.embedding.make_vocab_size_divisible_by
    return vocabulary_rows(config) or padded_vocab_size(VOCABULARY, divisor, config.parallel.model_parallel_size)


def learn(runs: Sequence[Measured]) -> Rates:
    """Return the rates of the runs' device. Raises Problems if they are of several kinds of device."""
    names = sorted({run.device.name for run in runs})
    if len(names) > 1:
        what = f"these runs are of several kinds of device: {', '.join(names)}"
        raise Problems(
            Problem(what, hint="learn the rates of one kind of device at a time", id="learn-several-devices")
        )
    prior = _prior(runs)
    start = {name: _default(name) for name in prior}
    found, covariance = _posterior(runs, start, list(prior.values()))
    assumed = Assumptions(**found)
    missed = fmean(math.log(run.seconds / run.planned(assumed)) ** 2 / run.variance for run in runs)
    # Runs that the rates explain less well than their own spreads allow make everything less certain.
    wider = max(1.0, missed)
    unexplained = math.sqrt(model_variance(DEFAULT) * wider)
    wide = [[each * wider for each in row] for row in covariance]
    return Rates(names[0], found, wide, unexplained, [run.name for run in runs])


def _prior(runs: Sequence[Measured]) -> dict[str, float]:
    """Return assumption -> standard deviation of its logarithm, for the rates of these runs."""
    sizes = {SINGLE if run.config.precision.precision == "fp32" else HALF for run in runs}
    on_gpu = runs[0].device.kind == "cuda"
    of_kernels: dict[str, float] = {}
    for size in sorted(sizes):
        products, attention = compute_rates(runs[0].device, size)
        of_kernels |= {products: PRIOR["products"], attention: PRIOR["attention"]}
    others = ["bandwidth", *(["kernel", "link_hosts", "slowdown"] if on_gpu else []), "link", "latency"]
    spreads = {**of_kernels, **{name: PRIOR[name] for name in others}}
    return spreads if on_gpu else {name: UNSURE_OF_CPUS * spread for name, spread in spreads.items()}


def _default(name: str) -> float:
    value = float(getattr(DEFAULT, name))
    return DEFAULT.link if value == CONFIGURED else value


def _posterior(
    runs: Sequence[Measured], start: Mapping[str, float], spreads: Sequence[float]
) -> tuple[dict[str, float], Matrix]:
    """Return the rates that the runs make most likely, and the covariance of their logarithms."""
    found, cost = [0.0] * len(start), math.inf  # logarithms, relative to the start
    while True:
        mean, covariance = _linearised(runs, start, found, spreads)
        for step in STEPS:
            tried = [x + step * (m - x) for m, x in zip(mean, found, strict=True)]
            of_tried = _cost(runs, _assumed(start, tried), tried, spreads)
            if of_tried < cost - ENOUGH:
                found, cost = tried, of_tried
                break
        else:
            return _values(start, found), covariance


def _linearised(
    runs: Sequence[Measured], start: Mapping[str, float], found: Sequence[float], spreads: Sequence[float]
) -> tuple[list[float], Matrix]:
    """Return mean and covariance of the logarithms if the plan were as linear as it is around those found so far."""
    assumed, mean = _assumed(start, found), [0.0] * len(found)
    covariance = [
        [spread**2 if row == column else 0.0 for column in range(len(found))] for row, spread in enumerate(spreads)
    ]
    for run in runs:
        at, gradient = sensitivities(run.planned, assumed, start)
        expected = at + sum(g * (m - x) for g, m, x in zip(gradient, mean, found, strict=True))
        moved = [sum(c * g for c, g in zip(row, gradient, strict=True)) for row in covariance]
        variance = sum(g * m for g, m in zip(gradient, moved, strict=True)) + run.variance
        surprise = (math.log(run.seconds) - expected) / variance
        mean = [m + each * surprise for m, each in zip(mean, moved, strict=True)]
        covariance = [
            [c - a * b / variance for c, b in zip(row, moved, strict=True)]
            for row, a in zip(covariance, moved, strict=True)
        ]
    return mean, covariance


def _cost(runs: Sequence[Measured], assumed: Assumptions, logs: Sequence[float], spreads: Sequence[float]) -> float:
    """Return twice the negative logarithm of how likely these rates are, but for a constant."""
    missed = sum(math.log(run.seconds / run.planned(assumed)) ** 2 / run.variance for run in runs)
    return missed + sum((x / spread) ** 2 for x, spread in zip(logs, spreads, strict=True))


def _assumed(start: Mapping[str, float], logs: Sequence[float]) -> Assumptions:
    return Assumptions(**_values(start, logs))


def _values(start: Mapping[str, float], logs: Sequence[float]) -> dict[str, float]:
    values = {name: value * math.exp(log) for (name, value), log in zip(start.items(), logs, strict=True)}
    return values | ({"slowdown": max(1.0, values["slowdown"])} if "slowdown" in values else {})


def measured_runs(operand: str) -> list[Measured]:
    """Return what was measured in a run folder, or what bench/on_gpu.py --json wrote. Raises Problems."""
    return _measured_by_bench(Path(operand)) if operand.endswith(".json") else [_measured_run(operand)]


def _measured_by_bench(path: Path) -> list[Measured]:
    """Return the models that bench/on_gpu.py measured, each on one GPU. Raises Problems."""
    try:
        results = json.loads(read_text(str(path)).text)
        device = reported_device(results["machine"]["gpu"]) or unknown_device()
        rows = [row for row in results["models"] if "config" in row]
        runs = [
            Measured(row["name"], config, device, 1, row["seconds"], BENCH_SPREAD, rows_of(config), row["steps"])
            for row in rows
            for config in (_config(row["config"]),)
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
    tokens = sequences_per_batch(config) * config.shape.seq_length
    try:
        rows = [row["tokens_per_second"] for row in metrics.read(path) if row["event"] == "step"]
        logs = sorted(math.log(tokens / rate) for rate in rows[FIRST:])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"the metrics of this run cannot be read: {error!r}"
        raise Problems(Problem(what, Place(str(path), 0, 0), id="learn-metrics-unreadable")) from None
    if len(logs) < LEAST:
        what = f"this run has {len(rows)} steps; at least {FIRST + LEAST} are needed, the first {FIRST} do not count"
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


def run_learn(operands: Sequence[str], write: str | None, as_json: bool) -> int:
    """Print the rates of these runs' machine, write them to a file, and return the exit code. Raises Problems."""
    require_replaceable(write)
    runs: list[Measured] = []
    problems: list[Problem] = []
    for folder in operands:
        try:
            runs += measured_runs(folder)
        except Problems as stop:
            problems += stop.problems
    if problems:
        raise Problems(problems)
    rates = learn(runs)
    if write:
        write_all([Text(write, rates.text())])
    print(json.dumps(_to_json(runs, rates), indent=1) if as_json else "\n\n".join(_to_text(runs, rates, write)))
    return 0


def _errors(rates: Rates) -> list[float]:
    """Return the factor of the 80 % interval of each rate."""
    return [math.exp(TENTH * math.sqrt(rates.covariance[index][index])) for index in range(len(rates.values))]


def _to_text(runs: Sequence[Measured], rates: Rates, write: str | None) -> list[str]:
    learned = Assumptions(**rates.values)
    width = max(len(run.name) for run in runs) + 2
    lines = [f"{'run':<{width}}{'steps':>6}{'measured':>12}{'spread':>8}{'planned':>12}{'with these rates':>18}"]
    for run in runs:
        before, after = (format_duration(run.planned(assumed)) for assumed in (DEFAULT, learned))
        measured = f"{format_duration(run.seconds):>12}{f'{100 * run.spread:.0f} %':>8}"
        lines.append(f"{run.name:<{width}}{run.steps:>6}{measured}{before:>12}{after:>18}")
    rows = [f"{'rate of ' + rates.device:<{width}}{'assumed':>10}{'learned':>10}  80 % interval"]
    for (name, value), error in zip(rates.values.items(), _errors(rates), strict=True):
        low, high = map(format_number, Interval.of(value, error))
        rows.append(f"{name:<{width}}{format_number(_default(name)):>10}{format_number(value):>10}  {low} to {high}")
    written = f"written to {write}" if write else "--write NAME.rates.yml keeps them"
    error = 100 * (math.exp(TENTH * rates.unexplained) - 1)
    rest = f"what these rates do not explain is an error of {error:.0f} % (80 % interval) in the time of each layout"
    return ["\n".join(lines), "\n".join(rows), rest, written]


def _to_json(runs: Sequence[Measured], rates: Rates) -> dict[str, Any]:
    learned = Assumptions(**rates.values)
    return {
        "ok": True,
        "device": rates.device,
        "unexplained": rates.unexplained,
        "runs": [
            {"run": run.name, "steps": run.steps, "seconds": run.seconds, "spread": run.spread,
             "planned": run.planned(DEFAULT), "with_rates": run.planned(learned)}
            for run in runs
        ],
        "rates": {
            name: {"assumed": _default(name), "value": value, "interval": Interval.of(value, error)}
            for (name, value), error in zip(rates.values.items(), _errors(rates), strict=True)
        },
    }  # fmt: skip
