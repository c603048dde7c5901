"""Plan the layouts for a number of devices, apart from those that cannot fit because a smaller one does not.

Memory grows with the micro batch size and with what is stored instead of recomputed. So each division is tried with the
least memory first, and larger micro batches only as long as they fit. Every layout is resolved like `--set` options:
what a rule forbids is left out, with the id of the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from neoxargs.base.problems import Problems
from neoxargs.base.record import Record, replace
from neoxargs.base.text import format_bytes
from neoxargs.config.config import Config
from neoxargs.plan.advice.smaller import Changes
from neoxargs.plan.estimate import Plan
from neoxargs.plan.search.space import MICRO, RECOMPUTE, Division, Layout, divisions, micro_batches

#: Plans the run with changed parameters; raises Problems.
MakePlan = Callable[[Changes], Plan]
Tell = Callable[[int], None]
#: Layouts of the front take at most this many times the fastest's step time, and each saves at least this share of the
#: usable memory.
SLOWEST, SMALLEST_SAVING = 5, 0.02


class Found(Record):
    """A layout that fits, and its plan."""

    layout: Layout
    plan: Plan

    @property
    def seconds(self) -> float:
        return self.plan.speed.step

    @property
    def memory(self) -> int:
        return self.plan.fullest.peak

    @property
    def cost(self) -> float | None:
        """Of the whole run; None without a price."""
        return self.plan.cost(self.plan.speed.total)


class LeftOut(Record):
    """Layouts that were not planned or do not fit, and why."""

    layout: Division | Layout
    why: str
    """The rule that forbids it, or the memory that is too small."""
    needs: int | None = None
    """Bytes of this memory that the layout needs; None if a rule forbids the layout."""

    @property
    def too_large(self) -> bool:
        return self.needs is not None

    @property
    def reason(self) -> str:
        return self.why if self.needs is None else f"needs {format_bytes(self.needs)} {self.why}"


class Result(Record):
    """What a search found."""

    devices: int
    fitting: list[Found]
    left_out: list[LeftOut]
    planned: int
    """Layouts that were planned: those that fit and those that need too much memory."""

    @property
    def offloaded(self) -> bool:
        """Whether layouts with an offloaded optimizer were searched."""
        tried = [*(found.layout for found in self.fitting), *(left.layout for left in self.left_out)]
        return any((layout.division if isinstance(layout, Layout) else layout).offload for layout in tried)

    def as_fast(self, found: Found) -> bool:
        """Whether a layout may be as fast as the fastest: their times are too close to tell."""
        return found.seconds <= min(each.plan.as_fast for each in self.fitting)

    @property
    def front(self) -> list[Found]:
        """Layouts for which no other is both faster and needs less memory, fastest first.

        Those that save next to nothing, or that are far slower than the fastest, are left out.
        """
        best: list[Found] = []
        for found in sorted(self.fitting, key=lambda found: (found.seconds, found.memory)):
            if best and found.seconds > SLOWEST * best[0].seconds:
                break
            if not best or best[-1].memory - found.memory >= SMALLEST_SAVING * (found.plan.usable or 0):
                best.append(found)
        return best


class Search:
    """A search with one model, one global batch and one kind of device."""

    def __init__(self, config: Config, per_host: int, make_plan: MakePlan, tell: Tell, samples: int) -> None:
        self.config, self.per_host, self.make_plan, self.tell = config, per_host, make_plan, tell
        self.samples = samples
        """Global batch size, which is the same for all layouts."""
        self.fitting: list[Found] = []
        self.left_out: list[LeftOut] = []
        self.plans: dict[Layout, Plan] = {}

    def run(self, devices: int) -> Result:
        """Search all layouts; those that offload the optimizer only if none fits otherwise."""
        self._try(divisions(self.config, devices, self.per_host))
        if not self.fitting:
            self._try(divisions(self.config, devices, self.per_host, offload=True))
        return Result(devices, self.fitting, self.left_out, len(self.plans))

    def fits_on(self, devices: int) -> bool:
        """Return whether any layout of this many devices fits, with the least memory that each can have."""
        for offload in (False, True):
            for division in divisions(self.config, devices, self.per_host, offload):
                if self._least(division, micro_batches(division, self.samples)):
                    return True
        return False

    def _try(self, tried: Iterator[Division]) -> None:
        for division in tried:
            sizes = micro_batches(division, self.samples)
            if allowed := self._least(division, sizes):
                larger = [size for size in sizes if size[0] >= allowed.micro]
                for recompute in RECOMPUTE:
                    self._grow(allowed.division, larger, recompute)

    def _least(self, division: Division, sizes: Sequence[tuple[int, int]]) -> Layout | None:
        """Return the layout with the least memory that the rules allow, if it fits."""
        if not sizes:
            why = f"impossible: the batch of {self.samples:,} samples is not divisible by the number of replicas"
            self.left_out.append(LeftOut(division, why))
            return None
        # The smallest micro batch, with everything recomputed: if this does not fit, nothing does.
        layout = Layout(division, *sizes[0], recompute=True)
        try:
            plan = self._plan(layout)
        except Problems as problems:
            return self._next_least(division, sizes, problems)
        if not _fits(plan):
            self.left_out.append(_too_large(layout, plan))
            return None
        return layout

    def _next_least(self, division: Division, sizes: Sequence[tuple[int, int]], problems: Problems) -> Layout | None:
        """Try a larger micro batch if a rule forbids the smallest one, then without sequence parallelism."""
        if len(sizes) > 1 and any(MICRO in problem.about for problem in problems.problems):
            return self._least(division, sizes[1:])
        if division.sequence_parallel:
            return self._least(replace(division, sequence_parallel=False), sizes)
        self.left_out.append(LeftOut(division, _forbidden(problems)))
        return None

    def _grow(self, division: Division, sizes: Sequence[tuple[int, int]], recompute: bool | str) -> None:
        """Plan larger and larger micro batches until one does not fit."""
        for micro, steps in sizes:
            layout = Layout(division, micro, steps, recompute)
            try:
                plan = self._plan(layout)
            except Problems as problems:
                self.left_out.append(LeftOut(layout, _forbidden(problems)))
                return
            if not _fits(plan):
                self.left_out.append(_too_large(layout, plan))
                return
            self.fitting.append(Found(layout, plan))

    def _plan(self, layout: Layout) -> Plan:
        if layout not in self.plans:
            self.plans[layout] = self.make_plan(layout.changes())
            self.tell(len(self.plans))
        return self.plans[layout]


def _fits(plan: Plan) -> bool:
    """Whether devices and host have enough memory; that of a host is assumed if it is not given."""
    return plan.fits and plan.host_peak <= plan.usable_host_memory


def _forbidden(problems: Problems) -> str:
    names = ", ".join(sorted({problem.id for problem in problems.problems}))
    return f"impossible: {names} (deepy explain {problems.problems[0].id})"


def _too_large(layout: Layout, plan: Plan) -> LeftOut:
    if not plan.device_fits:
        return LeftOut(layout, f"per rank ({format_bytes(plan.usable or 0)} is usable)", plan.fullest.peak)
    return LeftOut(layout, f"on a host ({format_bytes(plan.usable_host_memory)} is usable)", plan.host_peak)


def device_counts(most: int, per_host: int) -> Iterator[int]:
    """Yield the numbers of devices that a search for the fewest tries: parts of a host, then whole hosts."""
    yield from (count for count in range(1, min(per_host, most) + 1) if per_host % count == 0)
    hosts = 2
    while hosts * per_host <= most:
        yield hosts * per_host
        # Beyond 8 hosts in steps of about a quarter, which is the precision of the estimate.
        hosts += 1 if hosts < 4 else 2 if hosts < 8 else hosts // 4
