"""Measure the peak memory with options that save memory, and check the order that docs/parameters.md states.

    python bench/memory.py [--only "data parallel"]

The peak is the most memory that the tensors of rank 0 occupy from before the model is built until after the second
step: in torch's CPU allocator, or on the GPU if there is one. On a CPU, offloading does not reduce this memory.

ZeRO stages 0 to 3 took 61.6, 52.3, 46.7 and 40.5 MiB on two ranks and 61.6, 37.3, 33.8 and 26.6 MiB on four. These
figures are with `stage3_max_reuse_distance: 0`. A model with fewer parameters than the default of that setting takes
more memory with stage 3 than with stage 2, because each gathered weight is kept until the backward pass from the second
step on (61 MiB instead of 41 on two ranks).
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

#: LONG: long sequences and narrow layers, so that activations dominate. WIDE: the opposite, so that weights do.
LONG = {
    "num_layers": 8,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "seq_length": 256,
    "max_position_embeddings": 256,
}
WIDE = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "seq_length": 16, "max_position_embeddings": 16}
RECOMPUTED = {**LONG, "checkpoint_activations": True}
DEEP = {**LONG, "num_layers": 24, "model_parallel_size": 2}
#: Measurements of each trial, of which the minimum counts: gloo's threads free sent buffers with a delay.
REPEATS = 3


def zero(stage: int, **changes: Any) -> dict[str, Any]:
    """Return a configuration of this ZeRO stage with small buffers, whose size would hide what is partitioned."""
    sizes = {"reduce_bucket_size": 100_000, "allgather_bucket_size": 100_000}
    if stage == 3:
        sizes = {"reduce_bucket_size": 100_000, "sub_group_size": 100_000, "stage3_prefetch_bucket_size": 0,
                 "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0,
                 "stage3_param_persistence_threshold": 0}  # fmt: skip
    return {**WIDE, "zero_optimization": {"stage": stage, **sizes, **changes}}


#: Name -> number of ranks, and options in the stated order, from most to least memory.
ORDERS: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {
    "1 rank, activations": (1, {
        "no recomputation": LONG,
        "checkpoint_num_layers: 4": {**RECOMPUTED, "checkpoint_num_layers": 4},
        "checkpoint_num_layers: 2": {**RECOMPUTED, "checkpoint_num_layers": 2},
        "checkpoint_activations": RECOMPUTED,
    }),
    "2 tensor parallel ranks": (2, {
        "no recomputation": DEEP,
        "checkpoint_activations": {**RECOMPUTED, **DEEP},
        "partition_activations": {**RECOMPUTED, **DEEP, "partition_activations": True},
    }),
    "2 data parallel ranks": (2, {f"ZeRO stage {stage}": zero(stage) for stage in (0, 1, 2, 3)}),
    "4 data parallel ranks": (4, {f"ZeRO stage {stage}": zero(stage) for stage in (0, 1, 2, 3)}),
    "offload, on a GPU": (2, {
        "ZeRO stage 2": zero(2),
        "offload_optimizer to cpu": zero(2, offload_optimizer={"device": "cpu", "pin_memory": False}),
    }),
}  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="", help="measure only the comparisons whose name contains this text")
    in_order = True
    for name, (ranks, trials) in ORDERS.items():
        if options.parse_args().only in name and (torch.cuda.is_available() or not name.endswith("on a GPU")):
            in_order &= _print(name, trials, measure(ranks, trials))
    sys.exit(0 if in_order else "peak memory does not decrease in the order that docs/parameters.md states")


def _print(name: str, trials: dict[str, Any], peaks: Sequence[int]) -> bool:
    print(name)
    for trial, peak in zip(trials, peaks, strict=True):
        print(f"  {trial:28}{peak / 2**20:9.2f} MiB{peak / peaks[0]:7.0%}")
    in_order = all(before > after for before, after in pairwise(peaks))
    print(f"  each peak is lower than the one above: {'yes' if in_order else 'NO'}", flush=True)
    return in_order


def measure(ranks: int, trials: dict[str, dict[str, Any]]) -> list[int]:
    """Return the peak of rank 0 in bytes for each trial."""
    from neoxargs.hosts.rendezvous import unused_port

    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, unused_port(), list(trials.values()), folder)
        torch.multiprocessing.start_processes(_rank, arguments, nprocs=ranks, start_method="spawn")
        return [int(line) for line in Path(folder, "peaks").read_text().split()]


def _rank(rank: int, ranks: int, port: int, trials: list[dict[str, Any]], folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
    from neoxargs.train.process import mesh, setup

    setup.start("nccl", seed=1)
    peaks = []
    for trial in trials:
        times = []
        for _ in range(REPEATS):
            times.append(_peak(trial, ranks))
            mesh.destroy_groups()
        peaks.append(min(times))
    if rank == 0:
        Path(folder, "peaks").write_text("\n".join(map(str, peaks)))
    setup.stop()


def _peak(trial: dict[str, Any], ranks: int) -> int:
    import yaml

    from neoxargs.resolve import File, complete, draft
    from neoxargs.targets.deepspeed import deepspeed_json
    from neoxargs.train.engine import build as engine
    from neoxargs.train.losses.cross_entropy import Vocabulary
    from neoxargs.train.micro_batch import MicroBatch
    from neoxargs.train.process import mesh

    common = {"pipe_parallel_size": 0, "train_micro_batch_size_per_gpu": 4, "train_iters": 2, "data_path": "none",
              "attention_dropout": 0, "hidden_dropout": 0, "dialect": "neox-2021",
              "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}  # fmt: skip
    config = complete(draft([File("bench.yml", yaml.safe_dump({**common, **trial}))]), ranks)

    def work() -> None:
        trained = engine.build(config, deepspeed_json(config), Vocabulary(256, 256), mesh.build_mesh(config))
        tokens = torch.randint(256, (4, trial["seq_length"]))
        for _ in range(2):
            trained.train_step(iter([MicroBatch(tokens, tokens)]))

    return peak_of(work)


def peak_of(work: Callable[[], object]) -> int:
    """Run `work` and return its peak of allocated tensors in bytes, without tensors allocated before."""
    from neoxargs.train.process.setup import on_gpu

    # So that objects in cycles of references are not freed, and their memory reused, during `work`.
    gc.collect()
    if on_gpu():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    # Sorted by time: the first one gives the total before `work`.
    allocations = sorted(_allocations(profiler.profiler.kineto_results))
    before = allocations[0][1] - allocations[0][2] if allocations else 0
    return max((total - before for _, total, _ in allocations), default=0)


def _allocations(results: Any) -> list[tuple[int, int, int]]:
    """Return (time in ns, total bytes allocated after it, bytes added or freed) for each allocation.

    The total includes what earlier profilers recorded.
    """
    allocations, events = [], list(results.experimental_event_tree())
    while events:
        event = events.pop()
        events += event.children
        if event.tag.name == "Allocation":
            size = event.extra_fields
            allocations.append((event.start_time_ns, size.total_allocated, size.alloc_size))
    return allocations


if __name__ == "__main__":
    main()
