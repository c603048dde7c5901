"""One configuration and one kind of device -> the whole plan. Pure arithmetic; nothing is asked of the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neoxargs.launch.run_spec import RunSpec
from neoxargs.problems import Problem, Problems
from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout
from neoxargs.sizes.model import vocabulary_rows
from neoxargs.sizes.vocab import padded_vocab_size
from neoxargs.tools.plan.assumptions import HOST_MEMORY_PER_GPU, USABLE, VOCABULARY
from neoxargs.tools.plan.devices import DEVICES, USUAL, Device, unnamed
from neoxargs.tools.plan.memory.breakdown import Account, account
from neoxargs.tools.plan.memory.stages import Stage, stages, whole
from neoxargs.tools.plan.speed import Speed, speed


@dataclass(frozen=True)
class Target:
    """What a plan is made for."""

    device: Device
    host_memory: int | None = None
    """Bytes of one host; None: HOST_MEMORY_PER_GPU for each of its devices."""
    zero_init: bool = True
    """Is a ZeRO-3 model divided while it is built (our train.py does) or only afterwards?"""

    def with_memory(self, memory: int | None) -> Target:
        return replace(self, device=replace(self.device, memory=memory)) if memory else self


@dataclass(frozen=True)
class Plan:
    """Everything that is shown."""

    spec: RunSpec
    target: Target
    rows: int
    """Of the padded vocabulary."""
    rows_assumed: bool
    parts: dict[str, int]
    """Parameters of the model by part."""
    accounts: list[Account]
    """One for each stage: all its ranks are equal."""
    speed: Speed

    @property
    def config(self) -> Config:
        return self.spec.config

    @property
    def layout(self) -> Layout:
        return Layout.of(self.config)

    @property
    def worst(self) -> Account:
        """The stage whose ranks are fullest."""
        return max(self.accounts, key=lambda account: account.peak)

    @property
    def usable(self) -> int | None:
        """Bytes that a rank may fill; None where the device's memory is not known."""
        memory = self.target.device.memory
        return None if memory is None else int(memory * USABLE)

    @property
    def slots(self) -> int:
        """Ranks on the fullest host."""
        return max(map(len, self.spec.resources.hosts.values()))

    @property
    def host_need(self) -> int:
        """Bytes on a host whose ranks are all of the stage that needs most; a CPU's memory is its host's."""
        if self.target.device.kind == "cpu":
            return self.slots * self.worst.peak
        return self.slots * max(account.host_peak for account in self.accounts)

    @property
    def host_memory(self) -> int:
        return self.target.host_memory or HOST_MEMORY_PER_GPU * self.slots

    @property
    def device_fits(self) -> bool:
        return self.usable is None or self.worst.peak <= self.usable

    @property
    def host_fits(self) -> bool:
        """Only a host's memory that somebody has named can be too small."""
        return self.target.host_memory is None or self.host_need <= self.target.host_memory

    @property
    def known(self) -> bool:
        """Is there a memory to hold the ranks against?"""
        on_host = self.target.device.kind == "cpu" and self.target.host_memory is not None
        return self.usable is not None or on_host

    @property
    def fits(self) -> bool:
        return self.device_fits and self.host_fits

    @property
    def beyond(self) -> int | None:
        """What may be used of the device whose rates stand in for one that nobody names, where that is too little."""
        stand_in = DEVICES[USUAL].memory or 0
        usable = int(stand_in * USABLE)
        return usable if self.target.device == unnamed() and self.worst.peak > usable else None

    @property
    def breaks(self) -> str | None:
        """The first phase, in the order of time, in which a rank runs out of memory."""
        if self.usable is None or self.device_fits:
            return None
        phases = self.worst.phases
        return next(phase for phase in phases if self.worst.total(phase) > self.usable)


def plan(spec: RunSpec, target: Target) -> Plan:
    """Raises Problems where the configuration is of several runs."""
    config = spec.config
    _refuse_a_search(config)
    known = vocabulary_rows(config)
    rows = known or padded_vocab_size(
        VOCABULARY, config.embedding.make_vocab_size_divisible_by, config.parallel.model_parallel_size
    )
    held: list[Stage] = stages(config, rows)
    accounts = [account(config, stage, target.device.kind, target.zero_init) for stage in held]
    slots = max(map(len, spec.resources.hosts.values()))
    estimate = speed(config, rows, held, target.device, slots)
    return Plan(spec, target, rows, known is None, whole(config, rows), accounts, estimate)


def _refuse_a_search(config: Config) -> None:
    name = "zero_optimization.stage"
    stages = config.get(name)
    if isinstance(stages, list):
        what = f"{name} ({stages}) is a list that the autotuner goes through, and a plan is of one run"
        raise Problems([Problem(what, config.place(name), f"add --set {name}={stages[0] if stages else 0}")])
