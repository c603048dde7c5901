"""Compare the speed of generation with that of transformers, with the same weights, in one process.

    python bench/generate.py [--rows 1 16] [--prompt 64] [--tokens 64] [--recompute] [--profile] [--only NAME]

The models have random weights, which transformers makes and `deepy import` reads: one with the shape of Pythia 70M, a
Llama with grouped queries, and a narrow one, whose time is that of Python and torch around the kernels, as with a small
batch on a GPU. transformers generates with a static cache. Seconds are those of one CPU thread, on which other load has
little effect; measurements alternate, and the medians are printed, and the median of the ratios of a round. Tokens are
the most likely ones, and should be the same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoxargs.config.config import Config
from neoxargs.data.tokenizer import ByteTokenizer
from neoxargs.registry.generation import Generation
from neoxargs.resolve import resolve
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.weights_by_name import SavedWeights
from neoxargs.train.generation.generator import Generator, PlainModel
from neoxargs.train.losses.cross_entropy import Vocabulary
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process.mesh import Mesh
from tests.support.huggingface import imported

CONTEXT, VOCABULARY = 2048, 50304
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
         "max_position_embeddings": CONTEXT}  # fmt: skip
LLAMA = {"intermediate_size": 1376, "num_key_value_heads": 2}
NARROW = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 12, "vocab_size": 320}
#: Name -> class of transformers, and what differs from SHAPE.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Pythia 70M": ("GPTNeoX", {"intermediate_size": 2048, "rotary_pct": 0.25}),
    "Llama": ("Llama", LLAMA),
    "narrow Llama": ("Llama", LLAMA | NARROW),
}
#: Rows of tokens -> new tokens of each.
Generate = Callable[[list[list[int]]], list[list[int]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = "samples generated at once (default: 1 16)"
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16], help=rows)
    parser.add_argument("--prompt", type=int, default=64, help="tokens per prompt (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per sample (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each (default: %(default)s)")
    parser.add_argument("--recompute", action="store_true", help="also measure `recompute: true`")
    parser.add_argument("--profile", action="store_true", help="also print what takes the time of ours")
    parser.add_argument("--only", default="", metavar="NAME", help="only models whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in (name for name in MODELS if options.only in name):
        with tempfile.TemporaryDirectory() as folder:
            theirs, (gpt, config) = pair(name, Path(folder))
        ways = {"transformers": transformers_generate(theirs, options.tokens)}
        for recompute in (False, True) if options.recompute else (False,):
            ways["recomputed" if recompute else "ours"] = our_generate(gpt, config, options.tokens, recompute)
        for count in options.rows:
            print(f"{name}, {count} x {options.prompt} + {options.tokens} tokens")
            measure(ways, prompts(count, options.prompt, theirs.config.vocab_size), options)


def pair(name: str, folder: Path) -> tuple[Any, tuple[GPT, Config]]:
    """Return transformers' model, and ours with its weights and configuration."""
    import transformers

    torch.manual_seed(1)
    family, changes = MODELS[name]
    settings = getattr(transformers, f"{family}Config")(**SHAPE | changes, attn_implementation="sdpa")
    theirs = getattr(transformers, f"{family}ForCausalLM")(settings).eval()
    ours = imported(folder, theirs)
    config = resolve([ours / "model.yml"], gpus=1)
    rows = settings.vocab_size
    gpt = GPT(config, Vocabulary(rows, rows), Weights(), Shared()).eval()
    saved = SavedWeights(ours / "global_step0", inventory.read(ours / "global_step0"))
    with torch.no_grad():
        for key, weight in gpt.named_parameters():
            weight.copy_(saved.full_tensor(key))
    return theirs, (gpt, config)


def prompts(rows: int, length: int, vocabulary: int) -> list[list[int]]:
    return torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(2)).tolist()


def transformers_generate(model: Any, tokens: int) -> Generate:
    def generate(rows: list[list[int]]) -> list[list[int]]:
        ids = torch.tensor(rows)
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
            cache_implementation="static", disable_compile=True, pad_token_id=0,
        )  # fmt: skip
        return found[:, ids.shape[1] :].tolist()  # type: ignore[no-any-return]

    return generate


def our_generate(gpt: GPT, config: Config, tokens: int, recompute: bool) -> Generate:
    model = PlainModel(gpt, gpt, torch.device("cpu"))
    settings = Generation(maximum_tokens=tokens, recompute=recompute, temperature=0.0)

    def generate(rows: list[list[int]]) -> list[list[int]]:
        # An end of document that no model chooses, so that all rows have the same length.
        generator = Generator(
            model,
            ByteTokenizer(len(gpt.embedding.weight), -1),
            settings,
            config.shape.seq_length,
            Mesh(),
            seed=1,
        )
        samples = [generator.sample("", row) for row in rows]
        generator.finish(samples)
        return [sample.ids for sample in samples]

    return generate


def measure(ways: dict[str, Generate], rows: list[list[int]], options: argparse.Namespace) -> None:
    """Print the speed of each way, and its ratio to transformers'."""
    expected = [generate(rows) for generate in ways.values()]  # also warms up
    same = sum(one == other for other in expected[1:] for one, other in zip(expected[0], other, strict=True))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, generate in ways.items():
            began = time.process_time()
            generate(rows)
            seconds[name].append(time.process_time() - began)
    for name, taken in seconds.items():
        ratio = statistics.median(base / own for base, own in zip(seconds["transformers"], taken, strict=True))
        rate = len(rows) * options.tokens / statistics.median(taken)
        print(f"  {name:14}{rate:8.0f} tokens/s   {ratio:5.2f} x transformers")
    print(f"  {same} of {len(rows) * (len(ways) - 1)} texts are the same")
    if options.profile:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            ways["ours"](rows)
        for row in sorted(profiled.key_averages(), key=lambda row: -row.self_cpu_time_total)[:25]:
            print(f"    {row.self_cpu_time_total / 1000:9.1f} ms {row.count:7} x {row.key}")


if __name__ == "__main__":
    main()
