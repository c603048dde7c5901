"""Which kernel computes the attention of a layer, why, and what it stores of all pairs of tokens.

`sdpa`: torch's scaled_dot_product_attention, whose kernels take masks as tensors. `flex`: flex_attention, which
computes them from positions. `varlen`: torch's varlen_attn, for which documents are separate sequences. `unfused`:
products and softmax one after the other, with all scores stored. Trainer, check and plan read these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal

from neoxargs.base.problems import Problem
from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.attention import CAUSAL, FLEX_WIDTHS, ScoreRule, head_dim, layer_window, score_rule
from neoxargs.facts.batch import sequences_per_micro_batch
from neoxargs.facts.context import style_of, uses_ring
from neoxargs.facts.data import masks_documents
from neoxargs.facts.layer_kinds import attention_layers, layer_kind
from neoxargs.facts.layout import stages

#: Position embeddings that are added to the attention scores.
BIASED = ("alibi", "rpe")
#: Head dimensions of torch's flash kernel.
FLASH_WIDTHS = range(8, 257, 8)
#: The first torch that has `varlen_attn` with windows and grouped queries, and flex_attention for every FLEX_WIDTHS.
TORCH_WITH_VARLEN = TORCH_WITH_ALL_WIDTHS = (2, 13)
#: Why flex_attention and varlen_attn cannot compute a layer.
NO_DROPOUT, NO_RPE = "it has no dropout", "it has no learned position bias (pos_emb: rpe)"
#: Why separate steps cannot compute a layer on GPUs.
FLEX_IN_A_RING = "on GPUs, flex computes a ring of context parallel ranks"
Kernel = Literal["sdpa", "flex", "varlen", "unfused"]


class Place(Record):
    """Where attention is computed, as far as kernels depend on it."""

    device: str = "cuda"
    torch: tuple[int, ...] = TORCH_WITH_VARLEN
    ampere: bool = True
    """Whether the GPU is an A100 or later."""
    compiles: bool = True
    """Whether Triton and a C compiler are there."""


class Asked(Record):
    """What a layer asks of the kernel that computes its attention."""

    backend: Kernel | Literal["auto"]
    """The value of `attention_backend`."""
    rule: ScoreRule
    kind: str
    """As of `attention_config`."""
    window: int
    """As of `layer_window`; 0 if it is as wide as the sequence."""
    documents: bool
    """Whether tokens attend to their own document only."""
    bias: str
    """The position embedding that is added to the scores; empty without."""
    width: int
    """Of a head."""
    half: bool
    """Whether activations are in 16 bits."""
    dropout: float
    scaled: bool = False
    """Whether `apply_query_key_layer_scaling` is set."""
    whole: bool = True
    """Whether samples have the length of training; there is no kernel for every length of a prompt."""

    @property
    def sparse(self) -> bool:
        return self.kind not in CAUSAL

    @property
    def masked(self) -> bool:
        """Whether the layer has another mask than the causal one, or a bias on its scores."""
        return bool(self.sparse or self.window or self.documents or self.bias)

    @property
    def words(self) -> list[str]:
        """What it asks besides causal attention, in words."""
        named = {
            f"{self.kind} blocks": self.sparse,
            f"windows of {self.window:,} tokens": self.window,
            "documents": self.documents,
            {"alibi": "ALiBi", "rpe": "rpe"}.get(self.bias, ""): self.bias,
            "bounded scores": self.rule.softcap,
        }
        return [name for name, is_there in named.items() if is_there]


def asked_of_kernel(config: Config, layer: int) -> Asked:
    """Return what a layer, counted from 0, asks in training."""
    window, pos_emb = layer_window(config.attention, layer), config.embedding.pos_emb
    return Asked(
        config.attention.attention_backend,
        score_rule(config, layer),
        layer_kind(config, layer),
        window if window < config.shape.seq_length - 1 else 0,
        masks_documents(config.data),
        pos_emb if pos_emb in BIASED else "",
        head_dim(config.shape),
        config.get("precision") != "fp32",
        config.regularization.attention_dropout,
        config.attention.apply_query_key_layer_scaling,
    )


def obstacle(kernel: str, asked: Asked, place: Place) -> str:
    """Return why a kernel cannot compute what a layer asks, or only by storing all scores; empty if it can."""
    torch, width = ".".join(map(str, place.torch)), asked.width
    reasons: dict[str, object] = {}
    if kernel in ("flex", "varlen"):
        reasons = {
            "it needs a GPU": place.device != "cuda",
            "it needs an A100 or a later GPU": not place.ampere,
            NO_DROPOUT: asked.dropout,
            NO_RPE: asked.bias == "rpe",
            "it is not for prompts": not asked.whole,
        }
    if kernel == "flex":
        reasons |= {
            "Triton or a C compiler is missing": not place.compiles,
            f"it needs heads of a multiple of 16 dimensions, up to 256, not of {width}": width not in FLEX_WIDTHS,
            f"with torch {torch}, it needs heads of a power of two of dimensions, not of {width}": (
                width.bit_count() > 1 and place.torch < TORCH_WITH_ALL_WIDTHS
            ),
        }
    elif kernel == "varlen":
        reasons |= {
            f"torch {torch} does not have it; 2.13 has": place.torch < TORCH_WITH_VARLEN,
            "it computes in fp16 and bf16 only": not asked.half,
            f"it needs heads of a multiple of 8 dimensions, up to 256, not of {width}": width not in FLASH_WIDTHS,
            "it has no ALiBi": asked.bias == "alibi",
            "it cannot bound scores": asked.rule.softcap,
            f"it has no {asked.kind} blocks": asked.sparse,
        }
    elif kernel == "sdpa":
        reasons = {"it cannot bound scores": asked.rule.softcap}
    elif kernel == "unfused":
        reasons = {"flash layers do not store the scores": asked.kind == "flash"}
    return next((reason for reason, holds in reasons.items() if holds), "")


class Choice(Record):
    """The kernel that computes the attention of a layer."""

    kernel: Kernel
    asked: Asked
    refused: str = ""
    """Why the kernel that the configuration names cannot."""
    instead_of: str = ""
    """Why flex_attention cannot, which would store neither scores nor masks."""

    @property
    def decided_by(self) -> str:
        """The parameter because of which it is not a kernel that stores nothing; empty if no other value would do."""
        asked = self.asked
        if asked.backend == "auto" and asked.rule.asks_for_steps(asked.half, asked.masked):
            return "apply_query_key_layer_scaling" if asked.scaled else "attention_softmax_in_fp32"
        reason = self.refused or self.instead_of
        return {NO_DROPOUT: "attention_dropout", NO_RPE: "pos_emb"}.get(reason, "")

    @property
    def why(self) -> str:
        """What decides, in words: the configuration, or what the layer asks; why a run with this is refused."""
        if self.refused:
            return f"refused: {self.refused}"
        asked = self.asked
        what = " and ".join(asked.words) or "causal"
        if asked.backend != "auto":
            return f"{what}; attention_backend"
        if self.kernel == "unfused" and self.decided_by and not self.instead_of:
            return f"{what}; {self.decided_by}"
        return f"{what}; no flex: {self.instead_of}" if self.instead_of else what


def choose(asked: Asked, place: Place) -> Choice:
    """Return the kernel of a layer: the one that the configuration names, else one that stores the least."""
    if asked.backend != "auto":
        return Choice(asked.backend, asked, refused=obstacle(asked.backend, asked, place))
    rule, why_not = asked.rule, ""
    # Block-sparse layers are for skipping blocks, which separate steps cannot.
    if asked.words and (asked.sparse or not rule.asks_for_steps(asked.half, masked=True)):
        why_not = obstacle("flex", asked, place)
        if not why_not:
            return Choice("flex", asked)
        # It stores nothing either, but the host waits for the number of documents.
        if not obstacle("varlen", asked, place):
            return Choice("varlen", asked, instead_of=why_not)
    in_steps = not rule.fused or rule.asks_for_steps(asked.half, asked.masked)
    return Choice("unfused" if in_steps else "sdpa", asked, instead_of=why_not)


@lru_cache(maxsize=8)  # a plan needs them for every stage
def choices(config: Config, place: Place) -> tuple[Choice, ...]:
    """Return the kernel of each layer that has attention."""
    attention, found, chosen = config.attention, dict[tuple[object, ...], Choice](), []
    for layer in attention_layers(config):
        # Layers of one kind ask the same, unless scores are divided by the number of the layer.
        number = layer if attention.apply_query_key_layer_scaling else 0
        key = layer_kind(config, layer), layer_window(attention, layer), number
        if key not in found:
            asked = asked_of_kernel(config, layer)
            # In a ring: no other kernel returns what chunks are merged by.
            found[key] = _choice_in_ring(asked, place) if uses_ring(config) else choose(asked, place)
        chosen.append(found[key])
    return tuple(chosen)


def _choice_in_ring(asked: Asked, place: Place) -> Choice:
    """Return flex_attention, or on CPUs separate steps, which keep no scores; train/ops/chunks.py has both."""
    why_not = obstacle("flex", asked, place)
    if place.device == "cuda" or asked.backend == "flex":
        return Choice("flex", asked, refused=why_not or FLEX_IN_A_RING * (asked.backend == "unfused"))
    return Choice("unfused", asked, instead_of=why_not)


def unusable(config: Config, place: Place) -> Iterator[Problem]:
    """Yield an error if the kernel that the configuration names cannot compute a layer there."""
    refused = [choice for choice in choices(config, place) if choice.refused]
    if not refused:
        return
    first, name = refused[0], "attention_backend"
    value: str = first.asked.backend
    advice, source = f"set {name}: auto, which chooses a kernel that can", config.place(name)
    if uses_ring(config) and place.device == "cuda" and first.refused != FLEX_IN_A_RING:
        name, value = "context_parallel_style", style_of(config.get)[0]
        source = config.place(name) or config.place("context_parallel_size")  # auto has chosen the ring
        advice = "set context_parallel_style: all_to_all"
        heads = config.shape.num_attention_heads // config.parallel.model_parallel_size
        if heads % config.parallel.context_parallel_size:
            advice += f" and context_parallel_size to a divisor of {heads}, the heads of a tensor parallel rank"
    asked = f" ({' and '.join(first.asked.words)})" if first.asked.words else ""
    layers = f"{len(refused)} layer{'s' * (len(refused) > 1)}"
    what = f"{name} ({value}) cannot compute {layers}{asked}: {first.refused}"
    where = "" if place.device == "cuda" else "; if the run is for GPUs, check it with deepy check --gpus N"
    dropout = "set attention_dropout: 0, or " if first.refused == NO_DROPOUT else ""
    about = tuple(dict.fromkeys((name, first.decided_by or name)))
    yield Problem(what, source, f"{dropout}{advice}{where}", id="attention-backend-unusable", about=about)


def describe_kernels(chosen: Iterable[Choice]) -> str:
    """Return which kernels compute the attention of how many layers, and why; empty without layers."""
    counts: dict[tuple[str, str], int] = {}
    for each in chosen:
        counts[each.kernel, each.why] = counts.get((each.kernel, each.why), 0) + 1
    return ", ".join(f"{kernel} in {count} layer{'s' * (count > 1)} ({why})" for (kernel, why), count in counts.items())


class Stored(Record):
    """What layers store of all pairs of tokens for the backward pass, on one rank."""

    choice: Choice
    tensors: str
    layer: int
    """Bytes per layer and micro batch."""
    layers: int
    """How many layers hold them at once."""

    @property
    def total(self) -> int:
        return self.layer * self.layers


def stored_pairs(config: Config, place: Place) -> list[Stored]:
    """Return what grows with the square of the sequence on a GPU: scores, or masks in the model's precision."""
    groups: dict[tuple[str, str], list[Choice]] = {}
    for choice in choices(config, place):
        groups.setdefault((choice.kernel, choice.why), []).append(choice)
    recomputed, pipe = config.recompute.checkpoint_activations is True, stages(config.parallel.pipe_parallel_size)
    square, batch = config.shape.seq_length**2, sequences_per_micro_batch(config)
    divided = config.parallel.model_parallel_size * config.parallel.context_parallel_size
    heads = config.shape.num_attention_heads // divided
    found = []
    for (kernel, _), [choice, *others] in groups.items():
        asked, layers = choice.asked, 1 if recomputed else -(-(1 + len(others)) // pipe)
        if kernel == "unfused":
            found.append(Stored(choice, "scores", batch * heads * square * score_bytes(asked), layers))
        elif kernel == "sdpa" and asked.masked:
            masks = (batch if asked.documents else 1) * (heads if asked.bias else 1)
            # All layers share a bias; each converts a bool mask to one.
            held = 1 if asked.bias else layers
            found.append(Stored(choice, "masks", masks * square * (2 if asked.half else 4), held))
    return found


def score_bytes(asked: Asked) -> int:
    """Return the bytes per score that separate steps store: softmax, bound, probabilities in 16 bits, dropout mask."""
    return 4 + (4 if asked.rule.softcap else 0) + (2 if asked.half else 0) + (1 if asked.dropout else 0)
