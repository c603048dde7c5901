"""Steps whose loss or gradient norm is far above that of the steps before them (`on_spike`).

Judged are the loss and the gradient norm of each layer group: the embedding, each layer, the final norm, the output.
All ranks judge the same sums, so that they decide alike. They cost one more all-reduce of a few numbers per step; the
host waits for it before the optimizer's step only if that may be skipped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.registry.training import Training
from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.optimizer_view import Holdings, loss_scale
from neoxargs.train.process.collectives import of_all_ranks
from neoxargs.train.process.mesh import Mesh

#: The policies that leave out the update; the host knows of the spike before it.
SKIPPING = ("skip", "skip_samples")
#: The policies for which a number that is infinite or NaN is a spike like others.
ACTING = (*SKIPPING, "rollback")
LOSS = "loss"
#: The median absolute deviation of a normal distribution with standard deviation 1.
NORMAL = 0.6745
#: The least deviation that counts, as a share of the median: the loss may be nearly constant.
LEAST = 1e-3


class Spike(NamedTuple):
    """A step that stands out."""

    quantity: str
    """`loss`, or the layer group with this gradient norm."""
    value: float
    median: float
    """Of the steps before."""
    score: float
    """How many deviations the value is above the median; infinite if the value is infinite or NaN."""
    group: str
    """The layer group whose gradient norm stands out most; "" if none does."""
    steps: int = 0
    """How many of the steps before the median is of; 0 if there are too few for one."""
    where: str = ""
    """The weight of this group with the largest gradient, and the rank that had it before gradients were averaged."""


def score(value: float, before: Sequence[float]) -> float:
    """Return the robust z-score of a value (Iglewicz and Hoaglin 1993): its deviations above the median of others."""
    if not math.isfinite(value):
        return math.inf
    middle = median(before)
    deviation = max(median(abs(each - middle) for each in before), LEAST * abs(middle))
    # A median of 0: a weight that has had no gradient so far.
    return NORMAL * (value - middle) / deviation if middle else 0.0


def group_of(weight: str) -> str:
    """Return the layer group of a weight: `layers.7`, or the part that is no layer."""
    return ".".join(weight.split(".")[: 2 if weight.startswith("layers.") else 1])


class History:
    """The last finite values of each number, by which the next ones are judged once half of the window is full."""

    def __init__(self, window: int, threshold: float) -> None:
        self.window, self.threshold = window, threshold
        self.values: dict[str, deque[float]] = {}

    def judge(self, numbers: Mapping[str, float]) -> Spike | None:
        """Return the number that stands out most if that is a spike, and remember all.

        Spikes are remembered too: a few of them do not change a median, and a level that lasts becomes the usual one.
        """
        found = self._spike(numbers)
        for name, value in numbers.items():
            if math.isfinite(value):
                self.values.setdefault(name, deque(maxlen=self.window)).append(value)
        return found

    def _spike(self, numbers: Mapping[str, float]) -> Spike | None:
        known = {name for name, values in self.values.items() if len(values) >= -(-self.window // 2)}
        scores = {
            name: score(value, self.values[name]) if name in known else math.inf
            for name, value in numbers.items()
            if name in known or not math.isfinite(value)
        }
        name = max(scores, key=lambda each: scores[each], default="")
        if not name or scores[name] <= self.threshold:
            return None
        group = max((each for each in scores if each != LOSS), key=lambda each: scores[each], default="")
        before = self.values[name] if name in known else ()
        middle = median(before) if before else math.nan
        return Spike(name, numbers[name], middle, scores[name], group, len(before))


class Spikes:
    """Watches the steps of an engine. losses: returns those of this rank's micro batches in the current step."""

    def __init__(
        self, options: Training, engine: interface.Engine, mesh: Mesh, losses: Callable[[], Sequence[Tensor]]
    ) -> None:
        self.options, self.engine, self.mesh, self.losses = options, engine, mesh, losses
        self.holdings = Holdings(engine, mesh)
        self.history = History(options.spike_window, options.spike_threshold)
        self.decides = options.on_spike in SKIPPING
        own = dict.fromkeys(group_of(name) for name in self.holdings.weights)
        self.groups = list(dict.fromkeys(name for names in of_all_ranks([*own]) for name in names))
        #: Spikes so far to which the run has reacted.
        self.count = 0
        #: The sum of losses, of how many ranks, and the squared norm of each group, times the squared loss scale.
        self.sums = torch.zeros(2 + len(self.groups), device=engine.device)
        self.scale = 1.0
        self.found: Spike | None = None
        self.rows: dict[tuple[str, ...], Tensor] = {}

    def measure(self) -> None:
        """Compute what the step is judged by. Collective; call between the backward pass and the optimizer's step."""
        device, self.scale = self.engine.device, loss_scale(self.engine)
        self.sums = torch.zeros(2 + len(self.groups), device=device)
        if losses := self.losses():
            self.sums[0] = torch.stack([*losses]).sum() / self.engine.gradient_accumulation_steps()
            self.sums[1:2].fill_(1.0)
        parts = {name: part for name, part in self.holdings.gradients().items() if part.numel()}
        if parts:
            norms = torch._foreach_norm([*parts.values()], 2, torch.float32)
            squares = torch.stack([norm.to(device) for norm in norms]).square()
            self.sums.index_add_(0, self._rows(tuple(parts)), squares)
        if dist.get_world_size() > 1:
            dist.all_reduce(self.sums)

    def is_usual(self) -> bool:
        """Return whether the step is to be taken; equal on every rank. Collective; waits for the device."""
        self.measure()
        self.found = self.judge(self.sums.tolist(), self.scale)
        return self.found is None

    def judge(self, sums: Sequence[float], scale: float) -> Spike | None:
        """Return the spike of a step with these sums, if it is one."""
        loss, ranks, *squares = sums
        norms = {name: math.sqrt(square) / scale for name, square in zip(self.groups, squares, strict=True)}
        return self.history.judge({LOSS: loss / ranks, **norms})

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint records, by which a resumed run judges and counts as this one would."""
        return {"count": self.count, "values": {name: [*values] for name, values in self.history.values.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]
        window = self.history.window
        self.history.values = {name: deque(values, maxlen=window) for name, values in state["values"].items()}

    def _rows(self, names: tuple[str, ...]) -> Tensor:
        if names not in self.rows:
            rows = [2 + self.groups.index(group_of(name)) for name in names]
            self.rows[names] = torch.tensor(rows, device=self.engine.device)
        return self.rows[names]
