"""Validation loss of one small model for every optimizer of the Adam family and every number format.

    python bench/convergence.py [--steps 1000] [--optimizers Adam OneBitAdam] [--precisions fp32 bf16]

configs/quickstart.yml with a model of 1 layer, hidden 32 and sequences of 32 bytes, on the Python library's source, in
two data parallel processes (1-bit messages need somebody to send them to). Weights and batches are the same every
time, so what differs is arithmetic. Every figure is held against Adam's in fp32; 1 % is what they may differ by.
OneBitAdam compresses from a third of the run on. What then differs from Adam is the mean of squares that stays as it
is, not the compression: of 2 layers, hidden 64, 600 steps, frozen after 100, the loss was 1.9750, with exact averages
in place of compressed ones 1.9769, and Adam's 2.0263; frozen after 200, 2.0084, 2.0044 and 2.0263.
fp16 is computed by any CPU, with or without instructions for it.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.launch.targets.deepspeed import deepspeed_json  # noqa: E402
from neoxargs.resolve import resolve  # noqa: E402
from neoxargs.resolve.config import Config  # noqa: E402

RANKS, ALLOWED = 2, 0.01
SHAPE = [
    "num_layers=1", "hidden_size=32", "num_attention_heads=2", "seq_length=32", "max_position_embeddings=32",
    "model_parallel_size=1", "pipe_parallel_size=0", "train_micro_batch_size_per_gpu=16",
    "gradient_accumulation_steps=1", "lr=0.003", "optimizer.params.lr=0.003",
]  # fmt: skip
#: name in the table -> what is written for it
OPTIMIZERS = {
    "Adam": ["optimizer.type=Adam"],
    "AdamW": ["optimizer.type=AdamW"],
    "cpu_torch_adam": ["optimizer.type=cpu_torch_adam"],
    "cpu_adam": ["optimizer.type=cpu_adam"],
    "OneBitAdam": ["optimizer.type=OneBitAdam"],
}
PRECISIONS = ("fp32", "bf16", "fp16")
Table = dict[tuple[str, str], float]


def main() -> int:
    options = _options()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port, options), nprocs=RANKS)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=OPTIMIZERS)
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    return parser.parse_args()


def _rank(rank: int, port: int, options: argparse.Namespace) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()} | {"DS_ACCELERATOR": "cpu"})
    from deepspeed.accelerator import get_accelerator

    from neoxargs.train.process import setup

    setup.start("gloo", seed=1)
    get_accelerator().is_fp16_supported = lambda: True
    texts, found = library(), {}
    if rank == 0:
        print(f"{'optimizer':16} {'precision':10} {'loss':>8} {'to Adam fp32':>13} {'s':>5}", flush=True)
    for kind in options.optimizers:
        for precision in options.precisions:
            begin = time.perf_counter()
            found[kind, precision] = _train(configured(kind, precision, options.steps), texts, rank, options.steps)
            if rank == 0:
                _print_row(found, kind, precision, time.perf_counter() - begin)


def configured(kind: str, precision: str, steps: int) -> Config:
    """The quickstart, smaller, with this optimizer in this precision."""
    written = [*SHAPE, *OPTIMIZERS[kind], f"precision={precision}", f"train_iters={steps}", f"lr_decay_iters={steps}"]
    if kind == "OneBitAdam":
        written.append(f"optimizer.params.freeze_step={steps // 3}")
    return resolve([ROOT / "configs" / "quickstart.yml"], written, gpus=RANKS)


def library() -> tuple[torch.Tensor, torch.Tensor]:
    """The Python library's source as bytes, for training and, every 25th file, for validation."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [b"".join(file.read_bytes() for i, file in enumerate(files) if (i % 25 == 0) == kept) for kept in (0, 1)]
    train, valid = (torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in texts)
    return train, valid


def _train(config: Config, texts: Sequence[torch.Tensor], rank: int, steps: int) -> float:
    """Loss on the validation text after so many steps."""
    from neoxargs.train.engine import build as engine
    from neoxargs.train.kernels.cross_entropy import Vocabulary
    from neoxargs.train.process import mesh, setup

    here = mesh.build_mesh(config.parallel)
    setup.set_seeds(1)
    trained: Any = engine.build(config, deepspeed_json(config), Vocabulary(257, 384), here)
    batches = windows(texts[0], rank, config)
    for _ in range(steps):
        trained.train_step(batches)
    loss = trained.evaluate(windows(texts[1], rank, config), 30)
    mesh.destroy()
    return float(loss)


def windows(text: torch.Tensor, rank: int, config: Config) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's micro batches: random pieces of the text, the same for every run."""
    size, length = config.batch.train_micro_batch_size_per_gpu, config.shape.seq_length
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        starts = torch.randint(len(text) - length - 1, (size,), generator=generator).tolist()
        piece = torch.stack([text[start : start + length + 1] for start in starts])
        yield piece[:, :-1].contiguous(), piece[:, 1:].contiguous()


def _print_row(found: Table, kind: str, precision: str, seconds: float) -> None:
    loss, reference = found[kind, precision], next(iter(found.values()))
    apart = loss / reference - 1
    verdict = "" if abs(apart) <= ALLOWED else "  more than 1 %"
    print(f"{kind:16} {precision:10} {loss:8.4f} {apart:+13.2%} {seconds:5.0f}{verdict}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
