"""Measure all-reduces between two ranks of this machine, over gloo and through shared memory, in turns.

    python bench/shared_memory.py [--repetitions 50]

Each figure is the median time of an all-reduce in fp32.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoxargs.hosts.rendezvous import unused_port
from neoxargs.train.process.shared_memory import open_channel

#: Bytes of a tensor.
SIZES = {"8 KB": 1 << 13, "256 KB": 1 << 18, "2 MB": 1 << 21, "13 MB": 13 << 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=50, help="of each size (default: %(default)s)")
    repetitions, port = parser.parse_args().repetitions, unused_port()
    ranks = [multiprocessing.Process(target=measure, args=(rank, port, repetitions)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


def measure(rank: int, port: int, repetitions: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # Two ranks with all threads each would wait for each other's threads on a small machine.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    channel = open_channel(None, timeout=60)
    assert channel is not None, "shared memory needs Linux"
    if rank == 0:
        print(f"{'':10}{'gloo':>10}{'shared memory':>16}{'ratio':>8}")
    for size, count in SIZES.items():
        x = torch.zeros(count // 4)
        ways: list[Callable[[], object]] = [
            lambda x=x: dist.all_reduce(x),
            lambda x=x: channel.start_all_reduce(x).wait(),
        ]
        rounds = [[_milliseconds(way) for way in ways] for _ in range(repetitions)]
        gloo, memory = (statistics.median(times) for times in zip(*rounds, strict=True))
        if rank == 0:
            print(f"{size:10}{gloo:7.2f} ms{memory:13.2f} ms{gloo / memory:6.1f} x", flush=True)
    dist.destroy_process_group()


def _milliseconds(way: Callable[[], object]) -> float:
    # Otherwise the time would include waiting for the other rank.
    dist.barrier()
    began = time.perf_counter()
    way()
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
