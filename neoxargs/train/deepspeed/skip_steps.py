"""Skip steps that would do harm, on all ranks alike (`on_divergence: skip`, `on_spike`).

Not used in fp16, where DeepSpeed skips a step that is not finite itself and lowers the loss scale. All ranks agree
before the step, because those of another pipeline stage or tensor parallel rank may see only finite numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.optimizer_view import Holdings
from neoxargs.train.process.mesh import Mesh

Losses = Callable[[], Sequence[Tensor]]


def skip_diverged(engine: interface.Engine, mesh: Mesh, losses: Losses) -> None:
    """Skip steps that are not finite. losses: returns those of this rank's micro batches in the current step."""
    holdings = Holdings(engine, mesh)
    skip_unless(engine, lambda: is_finite_everywhere([*losses(), *holdings.gradients().values()], engine.device))


def skip_unless(engine: interface.Engine, takes: Callable[[], bool]) -> None:
    """Replace the step of an engine. takes: whether to take a step, equal on every rank; called before each."""
    if engine.fp16_enabled():
        return
    take = engine._take_model_step

    def take_or_skip(*arguments: Any, **keywords: Any) -> None:
        if takes():
            take(*arguments, **keywords)
            return
        with _without_effect(engine):
            take(*arguments, **keywords)
        # Otherwise the engine would report the norm of an earlier step.
        engine._global_grad_norm = None

    interface.replace(engine, _take_model_step=take_or_skip)


def is_finite_everywhere(tensors: Sequence[Tensor], device: torch.device) -> bool:
    """Return whether no element on any rank is infinite or NaN; the same on every rank. Collective."""
    present = [tensor for tensor in tensors if tensor.numel()]
    # The largest absolute value is infinite or NaN exactly if an element is.
    largest = [norm.to(device).float() for norm in torch._foreach_norm(present, float("inf"))] if present else []
    bad = torch.zeros((), device=device)
    if largest:
        # 1 where something is not finite, so that MAX means "on any rank".
        bad = 1.0 - torch.stack(largest).isfinite().all().float()
    torch.distributed.all_reduce(bad, torch.distributed.ReduceOp.MAX)
    # Waits for the GPU: the host has to know whether to take the step.
    return not bad.item()


@contextmanager
def _without_effect(engine: interface.Engine) -> Iterator[None]:
    """Within this, a step of DeepSpeed clears the gradients and leaves weights, states and schedule as they are.

    DeepSpeed is told of an overflow, which it counts as a skipped step. ZeRO's optimizers then clear their gradients;
    the engine clears all others.
    """
    optimizer = engine.optimizer
    skipping: dict[str, Any] = {"overflow": True}
    # `step` of ZeRO-1 to 3 returns after clearing if `overflow` is true; others have no such exit.
    if isinstance(optimizer, interface.Zero12 | interface.Zero3):
        skipping["check_overflow"] = lambda *_, **__: None
    else:
        skipping["step"] = lambda *_, **__: None
    # Restored afterwards: patches have set `step` on some of these objects; on others it comes from the class.
    own = {name: vars(optimizer)[name] for name in skipping if name in vars(optimizer)}
    vars(optimizer).update(skipping)
    try:
        yield
    finally:
        for name in skipping:
            vars(optimizer).pop(name)
        vars(optimizer).update(own)
