"""Runs the trials of bench/on_gpu.py as one rank, on a GPU or, with DS_ACCELERATOR=cpu, on the CPU.

Reads a JSON list of trials from standard input, and appends one line of JSON for each to the file that is its argument.
A rank among several ends after an error, because the others may wait for it.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import json
import os
import re
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from gpu_messages import sent_in_a_step  # noqa: E402

from neoxargs.config.config import Config  # noqa: E402
from neoxargs.facts.layout import Layout  # noqa: E402
from neoxargs.files.run_record import recorded_values  # noqa: E402
from neoxargs.processes.process_tree import signal_when_parent_ends  # noqa: E402
from neoxargs.resolve import File, complete, draft, read_files  # noqa: E402
from neoxargs.targets.deepspeed import deepspeed_json  # noqa: E402

#: Steps before the measured ones, in which torch compiles kernels and its allocator finds its size.
WARM_UP = 3
#: Kinds of kernels, by words in their names; the first that fits.
KINDS = {"attention": "flash|fmha|sdpa|flex", "matrix products": "gemm|nvjet|cutlass|cublas", "messages": "nccl"}
#: The operator that a call of torch's attention has chosen, or a kernel of flex_attention or varlen_attn.
ATTENTION = re.compile(r"_scaled_dot_product_(?:attention_)?(\w+)|(flex_attention|varlen_attn)")
#: Kernels that are named.
KERNELS = 25
#: Different batches, which repeat.
BATCHES = 4


class Trial(TypedDict):
    """One configuration to train."""

    name: str
    file: str | None
    """A configuration file."""
    sets: dict[str, Any]
    """Name of a parameter -> its value, which overrides the file's."""
    measure: str
    """`losses` or `speed`."""
    steps: int
    seconds: float
    """After this time no step of `speed` is begun, once there are three."""


