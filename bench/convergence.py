"""Compare the validation loss of a small model between the optimizers of the Adam family and between precisions.

    python bench/convergence.py [--steps 1000] [--optimizers Adam OneBitAdam] [--precisions fp32 bf16]

The model is that of configs/quickstart.yml with 1 layer, hidden size 32 and sequences of 32 bytes. It is trained on the
source of Python's standard library with two data parallel ranks, because 1-bit optimizers compress the communication
between ranks. Initial weights and batches are the same in every run. Each loss is compared with that of the first run,
by default Adam in fp32; differences of more than 1 % are marked.

After a third of the run, OneBitAdam freezes its second moments and starts to compress gradients. Its loss differs from
Adam's because of the frozen moments, not because of the compression. These are the final losses with 2 layers, hidden
size 64 and 600 steps:

    freeze_step   OneBitAdam   without compression     Adam
            100       1.9750                1.9769   2.0263
            200       2.0084                2.0044   2.0263

fp16 runs on any CPU; torch emulates fp16 on a CPU without instructions for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.config.config import Config  # noqa: E402
from neoxargs.hosts.rendezvous import unused_port  # noqa: E402
from neoxargs.resolve import resolve  # noqa: E402
from neoxargs.targets.deepspeed import deepspeed_json  # noqa: E402
from neoxargs.train.micro_batch import MicroBatch  # noqa: E402

RANKS, TOLERANCE = 2, 0.01
SHAPE = [
    "num_layers=1", "hidden_size=32", "num_attention_heads=2", "seq_length=32", "max_position_embeddings=32",
    "model_parallel_size=1", "pipe_parallel_size=0", "train_micro_batch_size_per_gpu=16",
    "gradient_accumulation_steps=1", "lr=0.003", "optimizer.params.lr=0.003",
]  # fmt: skip
#: Name in the table -> overrides.
OPTIMIZERS = {
    "Adam": ["optimizer.type=Adam"],
    "AdamW": ["optimizer.type=AdamW"],
    "cpu_torch_adam": ["optimizer.type=cpu_torch_adam"],
    "cpu_adam": ["optimizer.type=cpu_adam"],
    "OneBitAdam": ["optimizer.type=OneBitAdam"],
}
PRECISIONS = ("fp32", "bf16", "fp16")
#: (optimizer, precision) -> validation loss.
Losses = dict[tuple[str, str], float]


def main() -> int:
    options = _options()
    torch.multiprocessing.spawn(_rank, (unused_port(), options), nprocs=RANKS)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="training steps per run (default: %(default)s)")
    parser.add_argument(
        "--optimizers",
        nargs="+",
        default=list(OPTIMIZERS),
        choices=OPTIMIZERS,
        help="optimizers to compare (default: all)",
    )
    parser.add_argument(
        "--precisions",
        nargs="+",
        default=list(PRECISIONS),
        choices=PRECISIONS,
        help="precisions to compare (default: all)",
    )
    return parser.parse_args()


def _rank(rank: int, port: int, options: argparse.Namespace) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()} | {"DS_ACCELERATOR": "cpu"})
    from deepspeed.accelerator import get_accelerator

    from neoxargs.train.process import setup

    setup.start("gloo", seed=1)
    # DeepSpeed rejects fp16 on CPUs without instructions for it
    get_accelerator().is_fp16_supported = lambda: True
    texts, losses = library(), {}
    if rank == 0:
        print(f"{'optimizer':16} {'precision':10} {'loss':>8} {'difference':>13} {'time, s':>8}", flush=True)
    for kind in options.optimizers:
        for precision in options.precisions:
            begin = time.perf_counter()
            losses[kind, precision] = _train(make_config(kind, precision, options.steps), texts, rank, options.steps)
            if rank == 0:
                _print_row(losses, kind, precision, time.perf_counter() - begin)


def make_config(kind: str, precision: str, steps: int) -> Config:
    """Return the small configuration with this optimizer and precision."""
    overrides = [*SHAPE, *OPTIMIZERS[kind], f"precision={precision}", f"train_iters={steps}", f"lr_decay_iters={steps}"]
    if kind == "OneBitAdam":
        # DeepSpeed's default of 100,000 steps would never compress anything here.
        overrides.append(f"optimizer.params.freeze_step={steps // 3}")
    return resolve([ROOT / "configs" / "quickstart.yml"], overrides, gpus=RANKS)


def library() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes of the Python library's source: those for training, and every 25th file for validation."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [b"".join(file.read_bytes() for i, file in enumerate(files) if (i % 25 == 0) == held) for held in (0, 1)]
    train, valid = (torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in texts)
    return train, valid


def _train(config: Config, texts: Sequence[torch.Tensor], rank: int, steps: int) -> float:
    """Train, and return the loss on the validation text."""
    from neoxargs.train.engine import build as engine
    from neoxargs.train.losses.cross_entropy import Vocabulary
    from neoxargs.train.process import mesh, setup

    layout = mesh.build_mesh(config)
    setup.set_seeds(1)
    # ByteLevelTokenizer's 257 tokens, padded to a multiple of 128.
    trained: Any = engine.build(config, deepspeed_json(config), Vocabulary(257, 384), layout)
    batches = windows(texts[0], rank, config)
    for _ in range(steps):
        trained.train_step(batches)
    loss = trained.evaluate(windows(texts[1], rank, config), 30).loss
    mesh.destroy_groups()
    return float(loss)


def windows(text: torch.Tensor, rank: int, config: Config) -> Iterator[MicroBatch]:
    """Yield this rank's micro batches: random windows of the text, the same in every run."""
    size, length = config.batch.train_micro_batch_size_per_gpu, config.shape.seq_length
    # Each rank reads other windows, and every run the same ones.
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        starts = torch.randint(len(text) - length - 1, (size,), generator=generator).tolist()
        piece = torch.stack([text[start : start + length + 1] for start in starts])
        yield MicroBatch(piece[:, :-1].contiguous(), piece[:, 1:].contiguous())


def _print_row(losses: Losses, kind: str, precision: str, seconds: float) -> None:
    loss, reference = losses[kind, precision], next(iter(losses.values()))
    difference = loss / reference - 1
    note = "" if abs(difference) <= TOLERANCE else f"  differs by more than {TOLERANCE:.0%}"
    print(f"{kind:16} {precision:10} {loss:8.4f} {difference:+13.2%} {seconds:8.0f}{note}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
