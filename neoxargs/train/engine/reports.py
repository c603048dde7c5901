"""Optional reports of a step, per weight, with the series names of GPT-NeoX.

The series are `gradient_norms/…`, `pct_grad_zeros/…`, `parameter_norms/…`, `optimizer_state_norms/…` and
`train/noise_scale`. Norms are 2-norms over the full, undivided weight on every layout. What layers add to the loss, and
what it measures besides, is always reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from neoxargs.registry.logging import Logging
from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.optimizer_view import Fragments, Holdings, before_step, loss_scale
from neoxargs.train.model.shared import Shared
from neoxargs.train.process.mesh import Mesh


class StepReporter:
    """Computes the reports that `options` ask for at every step of an engine."""

    def __init__(self, options: Logging, engine: interface.Engine, mesh: Mesh, shared: Shared) -> None:
        self.options, self.holdings = options, Holdings(engine, mesh)
        self.engine, self.mesh, self.added_losses, self.measures = engine, mesh, shared.losses, shared.measures
        self.values: dict[str, float] = {}
        self.noise: NoiseScale | None = None
        if options.log_gradient_noise_scale:
            device = torch.device("cpu") if options.gradient_noise_scale_cpu_offload else None
            self.noise = NoiseScale(engine.train_batch_size(), options.gradient_noise_scale_n_batches, device)
        if options.log_grad_norm or options.log_grad_pct_zeros or self.noise:
            before_step(engine, self._report_gradients)

    def begin(self) -> None:
        """Prepare for the passes of a step or an evaluation."""
        self.measures.clear()

    def sums(self) -> list[Tensor]:
        """Return what `means` reads of this step. Collective."""
        return [means.sums(self.mesh, self.engine.device) for means in (self.added_losses.means, self.measures)]

    def means(self, losses: Sequence[float], measures: Sequence[float]) -> dict[str, float]:
        """Return series name -> value of what layers and the loss report, from the numbers of `sums`."""
        measured = self.measures.of(measures)
        return self.added_losses.means.of(losses) | {f"train/{name}": value for name, value in measured.items()}

    def after_step(self, skipped: bool) -> dict[str, float]:
        """Return series name -> norm or share, equal on every rank; empty for a skipped step.

        Every rank must call this, because norms are summed over the ranks. The host waits for what was asked for.
        """
        values, self.values = self.values, {}
        if self.options.log_param_norm:
            values |= self._norms("parameter_norms", self.holdings.values())
        if self.options.log_optimizer_states:
            for key, fragments in self.holdings.states().items():
                norms = self._norms("optimizer_state_norms", fragments)
                values |= {f"{name}_{key}": value for name, value in norms.items()}
        return {} if skipped else values

    def after_evaluation(self) -> dict[str, float]:
        """Return what the loss measured: name -> mean, equal on every rank. Collective."""
        return self.measures.over_ranks(self.mesh, self.engine.device)

    def _report_gradients(self) -> None:
        gradients, scale = self.holdings.gradients(), loss_scale(self.engine)
        if self.options.log_grad_norm:
            self.values |= self._norms("gradient_norms", gradients, scale)
        if self.options.log_grad_pct_zeros:
            zeros = self.holdings.sums(lambda x: (x == 0).sum(), gradients)
            sizes = self.holdings.sums(lambda x: torch.full((), x.numel(), device=x.device), gradients)
            self.values |= {f"pct_grad_zeros/{name}": 100 * zeros[name] / sizes[name] for name in zeros}
        if self.noise is not None:
            self.noise.begin(self.engine.train_batch_size())
            self.noise.add(self.holdings, gradients, scale)
            if self.noise.value is not None:
                self.values["train/noise_scale"] = self.noise.value

    def _norms(self, chart: str, fragments: Fragments, scale: float = 1.0) -> dict[str, float]:
        sums = self.holdings.sums(_square, fragments)
        return {f"{chart}/{name}": math.sqrt(value) / scale for name, value in sums.items()}


class NoiseScale:
    """The simple noise scale tr(S) / |G|^2 of McCandlish et al. 2018, arXiv:1812.06162, appendix A.1.

    The gradient of one batch gives |G|^2 for the small batch size, the mean gradient of `count` consecutive batches for
    the large one. The estimates of tr(S) and |G|^2 that follow are averaged with decay `beta`, as in GPT-NeoX. The unit
    is samples. device: where gradients are summed; None leaves them on their own device.
    """

    def __init__(self, batch_size: int, count: int, device: torch.device | None = None, beta: float = 0.99) -> None:
        self.small, self.count, self.device, self.beta = batch_size, count, device, beta
        self.sum: Fragments = {}
        self.batches = 0
        self.trace = self.square = 0.0
        self.value: float | None = None

    def begin(self, batch_size: int) -> None:
        """Begin a new sum of gradients if the batches that follow have another size."""
        if batch_size != self.small:
            self.small, self.sum, self.batches = batch_size, {}, 0

    def add(self, holdings: Holdings, gradients: Fragments, scale: float) -> None:
        """Add one batch's gradients, which are multiplied by `scale`; gradients with an overflow are ignored."""
        small = sum(holdings.sums(_square, gradients).values()) / scale**2
        if not math.isfinite(small):
            return
        for name, gradient in gradients.items():
            # In fp32 first: an fp16 gradient divided by both would underflow.
            part = gradient.to(self.device or gradient.device, torch.float32) / (scale * self.count)
            self.sum[name] = self.sum[name].add_(part) if name in self.sum else part
        self.batches += 1
        if self.batches == self.count:
            large = sum(holdings.sums(_square, self.sum).values())
            self.update(small, large)
            self.sum, self.batches = {}, 0

    def update(self, small: float, large: float) -> None:
        """Update both averages from the squared norms of one batch's gradient and of the mean over `count` batches."""
        few, many = self.small, self.small * self.count
        # |G|^2 and tr(S) of the appendix, with B_small = few and B_big = many.
        square = (many * large - few * small) / (many - few)
        trace = (small - large) / (1 / few - 1 / many)
        self.square = self.beta * self.square + (1 - self.beta) * square
        self.trace = self.beta * self.trace + (1 - self.beta) * trace
        self.value = self.trace / self.square  # both averages start at 0, which cancels in the ratio


def _square(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.float32)
    return norm.square()
