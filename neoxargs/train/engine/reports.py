"""What a step can report besides its loss, weight by weight, under the names GPT-NeoX's users know from their charts.

`gradient_norms/…`, `pct_grad_zeros/…`, `parameter_norms/…`, `optimizer_state_norms/…` and `train/noise_scale`, each
only where it is asked for. Norms are 2-norms over the whole weight, however the run is laid out.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from neoxargs.registry.logging import Logging
from neoxargs.train.deepspeed.optimizer_view import Holdings, Shards, before_step
from neoxargs.train.process.mesh import Mesh


class StepReporter:
    """Looks at the weights around every step of an engine; without a request it does nothing."""

    def __init__(self, options: Logging, batch_size: int, engine: Any, mesh: Mesh) -> None:
        self.options, self.holdings = options, Holdings(engine, mesh)
        self.found: dict[str, float] = {}
        self.noise: NoiseScale | None = None
        if options.log_gradient_noise_scale:
            home = torch.device("cpu") if options.gradient_noise_scale_cpu_offload else None
            self.noise = NoiseScale(batch_size, options.gradient_noise_scale_n_batches, home)
        if options.log_grad_norm or options.log_grad_pct_zeros or self.noise:
            before_step(engine, self._report_gradients)

    def after_step(self, skipped: bool) -> dict[str, float]:
        """Series name -> value, on the main rank; of a skipped step there is nothing to tell."""
        found, self.found = self.found, {}
        if self.options.log_param_norm:
            found |= self._norms("parameter_norms", self.holdings.values())
        if self.options.log_optimizer_states:
            for key, shards in self.holdings.states().items():
                norms = self._norms("optimizer_state_norms", shards)
                found |= {f"{name}_{key}": value for name, value in norms.items()}
        return {} if skipped else found

    def _report_gradients(self) -> None:
        gradients, scale = self.holdings.gradients(), self.holdings.loss_scale
        if self.options.log_grad_norm:
            self.found |= self._norms("gradient_norms", gradients, scale)
        if self.options.log_grad_pct_zeros:
            zeros = self.holdings.sums(lambda x: (x == 0).sum(), gradients)
            sizes = self.holdings.sums(lambda x: torch.tensor(x.numel()), gradients)
            self.found |= {f"pct_grad_zeros/{name}": 100 * zeros[name] / sizes[name] for name in zeros}
        if self.noise is not None:
            self.noise.add(self.holdings, gradients, scale)
            if self.noise.value is not None:
                self.found["train/noise_scale"] = self.noise.value

    def _norms(self, chart: str, shards: Shards, scale: float = 1.0) -> dict[str, float]:
        sums = self.holdings.sums(_square, shards)
        return {f"{chart}/{name}": math.sqrt(value) / scale for name, value in sums.items()}


class NoiseScale:
    """The simple noise scale tr(S) / |G|^2 of McCandlish et al. 2018, arXiv:1812.06162, appendix A.1.

    A batch gives the small estimate of |G|^2, the mean gradient of `count` batches in a row the large one; both of
    their differences are averaged with decay `beta`. As in GPT-NeoX, and in samples. home: where the sum waits.
    """

    def __init__(self, batch_size: int, count: int, home: torch.device | None = None, beta: float = 0.99) -> None:
        self.small, self.count, self.home, self.beta = batch_size, count, home, beta
        self.sum: Shards = {}
        self.batches = 0
        self.trace = self.square = 0.0
        self.value: float | None = None

    def add(self, holdings: Holdings, gradients: Shards, scale: float) -> None:
        """One batch's gradients, `scale` times too large; those of an overflow do not count."""
        small = sum(holdings.sums(_square, gradients).values()) / scale**2
        if not math.isfinite(small):
            return
        for name, gradient in gradients.items():
            part = gradient.to(self.home or gradient.device, torch.float32) / (scale * self.count)
            self.sum[name] = self.sum[name].add_(part) if name in self.sum else part
        self.batches += 1
        if self.batches == self.count:
            large = sum(holdings.sums(_square, self.sum).values())
            self.update(small, large)
            self.sum, self.batches = {}, 0

    def update(self, small: float, large: float) -> None:
        """Squared norms of the last batch's gradient and of the mean over all `count` batches."""
        few, many = self.small, self.small * self.count
        square = (many * large - few * small) / (many - few)
        trace = (small - large) / (1 / few - 1 / many)
        self.square = self.beta * self.square + (1 - self.beta) * square
        self.trace = self.beta * self.trace + (1 - self.beta) * trace
        self.value = self.trace / self.square  # both averages begin at 0, which their ratio does not see


def _square(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dtype=torch.float32).square()  # type: ignore[no-any-return]
