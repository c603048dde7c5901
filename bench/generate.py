"""Tokens per second with kept keys and values against `recompute: true`, on one process.

    python bench/generate.py [--rows 8] [--prompt 64] [--tokens 128] [--rounds 3]

Fresh weights of Pythia-14M's shape. Both ways take turns, so that other load on the machine meets both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoxargs.registry.generation import Generation
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import DEFAULT, Value
from neoxargs.train.data.tokenizer import ByteTokenizer
from neoxargs.train.generation.generator import Generator, Whole
from neoxargs.train.kernels.cross_entropy import Vocabulary
from neoxargs.train.model.gpt import GPT
from neoxargs.train.parallel.make import Make
from neoxargs.train.process.mesh import Mesh

SHAPE = {
    "num_layers": 6, "hidden_size": 128, "num_attention_heads": 4, "num_kv_heads": 4, "intermediate_size": 512,
    "seq_length": 2048, "max_position_embeddings": 2048, "pos_emb": "rotary", "rotary_pct": 0.25,
    "gpt_j_residual": True, "no_weight_tying": True, "model_parallel_size": 1, "pipe_parallel_size": 0,
}  # fmt: skip
VOCABULARY = Vocabulary(50254, 50304)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 8, "prompt": 64, "tokens": 128, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    gpt = GPT(Config({name: Value(value, DEFAULT) for name, value in SHAPE.items()}), VOCABULARY, Make()).eval()
    model = Whole(gpt, gpt, torch.device("cpu"))
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.rounds):
        for recompute, found in rates.items():
            found.append(rate(model, options, recompute))
    kept, again = (statistics.median(found) for found in rates.values())
    print(f"kept keys and values  {kept:8.0f} tokens/s")
    print(f"recompute             {again:8.0f} tokens/s")
    print(f"ratio                 {kept / again:8.1f} x")


def rate(model: Whole, options: argparse.Namespace, recompute: bool) -> float:
    """Tokens per second of all rows together."""
    settings = Generation(maximum_tokens=options.tokens, recompute=recompute)
    # An end of documents that is never drawn, so that every row has as many tokens.
    generator = Generator(model, ByteTokenizer(VOCABULARY.size, -1), settings, SHAPE["seq_length"], Mesh(), seed=1)
    samples = [generator.sample("x" * options.prompt) for _ in range(options.rows)]
    began = time.perf_counter()
    generator.finish(samples)
    return options.rows * options.tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
