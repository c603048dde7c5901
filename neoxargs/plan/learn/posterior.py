"""The rates that the step times of runs make most likely.

Every rate has a prior, its assumption with a spread; each run is one observation: the logarithm of its median step,
with the spread of its steps and the error of the plan's model between layouts. Both are normal, and the posterior is
that of an iterated Kalman filter: the plan is linearised around the rates found so far until none is more likely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from neoxargs.base.problems import Problem, Problems
from neoxargs.plan.estimate import model_variance, sensitivities
from neoxargs.plan.given.assumptions import CONFIGURED, DEFAULT, HALF, SINGLE, Assumptions
from neoxargs.plan.given.rates import Rates
from neoxargs.plan.learn.measured import Measured
from neoxargs.plan.time.roofline import compute_rates

#: Rate -> standard deviation of its logarithm before anything is measured: a factor of 1.35 for products of a known
#: GPU, of e for links, whose topology no data sheet of a GPU knows. A CPU has a row of one machine: twice as much.
PRIOR = {
    "products": 0.3, "attention": 0.4, "bandwidth": 0.4, "kernel": 0.5, "link": 1.0, "link_hosts": 1.0, "latency": 1.0,
    "slowdown": 0.15,
}  # fmt: skip
UNSURE_OF_CPUS = 2
#: Shares of the way to the solution of the linearised plan that are tried, because what a step waits for may change on
#: the way; and what a share must gain.
STEPS, ENOUGH = (1.0, 0.5, 0.25, 0.1), 1e-3

Matrix = list[list[float]]


def learn(runs: Sequence[Measured]) -> Rates:
    """Return the rates of the runs' device. Raises Problems if they are of several kinds of device."""
    names = sorted({run.device.name for run in runs})
    if len(names) > 1:
        what = f"these runs are of several kinds of device: {', '.join(names)}"
        hint = "learn the rates of one kind of device at a time"
        raise Problems(Problem(what, hint=hint, id="learn-several-devices"))
    prior = _prior(runs)
    start = {name: default(name) for name in prior}
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


def default(name: str) -> float:
    """Return the value that a plan assumes for a rate."""
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
