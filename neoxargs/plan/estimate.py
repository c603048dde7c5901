"""Computes the plan of a configuration for one kind of device. Pure arithmetic: it does not inspect the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cached_property

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.layout import Layout, tensor_ranks_together
from neoxargs.facts.model import vocabulary_rows
from neoxargs.facts.vocab import padded_vocab_size
from neoxargs.hosts.device_table import ASSUMED_DEVICE, DEVICES, unknown_device
from neoxargs.plan.given.assumptions import VOCABULARY, Assumptions
from neoxargs.plan.given.errors import TENTH, UNNAMED, beyond, odds
from neoxargs.plan.given.target import Target
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.breakdown import RankMemory, rank_memory
from neoxargs.plan.memory.stages import parameters_by_part, pipeline_stages
from neoxargs.plan.time.speed import Speed, estimate_speed
from neoxargs.runs.run_spec import RunSpec


class Plan(Record):
    """Placement, memory and speed of one run on one kind of device."""

    spec: RunSpec
    target: Target
    vocab_rows: int
    """Rows of the padded vocabulary."""
    vocab_assumed: bool
    """Whether `vocab_rows` is computed from GPT-2's vocabulary, because the size of the tokenizer's is unknown."""
    parts: dict[str, int]
    """Part of the model -> number of parameters."""
    stage_memory: list[RankMemory]
    """Memory of a rank of each pipeline stage; all ranks of a stage hold the same."""
    sizes: ActivationSizes
    """Of the tensors of a micro batch, which memory and time depend on."""

    @property
    def config(self) -> Config:
        return self.spec.config

    @property
    def warnings(self) -> list[Problem]:
        """All warnings about the configuration, the resources and the device."""
        return [*self.spec.warnings, *self.target.warnings(self.config)]

    @property
    def layout(self) -> Layout:
        return Layout.of(self.config)

    @cached_property
    def speed(self) -> Speed:
        return self._speed(self.sizes)

    def _speed(self, sizes: ActivationSizes) -> Speed:
        stages, device = [rank.stage for rank in self.stage_memory], self.target.device
        return estimate_speed(sizes, self.vocab_rows, stages, device, self.ranks_per_host, self.tensor_together)

    @cached_property
    def fullest(self) -> RankMemory:
        """The rank of the stage with the highest peak."""
        return max(self.stage_memory, key=lambda rank: rank.peak)

    @property
    def usable(self) -> int | None:
        """Bytes of a device that a rank may use; None if the device's memory is unknown."""
        memory = self.target.device.memory
        return None if memory is None else int(memory * self.target.assumed.usable)

    @property
    def ranks_per_host(self) -> int:
        """Number of ranks on the host with the most ranks, whose memory is the tightest."""
        return max(map(len, self.spec.resources.hosts.values()))

    @property
    def host_peak(self) -> int:
        """Bytes on a host all of whose ranks belong to the stage with the highest host peak.

        On a CPU, device memory is host memory.
        """
        if self.target.device.kind == "cpu":
            return self.ranks_per_host * self.fullest.peak
        return self.ranks_per_host * max(rank.host_peak for rank in self.stage_memory)

    @property
    def host_memory(self) -> int:
        return self.target.host_memory or self.target.assumed.bytes_of("host_memory") * self.ranks_per_host

    @property
    def usable_host_memory(self) -> int:
        """Bytes of a host's memory that its ranks may use."""
        return int(self.host_memory * self.target.assumed.host_usable)

    @property
    def device_fits(self) -> bool:
        return self.usable is None or self.fullest.peak <= self.usable

    @property
    def host_fits(self) -> bool:
        """Whether the host memory suffices; True where it is assumed rather than given or measured."""
        return self.target.host_memory is None or self.host_peak <= self.usable_host_memory

    @property
    def has_verdict(self) -> bool:
        """Whether there is a known memory size to compare the plan with."""
        on_host = self.target.device.kind == "cpu" and self.target.host_memory is not None
        return self.usable is not None or on_host

    @property
    def tensor_together(self) -> int:
        """The fewest ranks of a tensor parallel group on a host."""
        return tensor_ranks_together(self.layout.tensor, map(len, self.spec.resources.hosts.values()))

    @cached_property
    def beyond(self) -> list[str]:
        """What of the run no published measurement covers."""
        return beyond(self.config, self.target.device, self.tensor_together, learned=self.target.rates is not None)

    @cached_property
    def time_error(self) -> float:
        """Factor of the 80 % interval of every time and rate."""
        assumed = self.target.assumed
        if self.target.rates:
            # What the learned rates leave, with the error of the model of kernels and messages itself.
            def seconds(changed: Assumptions) -> float:
                return self._speed(ActivationSizes(self.config, self.sizes.kind, changed)).step

            _, gradient = sensitivities(seconds, assumed, self.target.rates.values)
            error = math.exp(TENTH * math.sqrt(self.target.rates.variance(gradient)))
        else:
            error = assumed.error_time if self.layout.ranks > 1 else assumed.error_time_one
        return error * assumed.beyond_time if self.beyond else error

    @property
    def memory_error(self) -> float:
        """Factor of the 80 % interval of device memory."""
        assumed = self.target.assumed
        is_beyond = any(reason != UNNAMED for reason in self.beyond)
        return assumed.error_memory * assumed.beyond_memory if is_beyond else assumed.error_memory

    @property
    def host_error(self) -> float:
        """Factor of the 80 % interval of host memory: on a CPU, that of its device memory."""
        return self.memory_error if self.target.device.kind == "cpu" else self.target.assumed.error_host

    @property
    def odds(self) -> float | None:
        """The probability that the run fits; None without a known memory size."""
        device = None if self.usable is None else odds(self.fullest.peak, self.usable, self.memory_error)
        if self.target.host_memory is None:
            return device
        return min(odds(self.host_peak, self.usable_host_memory, self.host_error), 1.0 if device is None else device)

    @property
    def as_fast(self) -> float:
        """The longest step time of a layout of the same model and devices that may in truth be as fast."""
        return self.speed.step * self.target.assumed.error_layouts

    @property
    def peak_share(self) -> float:
        """The model's operations per second, as a share of the device's peak rate in the run's precision."""
        device = self.target.device
        peak = device.single if self.config.precision.precision == "fp32" else device.half
        return self.speed.tflops_per_device * 1e12 / peak

    def cost(self, seconds: float) -> float | None:
        """Return what all devices cost for this time; None without a price."""
        price = self.target.price
        return None if price is None else price * seconds / 3600 * self.layout.ranks

    @property
    def fits(self) -> bool:
        return self.device_fits and self.host_fits

    @property
    def assumed_limit_exceeded(self) -> int | None:
        """Usable bytes of ASSUMED_DEVICE if no device is named and ASSUMED_DEVICE could not hold the run, else None."""
        usable = int((DEVICES[ASSUMED_DEVICE].memory or 0) * self.target.assumed.usable)
        return usable if self.target.device == unknown_device() and self.fullest.peak > usable else None

    @property
    def overflows_in(self) -> str | None:
        """The first phase in which a rank of the stage with the highest peak runs out of memory; None if none does."""
        if self.usable is None or self.device_fits:
            return None
        phases = self.fullest.phases
        return next(phase for phase in phases if self.fullest.total(phase) > self.usable)