def main() -> int:
    signal_when_parent_ends(signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # where this rank is, if it has no result in time
    trials: list[Trial] = json.load(sys.stdin)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    configs = [resolve_trial(trial["file"], trial["sets"], ranks) for trial in trials]
    from neoxargs.train.process import gpu_environment

    # Before torch is imported, because it reads these variables only once.
    for config in configs:
        gpu_environment.set_environment(config)
    from neoxargs.train.process import setup

    process = setup.start("nccl", configs[0].training.seed)
    with open(sys.argv[1], "a", encoding="utf-8") as results:
        for trial, config in zip(trials, configs, strict=True):
            row = _attempt(trial, config)
            if "error" in row:
                row |= {"rank": process.rank, "at": time.time()} if ranks > 1 else {}
            print(json.dumps(row), file=results, flush=True)
            # After an error of CUDA, the process can do nothing more on the GPU.
            if "error" in row and (ranks > 1 or "CUDA error" in row["error"]):
                return 1
    setup.stop()
    return 0


def resolve_trial(file: str | None, sets: dict[str, Any], ranks: int = 1) -> Config:
    """Return the configuration of a trial; raises Problems."""
    files = read_files([file]) if file else [File("trial.yml", "{}")]
    return complete(draft(files).with_values(sets), ranks)


def _attempt(trial: Trial, config: Config) -> dict[str, Any]:
    """Return what was measured, or the error."""
    import torch

    from neoxargs.train.process import mesh, setup

    setup.set_numerics(config)
    try:
        return measure_losses(trial, config) if trial["measure"] == "losses" else measure_speed(trial, config)
    except Exception as error:
        first, *_ = str(error).strip().splitlines() or [""]
        return {"error": f"{type(error).__name__}: {first}"}
    finally:
        mesh.destroy_groups()
        torch.use_deterministic_algorithms(False)
        _free()


def _free() -> None:
    """Free what the trial before has left: tensors, and compiled kernels, of which torch keeps only a few."""
    import torch

    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure_losses(trial: Trial, config: Config) -> dict[str, Any]:
    """Train some steps from the same weights as on every device; a deterministic run also a second time."""
    row = _losses(trial, config)
    if config.training.deterministic:
        row["repeats"] = _losses(trial, config)["losses"] == row["losses"]
    return row


def _losses(trial: Trial, config: Config) -> dict[str, Any]:
    from neoxargs.train.process import mesh

    trained, batches = _build(config)
    several = Layout.of(config).ranks > 1
    logits = _logits(trained, config) if config.parallel.pipe_parallel_size == 0 and not several else None
    results = [trained.train_step(batches) for _ in range(trial["steps"])]
    waits = _waits(trained, batches) if trained.deepspeed.device.type == "cuda" else []
    losses = [result.loss for result in results]
    row = {
        "losses": losses,
        "norm": results[0].grad_norm,
        "logits": logits,
        "waits": waits,
        "recurrent": trained.kernels,
    }
    if several:
        row |= {"attention": _attention(trained, batches), **sent_in_a_step(trained, batches, config)}
    mesh.destroy_groups()
    return row


def _attention(trained: Any, batches: Iterator[Any]) -> list[str]:
    """Return torch's operators, and the kernels of flex_attention, that compute attention in one more step."""
    from torch.profiler import profile, supported_activities

    with profile(activities=supported_activities()) as profiled:
        trained.train_step(batches)
    found = (ATTENTION.search(event.key) for event in profiled.key_averages())
    return sorted({match[1] or match[2] for match in found if match and not match[0].endswith("backward")})


def _waits(trained: Any, batches: Iterator[Any] | None) -> list[str]:
    """Return where the host waits for the GPU in one more step, as torch reports it."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        trained.train_step(batches)
        torch.cuda.set_sync_debug_mode("default")
    found = [warning for warning in caught if "synchronizing CUDA operation" in str(warning.message)]
    return ["/".join([*Path(warning.filename).parts[-2:]]) + f":{warning.lineno}" for warning in found]


def measure_speed(trial: Trial, config: Config) -> dict[str, Any]:
    """Return the median seconds of a step, and the peak memory in bytes. Only on a GPU."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    trained, batches = _build(config)
    losses = [trained.train_step(batches).loss for _ in range(WARM_UP)]
    seconds: list[float] = []
    end = time.perf_counter() + trial["seconds"]
    # At least three steps, however slow, because the median of fewer means little.
    while len(seconds) < trial["steps"] and (len(seconds) < 3 or time.perf_counter() < end):
        torch.cuda.synchronize()
        began = time.perf_counter()
        losses.append(trained.train_step(batches).loss)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    # Of the whole GPU: a process cannot see its own share with CUDA's context.
    free, total = torch.cuda.mem_get_info()
    return {
        "seconds": statistics.median(seconds),
        "steps": len(seconds),
        "tensors": torch.cuda.max_memory_allocated(),
        "used": total - free,
        "losses": losses,
        "config": recorded_values(config, defaults=False),  # for deepy plan --learn
        **_kernels(trained, batches),
    }


def _kernels(trained: Any, batches: Iterator[Any]) -> dict[str, Any]:
    """Profile one more step: return the seconds of each kind of kernel, and the kernels that take longest."""
    from torch.profiler import ProfilerActivity, profile, supported_activities

    if ProfilerActivity.CUDA not in supported_activities():  # a simulated GPU
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        trained.train_step(batches)
    rows = [(row.key, row.count, row.self_device_time_total / 1e6) for row in profiled.key_averages()]
    kinds = dict.fromkeys([*KINDS, "other kernels"], 0.0)
    for name, _, seconds in rows:
        kinds[next((kind for kind, words in KINDS.items() if re.search(words, name)), "other kernels")] += seconds
    return {"kinds": kinds, "kernels": sorted(rows, key=lambda row: -row[2])[:KERNELS]}


def _build(config: Config) -> tuple[Any, Iterator[Any] | None]:
    """Return the engine and this rank's micro batches: random tokens in pinned memory, as a data loader delivers them.

    A stage in the middle of a pipeline has none.
    """
    from neoxargs.train.engine import build as engine
    from neoxargs.train.losses.cross_entropy import Vocabulary
    from neoxargs.train.process import mesh, setup

    rows = config.embedding.padded_vocab_size
    layout = mesh.build_mesh(config)
    setup.set_seeds(config.training.seed)
    trained = engine.build(config, deepspeed_json(config), Vocabulary(rows, rows, eod=0), layout)
    pin = trained.deepspeed.device.type == "cuda"
    return trained, _batches(config, layout.samples.rank, pin) if trained.reads_data else None


def _batches(config: Config, replica: int, pin: bool) -> Iterator[Any]:
    from neoxargs.train.micro_batch import MicroBatch

    steps, replicas = config.batch.gradient_accumulation_steps, Layout.of(config).data
    texts = [_tokens(config, replica + replicas * number) for number in range(BATCHES * steps)]
    batches = [MicroBatch(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]
    return itertools.cycle([batch.pin_memory() for batch in batches] if pin else batches)


def _tokens(config: Config, number: int) -> Any:
    """Return the random tokens of a micro batch of the run, (micro batch, seq + 1).

    The samples of a step are the same on every device and in every layout. Small tokens are frequent, as in text.
    """
    import torch

    size = config.batch.train_micro_batch_size_per_gpu
    samples = [
        torch.rand(config.shape.seq_length + 1, generator=torch.Generator().manual_seed(number * size + place))
        for place in range(size)
    ]
    return (config.embedding.padded_vocab_size ** torch.stack(samples)).long() - 1


def _logits(trained: Any, config: Config) -> list[float]:
    """Return the untrained model's logits of the last token of each sample."""
    import torch

    module = trained.deepspeed.module
    module.eval()
    with torch.no_grad():
        logits = module(_tokens(config, 0)[:, :-1].to(trained.deepspeed.device))
    module.train()
    return logits[:, -1].float().flatten().tolist()  # type: ignore[no-any-return]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    sys.exit(main())
