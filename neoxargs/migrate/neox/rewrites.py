"""Rewrites: for each retired GPT-NeoX name and value, the current entries with the same meaning.

Most rewrites come from the registry (`aliases`, `replaced_by`), which the resolver reads as well. The tables below have
those that map to several names or depend on other values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import cache, partial
from typing import Any, NamedTuple

from neoxargs.registry import ABSENT, REGISTRY, Parameter, normal
from neoxargs.registry.history import SEED, default_at, introduced, removed
from neoxargs.resolve.guess import derived_from_dialect
from neoxargs.resolve.rules.model import GATED_FORM, SPARSITY
from neoxargs.resolve.rules.optimizer import accepts_param, is_adam
from neoxargs.resolve.rules.precision import PRECISION_ALIASES


class _Word:
    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word


ANY_VALUE: Any = _Word("any value")
SAME_VALUE: Any = _Word("the same value")
#: In place of a value: remove the entry.
REMOVED: Any = _Word("removed")


class Overwrite(NamedTuple):
    """A value that replaces the one in the file, where any other value would be a contradiction."""

    value: Any


class Context(NamedTuple):
    """The other values of the files: `get` returns one (ABSENT if unknown), `has` whether the files set it."""

    get: Callable[[str], Any]
    has: Callable[[str], bool]


New = Mapping[str, Any]


class Rewrite(NamedTuple):
    """An old name and value, and the entries that replace them; with an empty `new` the old entry is removed.

    since: the day on which GPT-NeoX changed the name.
    by_hand: what to write instead where there is no counterpart and no other problem says it.
    """

    old: str
    value: Any
    new: New | Callable[[Any, Context], New | None]
    why: str
    since: date | None = None
    by_hand: str = ""

    def counterpart(self, value: Any, context: Context) -> New | None:
        """Return the entries with the same meaning as this value; None if there are none."""
        new = self.new(value, context) if callable(self.new) else self.new
        return None if new is None else {name: value if to is SAME_VALUE else to for name, to in new.items()}

    def fits(self, value: Any) -> bool:
        # `isinstance`, because True == 1 in Python
        return self.value is ANY_VALUE or bool(self.value == value and isinstance(value, type(self.value)))


# -- rewrites that need a function -------------------------------------------------------------------------------------


def _sparsity(value: Any, context: Context) -> New | None:
    kinds = SPARSITY[value]
    if kinds[0] == kinds[1]:
        return {} if kinds[0] == "global" else {"attention_config": [[[kinds[0]], "all"]]}
    layers = context.get("num_layers")
    if layers is ABSENT or layers % 2 == 0:
        return {"attention_config": [[list(kinds), "all"]]}
    return {"attention_config": [[list(kinds), layers // 2], [[kinds[0]], 1]]}


def _llama(_: Any, context: Context) -> New | None:
    activation = context.get("activation") if context.has("activation") else "gelu"
    gated = {"activation": Overwrite(GATED_FORM[activation])} if activation in GATED_FORM else {}
    registered = REGISTRY.parameters["mlp_type"].replaced_by
    assert registered is not None
    # With mlp_type llama, intermediate_size was the width of each of the three matrices; now it is their sum, except
    # with exact_mlp_width. The resolver reports the conflict and says what to write.
    if context.has("intermediate_size"):
        is_exact = context.has("exact_mlp_width") and context.get("exact_mlp_width") is True
        return {**gated, "use_bias_in_mlp": False} if is_exact else None
    return {**gated, **registered["llama"]}


def _format(value: Any, context: Context) -> New:
    registered = REGISTRY.parameters["fp16.type"].replaced_by
    assert registered is not None
    new = dict(registered[value])
    if context.has("precision") and PRECISION_ALIASES.get(context.get("precision")) == new["precision"]:
        new["precision"] = Overwrite(new["precision"])  # another word for the same
    contradicts = context.has("fp16.enabled") and context.get("fp16.enabled") != (value in ("fp16", "float16"))
    return {**new, **({"fp16.enabled": REMOVED} if contradicts else {})}


def _betas(_: Any, context: Context) -> New | None:
    kind = context.get("optimizer.type")
    if kind is not ABSENT and not is_adam(str(kind)):
        return None
    return {"optimizer.params.betas": [context.get("adam_beta1"), context.get("adam_beta2")]}


def _clipping(value: Any, context: Context) -> New:
    return {} if context.has("clip_grad") and context.get("clip_grad") == value else {"gradient_clipping": value}


def _momentum(value: Any, context: Context) -> New | None:
    kind = context.get("optimizer.type")
    if kind is ABSENT:
        return None
    return {"optimizer.params.momentum": value} if accepts_param(str(kind), "momentum") else {}


#: What GPT-NeoX's mixture of experts does now, as values of the parameters it had until May 2025.
CURRENT_MOE_BEHAVIOUR: dict[str, Any] = {
    "moe_type": "megablocks", "moe_token_dropping": False, "moe_train_capacity_factor": 1.0,
    "moe_eval_capacity_factor": 1.0, "moe_min_capacity": 4, "moe_expert_parallel_size": 1,
    "enable_expert_tensor_parallelism": False, "create_moe_param_group": True, "moe_use_residual": False,
    "moe_glu": False, "moe_loss_coeff": 0.1, "use_tutel": False,
}  # fmt: skip
#: Parameters of the capacity of experts. GPT-NeoX no longer has them, deepy does.
CAPACITY = (
    "moe_token_dropping", "moe_train_capacity_factor", "moe_eval_capacity_factor", "moe_min_capacity",
)  # fmt: skip


def _moe(current: Any, value: Any, context: Context) -> New | None:
    """Remove a setting that has no effect without experts, or that GPT-NeoX now always has."""
    return {} if context.get("moe_num_experts") in (ABSENT, 1) or value == current else None


_MOVED = "GPT-NeoX reads this value from DeepSpeed's optimizer section"
_RETRIEVAL = "a parameter for the BERT and retrieval models, which GPT-NeoX no longer has"

SPECIAL_REWRITES = (
    Rewrite("sparsity", ANY_VALUE, _sparsity, "replaced by attention_config"),
    Rewrite("mlp_type", "llama", _llama,
            "mlp_type: llama meant a gated activation, no biases and a width of 8/3 x hidden_size"),
    Rewrite("fp16.fp16", ANY_VALUE, {}, "DeepSpeed reads only fp16.enabled, and now rejects this key"),
    Rewrite("bf16.bf16", ANY_VALUE, {}, "DeepSpeed reads only bf16.enabled, and rejects this key"),
    *(Rewrite("fp16.type", word, _format, "replaced by precision")
      for word in ("bfloat16", "bf16", "fp16", "float16", "fp32")),
    *(Rewrite("precision", word, {"precision": Overwrite(known)}, f"GPT-NeoX accepts only the spelling {known}")
      for word, known in PRECISION_ALIASES.items()),
    *(Rewrite(name, ANY_VALUE, _betas, _MOVED,
              by_hand=f"remove {name}, which only Adam has, or set optimizer.type: Adam")
      for name in ("adam_beta1", "adam_beta2")),
    Rewrite("adam_eps", ANY_VALUE, {"optimizer.params.eps": SAME_VALUE}, _MOVED),
    Rewrite("momentum", ANY_VALUE, _momentum, _MOVED,
            by_hand="set optimizer.type, which decides whether momentum is used"),
    Rewrite("optimizer.params.max_grad_norm", ANY_VALUE, _clipping,
            "DeepSpeed rejects max_grad_norm in optimizer.params; gradient_clipping replaces it"),
    Rewrite("gas", ANY_VALUE, {"gradient_accumulation_steps": SAME_VALUE}, "another name for the same setting"),
    Rewrite("DDP_impl", ANY_VALUE, {}, "no effect: DeepSpeed implements data parallelism"),
    Rewrite("detect_nvlink_pairs", ANY_VALUE, {}, "no effect: stock DeepSpeed has no such flag"),
    Rewrite("save_iters", ANY_VALUE, {}, "no effect: GPT-NeoX computed this value itself"),
    *(Rewrite(name, ANY_VALUE, {}, _RETRIEVAL) for name in (
        "bert_load", "block_data_path", "faiss_use_gpu", "ict_head_size", "ict_load", "indexer_batch_size",
        "indexer_log_interval", "mask_prob", "query_in_block_prob", "report_topk_accuracies", "titles_data_path",
        "use_one_sent_docs",
    )),
    *(Rewrite(name, ANY_VALUE, partial(_moe, current), "removed from GPT-NeoX; this value has no effect",
              by_hand=f"write {name}: {json.dumps(current).strip(chr(34))}, as in GPT-NeoX since {removed(name)}, or "
              "leave the file as it is: deepy reads it without a migration")
      for name, current in CURRENT_MOE_BEHAVIOUR.items()),
)  # fmt: skip

# -- rewrites from the registry ----------------------------------------------------------------------------------------


@cache
def rewrites() -> dict[str, tuple[Rewrite, ...]]:
    """Return all rewrites by old name, which is a parameter or a retired spelling of one."""
    by_name: dict[str, list[Rewrite]] = {}
    for rewrite in (*SPECIAL_REWRITES, *_from_registry()):
        dated = rewrite if rewrite.since else rewrite._replace(since=removed(rewrite.old))
        by_name.setdefault(rewrite.old, []).append(dated)
    return {name: tuple(group) for name, group in by_name.items()}


def _from_registry() -> Iterator[Rewrite]:
    for parameter in REGISTRY.parameters.values():
        for value, new in (parameter.replaced_by or {}).items():
            yield Rewrite(parameter.name, value, new, "retired" if new else "retired; this value has no effect")
    for old, parameter in REGISTRY.renamed.items():
        yield Rewrite(old, ANY_VALUE, {parameter.name: SAME_VALUE}, "renamed")


def rewrite_for(name: str, value: Any) -> Rewrite | None:
    """Return the rewrite for a parameter with this value, or None; SPECIAL_REWRITES come first."""
    return next((rewrite for rewrite in rewrites().get(name, ()) if rewrite.fits(value)), None)


# -- rewrites to the dialect of 2021 -----------------------------------------------------------------------------------


def _kinds(_: Any, context: Context) -> New | None:
    """Return `attention_config` as `sparsity`, if its layers alternate between two kinds."""
    layers = context.get("attention_config")
    if layers is ABSENT or not all(isinstance(kind, str) for kind in layers):
        return None  # not expanded to a list of layers, because num_layers is in another file
    for word, (first, second) in SPARSITY.items():
        if layers == [(first, second)[layer % 2] for layer in range(len(layers))]:
            return {} if word == "none" else {"sparsity": word}
    return None


def _no_precision(value: Any, _: Context) -> New | None:
    sections: dict[str, New] = {"fp16": {"fp16.enabled": True}, "fp32": {}}
    return sections.get(value)


REWRITES_TO_2021 = (
    Rewrite(
        "attention_config", ANY_VALUE, _kinds, "in older versions, sparsity selected the layers with sparse attention"
    ),
    Rewrite("precision", ANY_VALUE, _no_precision, "in older versions, the fp16 section selected the precision"),
)


@cache
def _back() -> dict[tuple[str, Any], New]:
    """Return (parameter, value) -> entry on SEED, where the registry has a retired name for exactly that value."""
    by_result: dict[tuple[str, Any], New] = {}
    for parameter in REGISTRY.parameters.values():
        if introduced(parameter.name) or "." in parameter.name:
            continue
        for value, new in (parameter.replaced_by or {}).items():
            if len(new) == 1:
                by_result.setdefault(next(iter(new.items())), {parameter.name: value})
    return by_result


def rewrite_back(parameter: Parameter, value: Any, context: Context) -> Rewrite | None:
    """Return the rewrite from a name introduced after SEED to its counterpart on SEED; None if there was none."""
    name, since = parameter.name, introduced(parameter.name)
    for rewrite in REWRITES_TO_2021:
        if rewrite.old == name:
            return None if rewrite.counterpart(value, context) is None else rewrite._replace(since=since)
    if isinstance(value, str | bool | int) and (new := _back().get((name, value))):
        return Rewrite(name, value, new, "the older name", since)
    if value == default_at(name, SEED) and name not in derived_from_dialect():
        return Rewrite(name, value, {}, "older versions always behaved this way", since)
    return None


def old_spelling(parameter: Parameter) -> str | None:
    """Return the spelling that the parameter had in February 2021, if it was another one."""
    return next((old for old in parameter.aliases if introduced(old) is None), None)


def is_of_seed(spelling: str) -> bool:
    """Return whether a key existed on SEED or is not one of GPT-NeoX's."""
    return introduced(normal(spelling)) is None