def make_plan(spec: RunSpec, target: Target) -> Plan:
    """Return the plan of `spec` on `target`. Raises Problems if the configuration is of several runs."""
    config, name = spec.config, "zero_optimization.stage"
    if isinstance(values := config.get(name), list):
        what = f"{name} ({values}) is a list of values for the autotuner; a plan needs a single value"
        hint = f"add --set {name}={values[0] if values else 0}"
        raise Problems(Problem(what, config.place(name), hint, id="plan-of-several-runs", about=(name,)))
    rows = rows_of(config)
    sizes = ActivationSizes(config, target.device.kind, target.assumed)
    memory = [rank_memory(sizes, stage, target.zero_init) for stage in pipeline_stages(config, rows)]
    assumes_vocabulary = vocabulary_rows(config) is None
    return Plan(spec, target, rows, assumes_vocabulary, parameters_by_part(config, rows), memory, sizes)


def rows_of(config: Config) -> int:
    """Return the rows of the padded vocabulary: of GPT-2's, if the size of the tokenizer's is unknown."""
    divisor, ranks = config.embedding.make_vocab_size_divisible_by, config.parallel.model_parallel_size
    return vocabulary_rows(config) or padded_vocab_size(VOCABULARY, divisor, ranks)


#: Factor by which a rate is changed to see what depends on it.
STEP = 1.02


def sensitivities(
    seconds: Callable[[Assumptions], float], assumed: Assumptions, names: Iterable[str]
) -> tuple[float, list[float]]:
    """Return the logarithm of a time, and its derivatives by the logarithms of these assumptions."""
    values, at = vars(assumed), math.log(seconds(assumed))
    changed = (Assumptions(**{**values, name: values[name] * STEP}) for name in names)
    return at, [(math.log(seconds(each)) - at) / math.log(STEP) for each in changed]


def model_variance(assumed: Assumptions) -> float:
    """Return the variance of log(measured / planned) between layouts, whatever the rates are."""
    return (math.log(assumed.error_layouts) / TENTH) ** 2
