"""Context parallel ranks: how they compute attention, by exchanging heads, in a ring or both; what they divide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd
from typing import Any

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.facts.attention import CAUSAL
from neoxargs.facts.layer_kinds import RECURRENT

AUTO, ALL_TO_ALL, RING, HYBRID = "auto", "all_to_all", "ring", "hybrid"
#: Values of `attention_backend` that a ring can have; `flex` on GPUs, `unfused` on CPUs (facts/attention_kernels.py).
BACKENDS = ("auto", "flex", "unfused")
#: What a ring can compute instead, by the parameter that asks for something else.
IN_A_RING = {
    "attention_dropout": "0", "pos_emb": "rotary", "attention_backend": "auto",
    "attention_config": '[[["global"], "all"]]',
}  # fmt: skip


def missing_in_ring(get: Callable[[str], Any]) -> dict[str, str]:
    """Return what attention in a ring cannot compute of a configuration -> the parameter that asks for it."""
    dropout, pos_emb, backend = (get(name) for name in ("attention_dropout", "pos_emb", "attention_backend"))
    kinds = get("attention_config")
    sparse = sorted({*kinds} - {*CAUSAL, *RECURRENT}) if isinstance(kinds, list | tuple) else []
    asked = {
        f"attention_dropout ({dropout})": dropout,
        f"pos_emb ({pos_emb})": pos_emb == "rpe",
        f"attention_backend ({backend})": backend not in BACKENDS,
        f"attention_config ({', '.join(sparse)})": sparse,
    }
    return {what: what.partition(" ")[0] for what, is_asked in asked.items() if is_asked}


def style_of(get: Callable[[str], Any]) -> tuple[str, str]:
    """Return how a run with these parameters computes attention, and why, in words."""
    named = get("context_parallel_style")
    if named == AUTO:
        return _chosen(get)
    sharing, ranks, keys = _sharing(get), get("context_parallel_size"), _heads(get, "num_kv_heads")
    if named == HYBRID and sharing in {1, ranks}:
        if sharing == 1:
            return RING, f"no two of {ranks} ranks can divide {keys} key and value heads"
        return ALL_TO_ALL, f"all {ranks} ranks can divide {keys} key and value heads"
    return named, "context_parallel_style"


def in_words(config: Config) -> str:
    """Return how context parallel ranks compute attention, and why; empty without such ranks."""
    if (ranks := config.parallel.context_parallel_size) == 1:
        return ""
    style, why = style_of(config.get)
    heads = ranks_with_other_heads(config.get)
    of = f"{heads} x {ranks // heads} ranks, heads x ring" if style == HYBRID else f"{ranks} ranks"
    return f"{style} over {of} ({why})"


def to_json(config: Config) -> dict[str, Any] | None:
    """Return what `in_words` says for a program."""
    if (ranks := config.parallel.context_parallel_size) == 1:
        return None
    (style, why), heads = style_of(config.get), ranks_with_other_heads(config.get)
    return {"style": style, "why": why, "ranks_exchanging_heads": heads, "ranks_in_ring": ranks // heads}


def ranks_with_other_heads(get: Callable[[str], Any]) -> int:
    """Return how many consecutive context parallel ranks exchange heads; groups of as many are a ring."""
    if get("context_parallel_size") == 1:
        return 1
    return {ALL_TO_ALL: get("context_parallel_size"), RING: 1}.get(style_of(get)[0]) or _sharing(get)


def _chosen(get: Callable[[str], Any]) -> tuple[str, str]:
    ranks, sharing = get("context_parallel_size"), _sharing(get)
    heads, keys = _heads(get, "num_attention_heads"), _heads(get, "num_kv_heads")
    kinds = get("attention_config")
    if isinstance(kinds, list | tuple) and all(kind in RECURRENT for kind in kinds):
        return ALL_TO_ALL, "no layer has attention"
    if heads % ranks == 0:  # a ring computes attention once more in the backward pass
        return ALL_TO_ALL, f"{ranks} ranks divide {heads} heads"
    if missing := missing_in_ring(get):
        return ALL_TO_ALL, f"a ring has no {next(iter(missing))}"
    if sharing > 1:
        return HYBRID, f"{sharing} ranks divide {keys} key and value heads, {ranks} cannot divide {heads} heads"
    return RING, f"{ranks} ranks cannot divide {heads} heads"


def _heads(get: Callable[[str], Any], name: str) -> int:
    """Return the heads of a tensor parallel rank."""
    return get(name) // max(1, get("model_parallel_size"))  # type: ignore[no-any-return]


def _sharing(get: Callable[[str], Any]) -> int:
    """Return how many context parallel ranks can divide the key and value heads, without copies."""
    return gcd(_heads(get, "num_kv_heads"), get("context_parallel_size"))


def parts_of_sequence(style: str, context: int, tensor: int) -> dict[str, int]:
    """Return the numbers by whose product the length of each sequence is divided, by their names, without those of 1.

    tensor: ranks that divide the positions further, with sequence parallelism.
    """
    chunks = 2 if context > 1 and style != ALL_TO_ALL else 1  # auto may be a ring, of which each rank has two chunks
    parts = {"2": chunks, "context_parallel_size": context, "model_parallel_size": tensor}
    return {name: number for name, number in parts.items() if number > 1}


def rows_of_rank(ranks: int, sharing: int) -> int:
    """Return the parts of equal length, each of consecutive positions, that a context parallel rank has of a sequence.

    sharing: the ranks that divide two chunks of a ring. Of an odd number, one has the end of one and the beginning of
    the other.
    """
    return 1 if ranks == sharing or sharing % 2 == 0 else 2


def undivided_evaluation(config: Config) -> Iterator[Problem]:
    """Yield the error of micro batches that eval.py cannot divide among these ranks, which have whole samples there."""
    ranks, iters = config.parallel.context_parallel_size, config.training.eval_iters
    steps = config.batch.gradient_accumulation_steps
    if iters * steps % ranks:
        what = f"eval_iters ({iters}) x gradient_accumulation_steps ({steps}) must be a multiple of "
        what += f"context_parallel_size ({ranks}): in eval.py, each of these ranks evaluates other samples"
        hint = f"set eval_iters to a multiple of {ranks // gcd(ranks, steps)}"
        about = ("eval_iters", "context_parallel_size")
        yield Problem(what, config.place("eval_iters"), hint, id="evaluation-not-divided", about=about)


def uses_ring(config: Config) -> bool:
    """Return whether keys and values go around the context parallel ranks."""
    return config.parallel.context_parallel_size > 1 and style_of(config.get)[0] != ALL_TO_ALL
