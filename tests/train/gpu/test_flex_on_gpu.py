"""flex_attention on simulated GPUs: losses and gradients are those of the CPU's masks, and the host does not wait.

Triton compiles for no simulated GPU, so torch's uncompiled flex_attention runs here.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from tests.support import simulated_gpu
from tests.support.ranks import CPU, run_ranks
from tests.support.simulated_gpu.measure import STEPS, Measured, measure
from tests.support.simulated_gpu.waits import listed
from tests.support.trials import Trial, train

pytestmark = pytest.mark.compiler

#: Heads of 16, the narrowest that flex_attention supports.
WIDE = {"num_attention_heads": 2, "num_kv_heads": 2}
BLOCKS = {"block": 2, "different_layout_per_head": True, "num_random_blocks": 1}
TRIALS = {
    "ALiBi": Trial({**WIDE, "pos_emb": "alibi"}),
    "window, shared keys": Trial({**WIDE, "num_kv_heads": 1, "sliding_window_width": 3}),
    "documents": Trial({**WIDE, "reset_attention_mask": True}),
    "documents, recomputed": Trial({**WIDE, "reset_attention_mask": True, "checkpoint_activations": True}),
    "everything": Trial({
        **WIDE, "pos_emb": "alibi", "sliding_window_width": 5, "reset_attention_mask": True,
        "attention_config": ["bigbird", "global"], "sparsity_config": BLOCKS,
    }),
}  # fmt: skip


#: The masks of these trials: a pattern? the window, slopes? documents?
EXPECTED = {
    (False, 0, True, False), (False, 3, False, False), (False, 0, False, True), (True, 5, True, True),
    (False, 5, True, True),
}  # fmt: skip
Called = set[tuple[bool, int, bool, bool]]


def train_with_flex() -> tuple[dict[str, Measured], Called]:
    """What each trial gives, and what flex_attention was called with."""
    from torch.nn.attention.flex_attention import flex_attention

    from neoxargs.train.model.scores import Scores
    from neoxargs.train.ops import flex, sdpa

    compute = Scores.in_flex
    called: Called = set()

    def attend(scores: Scores, query: Any, key: Any, value: Any, starts: Any) -> Any:
        rule = scores.mask_rule
        called.add((rule.pattern is not None, rule.window, bool(rule.slopes), starts is not None))
        return compute(scores, query, key, value, starts)

    uncompiled = patch.object(flex, "kernel", lambda compiled: flex_attention)
    with uncompiled, patch.object(sdpa, "should_compile", lambda device: True), patch.object(Scores, "in_flex", attend):
        return measure(TRIALS), called


@pytest.fixture(scope="module")
def on_gpu() -> tuple[dict[str, Measured], Called]:
    return run_ranks(train_with_flex, 1, timeout=400, on=simulated_gpu.MACHINE)[0]


def test_it_trains_as_the_masks_do(on_gpu: tuple[dict[str, Measured], Called]) -> None:
    (on_cpu,) = run_ranks(train, 1, TRIALS, STEPS, timeout=400, on=CPU)
    measured, called = on_gpu
    assert called == EXPECTED
    for name, found in measured.items():
        assert found.losses, found.error
        assert found.losses.train == pytest.approx(on_cpu[name].train, abs=1e-5), name
        assert found.losses.norms == pytest.approx(on_cpu[name].norms, rel=1e-4), name


#: Places of torch's uncompiled flex_attention, which copies constants to the device in both passes.
UNCOMPILED = ("<eval_with_key>", "backward pass")


def test_masks_and_blocks_do_not_make_the_host_wait(on_gpu: tuple[dict[str, Measured], Called]) -> None:
    for name, found in on_gpu[0].items():
        waits = [wait for wait in found.waits if not wait.where.startswith(UNCOMPILED)]
        assert not waits, f"{name}: {listed(waits)}"
