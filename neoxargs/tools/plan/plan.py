"""One configuration and one kind of device -> the whole plan. Pure arithmetic; nothing is asked of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from neoxargs.launch.run_spec import RunSpec
from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout
from neoxargs.sizes.model import vocabulary_rows
from neoxargs.sizes.vocab import padded_vocab_size
from neoxargs.tools.plan.assumptions import HOST_MEMORY_PER_GPU, USABLE, VOCABULARY
from neoxargs.tools.plan.devices import ASSUMED_DEVICE, DEVICES, unknown_device
from neoxargs.tools.plan.memory.breakdown import RankMemory, rank_memory
from neoxargs.tools.plan.memory.stages import Stage, parameters_by_part, pipeline_stages
from neoxargs.tools.plan.speed import Speed, estimate_speed
from neoxargs.tools.plan.target import Target


@dataclass(frozen=True)
class Plan:
    """Placement, memory and speed of one run on one kind of device."""

    spec: RunSpec
    target: Target
    vocab_rows: int
    """Of the padded vocabulary."""
    vocab_assumed: bool
    parts: dict[str, int]
    """Parameters of the model by part."""
    stage_memory: list[RankMemory]
    """One for each stage: all its ranks are equal."""
    speed: Speed

    @property
    def config(self) -> Config:
        return self.spec.config

    @property
    def layout(self) -> Layout:
        return Layout.of(self.config)

    @property
    def fullest(self) -> RankMemory:
        """The stage whose ranks are fullest."""
        return max(self.stage_memory, key=lambda rank: rank.peak)

    @property
    def usable(self) -> int | None:
        """Bytes that a rank may fill; None where the device's memory is not known."""
        memory = self.target.device.memory
        return None if memory is None else int(memory * USABLE)

    @property
    def ranks_per_host(self) -> int:
        """Ranks on the fullest host."""
        return max(map(len, self.spec.resources.hosts.values()))

    @property
    def host_peak(self) -> int:
        """Bytes on a host whose ranks are all of the stage that needs most; a CPU's memory is its host's."""
        if self.target.device.kind == "cpu":
            return self.ranks_per_host * self.fullest.peak
        return self.ranks_per_host * max(rank.host_peak for rank in self.stage_memory)

    @property
    def host_memory(self) -> int:
        return self.target.host_memory or HOST_MEMORY_PER_GPU * self.ranks_per_host

    @property
    def device_fits(self) -> bool:
        return self.usable is None or self.fullest.peak <= self.usable

    @property
    def host_fits(self) -> bool:
        """Whether the hosts suffice; only a host memory that was named can be too small."""
        return self.target.host_memory is None or self.host_peak <= self.target.host_memory

    @property
    def has_verdict(self) -> bool:
        """Whether there is a memory to compare the ranks with."""
        on_host = self.target.device.kind == "cpu" and self.target.host_memory is not None
        return self.usable is not None or on_host

    @property
    def fits(self) -> bool:
        return self.device_fits and self.host_fits

    @property
    def assumed_limit_exceeded(self) -> int | None:
        """Usable bytes of ASSUMED_DEVICE, where no device is named and that one could not hold the run."""
        stand_in = DEVICES[ASSUMED_DEVICE].memory or 0
        usable = int(stand_in * USABLE)
        return usable if self.target.device == unknown_device() and self.fullest.peak > usable else None

    @property
    def overflows_in(self) -> str | None:
        """The first phase, in the order of time, in which a rank runs out of memory."""
        if self.usable is None or self.device_fits:
            return None
        phases = self.fullest.phases
        return next(phase for phase in phases if self.fullest.total(phase) > self.usable)


def make_plan(spec: RunSpec, target: Target) -> Plan:
    """Raises Problems where the configuration is of several runs."""
    config = spec.config
    _check_single_run(config)
    known_rows = vocabulary_rows(config)
    rows = known_rows or _assumed_rows(config)
    stages: list[Stage] = pipeline_stages(config, rows)
    memory = [rank_memory(config, stage, target.device.kind, target.zero_init) for stage in stages]
    ranks_per_host = max(map(len, spec.resources.hosts.values()))
    speed = estimate_speed(config, rows, stages, target.device, ranks_per_host)
    return Plan(spec, target, rows, known_rows is None, parameters_by_part(config, rows), memory, speed)


def _assumed_rows(config: Config) -> int:
    divisor, ranks = config.embedding.make_vocab_size_divisible_by, config.parallel.model_parallel_size
    return padded_vocab_size(VOCABULARY, divisor, ranks)


def _check_single_run(config: Config) -> None:
    name = "zero_optimization.stage"
    stages = config.get(name)
    if isinstance(stages, list):
        what = f"{name} ({stages}) is a list that the autotuner goes through, and a plan is of one run"
        hint = f"add --set {name}={stages[0] if stages else 0}"
        raise Problems([Problem(what, config.place(name), hint, id="plan-of-several-runs", about=(name,))])
