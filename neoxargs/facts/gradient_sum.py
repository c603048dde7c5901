"""How train.py sums gradients over data parallel ranks: which code, in which type, when, and how exactly.

Kept beside `train/engine/build.py`, which chooses the same path; a test logs the collectives of each.
"""

from __future__ import annotations

import math
from typing import Literal

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.layout import Layout
from neoxargs.facts.optimizers import accumulates_in_fp32, is_onebit

#: Significant bits of a type, and the bytes of a number.
BITS = {"fp32": 24, "fp16": 11, "bf16": 8}
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
#: Elements of a bucket, and elements per rank if that is more, so that messages between many ranks stay long enough;
#: as in Megatron-LM's distributed data parallelism.
BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000

Way = Literal["none", "one bit", "all-reduce", "buckets", "ZeRO"]


class GradientSum(Record):
    """The sum of the gradients of a step over the data parallel ranks.

    way: `none` with one replica; `one bit`: compressed, by the optimizer; `all-reduce`: of all gradients, after the
    last backward pass; `buckets`: each is reduce-scattered, by train.py, when the last backward pass has computed it;
    `ZeRO`: by DeepSpeed's optimizer of this stage.
    """

    way: Way
    dtype: str
    ranks: int
    """Replicas x context parallel ranks, which have the same weights."""
    context: int
    """Context parallel ranks."""
    stage: int
    """The stage of ZeRO in effect, which is 1 in 16 bits with stage 0."""
    overlaps: bool
    every_micro_batch: bool
    accumulated: str
    """The type in which the gradients of micro batches are added."""
    passes: int
    """How often a rank sends all gradients: an all-reduce is a reduce-scatter and an all-gather."""

    @property
    def rounds(self) -> bool:
        """Whether the sum over ranks has less precision than the sums of each rank."""
        return self.way != "none" and BITS[self.dtype] < BITS[self.accumulated]

    @property
    def error(self) -> float:
        """The relative error of the mean of the gradients of the ranks, which is expected of rounding in a ring."""
        return 0.0 if self.way == "none" else ring_error(self.ranks, self.dtype)

    def describe(self) -> str:
        """Return the sum in words; empty with one replica."""
        if self.way == "none":
            return ""
        if self.way == "one bit":
            return f"the optimizer averages the momentum of {self.ranks} replicas, compressed to one bit"
        when, which = "during" if self.overlaps else "after", "every" if self.every_micro_batch else "the last"
        how = {
            "all-reduce": "in an all-reduce after the backward pass",
            "buckets": f"reduce-scattered in buckets {when} the last backward pass",
            "ZeRO": f"by ZeRO-{self.stage} {when} {which} backward pass",
        }[self.way]
        error = "" if self.dtype == "fp32" else f" (expected rounding error of the mean: {100 * self.error:.2g}%)"
        numbers = {"replicas": self.ranks // self.context, "context parallel ranks": self.context}
        who = " x ".join(f"{number} {name}" for name, number in numbers.items() if number > 1)
        return f"gradients of {who} summed in {self.dtype}{error}, {how}"


def gradient_sum(config: Config, ours: bool = True) -> GradientSum:
    """Return how train.py sums the gradients of a configuration over data parallel ranks; ours: False for DeepSpeed."""
    zero, precision, kind = config.zero_optimization, config.precision.precision, config.optimizer.type or ""
    layout, pipelined = Layout.of(config), config.parallel.pipe_parallel_size >= 1
    ranks = layout.with_same_weights
    own = {"bfloat16": "bf16"}.get(precision, precision)
    chosen = zero.stage if isinstance(zero.stage, int) else 0  # a list of stages that the autotuner tries
    stage = chosen or int(own != "fp32" and not is_onebit(kind) and (ours or pipelined))
    offloaded = bool(stage) and config.offload_optimizer.device != "none"
    in_fp32 = own == "fp32" or accumulates_in_fp32(
        bf16=own == "bf16",
        micro_batches=config.batch.gradient_accumulation_steps if ours else 1,
        chosen=config.data_types.grad_accum_dtype,
        offloaded=offloaded,
        optimizer=kind,
    )
    accumulated = "fp32" if in_fp32 else own
    dtype = config.gradients.communication_data_type or (accumulated if ours else own)
    bf16_optimizer = own == "bf16" and in_fp32 and stage == 1 and not offloaded
    way: Way = "none" if ranks == 1 else "one bit" if is_onebit(kind) else "ZeRO" if stage else "all-reduce"
    if bf16_optimizer and way == "ZeRO":  # DeepSpeed's optimizer for bf16 itself only knows an all-reduce
        way = "buckets" if ours and dtype == "fp32" else "all-reduce"
    overlaps = {
        "buckets": zero.overlap_comm is not False,
        "ZeRO": zero.overlap_comm is not False if stage == 3 else bool(zero.overlap_comm) and not pipelined,
    }.get(way, False)
    # DeepSpeed's stages 1 and 2 all-reduce buckets in which several ranks have gradients, and use their own part.
    scatters = zero.reduce_scatter and (stage == 3 or not zero.use_multi_rank_bucket_allreduce)
    passes = 1 if way == "buckets" or (way == "ZeRO" and scatters) else 2
    every = way == "ZeRO" and stage >= 2
    return GradientSum(way, dtype, ranks, layout.context, stage, overlaps, every, accumulated, passes)


def bucket_elements(reduce_bucket_size: int, ranks: int) -> int:
    """Return the elements of a bucket: `reduce_bucket_size`, or fewer so that the first sums begin early."""
    return min(max(BUCKET, BUCKET_PER_RANK * ranks), reduce_bucket_size)


def ring_error(ranks: int, dtype: str) -> float:
    """Return the relative error (root mean square) of a mean that a ring of ranks sums, rounding once at each.

    The summands are independent. The partial sum of k of n ranks is sqrt(k / n) of the whole and is rounded once, as
    is each summand before: with an error e per rounding, e * sqrt(1 + (2 + ... + n) / n).
    """
    # A number is rounded by up to half the distance of its neighbours, evenly. The distance is the same for all numbers
    # between two powers of 2, m from 1 to 2 times the lower one: the mean of 1 / m^2 is 3 / (8 ln 2), if log m is even.
    spacing = 2.0 ** (1 - BITS[dtype])
    rounding = spacing / math.sqrt(12) * math.sqrt(3 / (8 * math.log(2)))
    return rounding * math.sqrt(1 + (ranks + 1) / 2 - 1 / ranks) if ranks > 1 else 0.0
