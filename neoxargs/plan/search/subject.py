"""The subject of a search: a model, its global batch size, and a kind of device."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import Record
from neoxargs.base.text import format_bytes
from neoxargs.facts.description import counted
from neoxargs.facts.layout import ranks_of_replica
from neoxargs.plan.advice.smaller import Changes
from neoxargs.plan.given.target import Target
from neoxargs.plan.search.space import MICRO, Division, Layout
from neoxargs.resolve import Draft
from neoxargs.runs.run_spec import RunSpec

#: Resolves the configuration with changes on a number of GPUs, or on those that it names; raises Problems.
Resolve = Callable[[Changes, int | None], RunSpec]
BATCH = "train_batch_size"
#: Another name of a parameter that a layout sets; a configuration may set either.
OTHER_NAMES = {"batch_size": MICRO, "gas": "gradient_accumulation_steps"}
#: Parameters that must equal the number of GPUs.
GPU_COUNTS = ("global_num_gpus", "world_size")


class Start(Record):
    """The configuration that a search starts from. Its layout is not used."""

    spec: RunSpec
    samples: int
    """Global batch size, which is the same for all layouts."""
    batch_of: int | None = None
    """Number of GPUs for which the batch size was computed, with --fewest; None if `train_batch_size` is set."""


class Subject(Record):
    """What was searched for, for the output."""

    start: Start
    target: Target
    files: Sequence[str]
    host_memory: int
    """Bytes of a host."""

    @property
    def batch(self) -> str:
        return f"global batch of {self.start.samples:,} samples"

    @property
    def assumed(self) -> list[str]:
        """What the search assumes because it is not given: the batch."""
        gpus = self.start.batch_of
        if gpus is None:
            return []
        batch = f"the global batch size that the configuration's own layout gives on {counted(gpus, 'GPU')}"
        return [f"assuming {batch}; set {BATCH} to choose another"]

    @property
    def assumed_host_memory(self) -> str:
        """What an offloaded optimizer was compared with, if that was assumed; else empty."""
        if self.target.host_memory is not None:
            return ""
        return f"assuming {format_bytes(self.host_memory)} of memory per host; set --host-memory GIB to change this"


def under_all_names(changes: Changes, written: Container[str]) -> Changes:
    """Return the changes, also under the other names that the user has set."""
    others = {name: changes[key] for name, key in OTHER_NAMES.items() if name in written and key in changes}
    return {**changes, **others}


def start_of(resolve: Resolve, drafted: Draft, gpus: int | None, fewest: bool) -> Start:
    """Return what a search starts from. Raises Problems, but not about a layout that does not divide the GPUs."""
    set_samples = drafted.values.get(BATCH)
    samples = set_samples.value if set_samples else None
    if not isinstance(samples, int):
        return _batch_of_layout(resolve, drafted, gpus, fewest)
    try:
        spec = resolve({}, gpus)
    except Problems as problems:
        spec = _without_layout(resolve, samples, gpus, problems)
    return Start(spec, samples)


def _batch_of_layout(resolve: Resolve, drafted: Draft, gpus: int | None, fewest: bool) -> Start:
    """Return the global batch that the configuration's own layout gives on `gpus`, or with `fewest` on its own GPUs."""
    if fewest:
        try:
            spec = resolve({}, None)  # the GPUs that the files or this machine give
        except Problems:
            spec = resolve({}, _replica(drafted))
        return Start(spec, spec.config.batch.train_batch_size, spec.resources.gpus)
    try:
        spec = resolve({}, gpus)
        return Start(spec, spec.config.batch.train_batch_size)
    except Problems as problems:
        replica = _replica(drafted)
        if gpus is None or gpus % replica == 0:
            raise
        _without_layout(resolve, 2, gpus, problems)  # a size that no rule forbids
        what = f"{BATCH} is not set, and cannot be computed from the layout in the configuration: {gpus:,} GPUs "
        what += f"cannot be divided into replicas of {replica} GPUs (model_parallel_size x pipe_parallel_size)"
        raise Problems(Problem(what, hint=f"add --set {BATCH}=N", id="search-needs-a-batch")) from problems


def _replica(drafted: Draft) -> int:
    """Return the number of GPUs of a replica in the configuration's own layout."""
    names = "model_parallel_size", "pipe_parallel_size", "context_parallel_size"
    sizes = (drafted.values.get(name) for name in names)
    return ranks_of_replica(*(size.value if size and isinstance(size.value, int) else 1 for size in sizes))


def _without_layout(resolve: Resolve, samples: int, gpus: int | None, problems: Problems) -> RunSpec:
    """Resolve for one GPU, without the layout in the files. Raises `problems` if that is not what they are about."""
    if gpus is None:
        raise problems
    one = Layout(Division(tensor=1, pipe=0, data=1, zero=0), micro=samples, steps=1, recompute=True)
    try:
        return resolve(one.changes(), 1)
    except Problems:
        raise problems from None
