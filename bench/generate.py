"""Compare the speed of generation with the key/value cache and with `recompute: true`, in one process.

    python bench/generate.py [--rows 8] [--prompt 64] [--tokens 128] [--rounds 3]

The model has the shape of Pythia 14M and untrained weights. Measurements of the two modes alternate, so that other load
on the machine affects both in the same way.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoxargs.config.config import Config
from neoxargs.config.value import DEFAULT, Value
from neoxargs.data.tokenizer import ByteTokenizer
from neoxargs.registry.generation import Generation
from neoxargs.train.generation.generator import Generator, PlainModel
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.mesh import Mesh

SHAPE = {
    "num_layers": 6, "hidden_size": 128, "num_attention_heads": 4, "num_kv_heads": 4, "intermediate_size": 512,
    "seq_length": 2048, "max_position_embeddings": 2048, "pos_emb": "rotary", "rotary_pct": 0.25,
    "gpt_j_residual": True, "no_weight_tying": True, "model_parallel_size": 1, "pipe_parallel_size": 0,
}  # fmt: skip
VOCABULARY = Vocabulary(50254, 50304)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = partial(parser.add_argument, type=int)
    add("--rows", default=8, help="samples generated at once (default: %(default)s)")
    add("--prompt", default=64, help="tokens per prompt (default: %(default)s)")
    add("--tokens", default=128, help="tokens to generate per sample (default: %(default)s)")
    add("--rounds", default=3, help="measurements of each mode; the median is printed (default: %(default)s)")
    options = parser.parse_args()
    gpt = GPT(
        Config({name: Value(value, DEFAULT) for name, value in SHAPE.items()}), VOCABULARY, Weights(), Shared()
    ).eval()
    model = PlainModel(gpt, gpt, torch.device("cpu"))
    # recompute -> tokens per second.
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.rounds):
        for recompute, measured in rates.items():
            measured.append(rate(model, options, recompute))
    cached, recomputed = (statistics.median(measured) for measured in rates.values())
    print(f"key/value cache  {cached:8.0f} tokens/s")
    print(f"recompute        {recomputed:8.0f} tokens/s")
    print(f"ratio            {cached / recomputed:8.1f} x")


def rate(model: PlainModel, options: argparse.Namespace, recompute: bool) -> float:
    """Measure tokens per second over all rows."""
    settings = Generation(maximum_tokens=options.tokens, recompute=recompute)
    # an end-of-document token that is never sampled, so that all rows have the same length
    generator = Generator(model, ByteTokenizer(VOCABULARY.size, -1), settings, SHAPE["seq_length"], Mesh(), seed=1)
    samples = [generator.sample("x" * options.prompt) for _ in range(options.rows)]
    began = time.perf_counter()
    generator.finish(samples)
    return options.rows * options.tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
