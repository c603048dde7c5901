"""What GPT-NeoX called differently once: a rewrite for each old name and value, with what says the same today.

Most rewrites are made from the registry (`aliases`, `replaced_by`), which the resolver reads too; below are those that
need more than one name or a look at the other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import cache, partial
from typing import Any, NamedTuple

from neoxargs.registry import ABSENT, REGISTRY, Parameter, normal
from neoxargs.registry.history import SEED, default_at, introduced, removed
from neoxargs.resolve.rules.model import GATED, SPARSITY
from neoxargs.resolve.rules.optimizer import is_adam, takes
from neoxargs.resolve.rules.precision import ALIASES


class _Word:
    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word


ANY: Any = _Word("any value")
SAME: Any = _Word("the same value")
#: In place of a value: the entry goes.
GONE: Any = _Word("gone")


class Instead(NamedTuple):
    """A value that takes the place of a written one."""

    value: Any


class Context(NamedTuple):
    """The values around an old one: what each is in these files (ABSENT if unknown), and whether it is written."""

    get: Callable[[str], Any]
    has: Callable[[str], bool]


New = Mapping[str, Any]


class Rewrite(NamedTuple):
    """An old name with a value, and what to write instead; `new` is empty where it can be left out."""

    old: str
    value: Any
    new: New | Callable[[Any, Context], New | None]
    why: str
    since: date | None = None

    def today(self, value: Any, context: Context) -> New | None:
        """What to write instead of this value; None if nothing says the same."""
        new = self.new(value, context) if callable(self.new) else self.new
        return None if new is None else {name: value if to is SAME else to for name, to in new.items()}

    def fits(self, value: Any) -> bool:
        return self.value is ANY or bool(self.value == value and isinstance(value, type(self.value)))


# -- rewrites of our own -----------------------------------------------------------------------------------------------


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
    gated = {"activation": Instead(GATED[activation])} if activation in GATED else {}
    registered = REGISTRY.parameters["mlp_type"].replaced_by
    assert registered is not None
    if context.has("intermediate_size"):  # of each matrix, today the sum of the three: a check says what to write
        return None
    return {**gated, **registered["llama"]}


def _format(value: Any, context: Context) -> New:
    registered = REGISTRY.parameters["fp16.type"].replaced_by
    assert registered is not None
    said = registered[value]
    enabled = context.has("fp16.enabled") and context.get("fp16.enabled") != (said["precision"] == "fp16")
    return {**said, **({"fp16.enabled": GONE} if enabled else {})}


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
    return {"optimizer.params.momentum": value} if takes(str(kind), "momentum") else {}


#: What GPT-NeoX's experts do today, in the words that they had until May 2025.
EXPERTS_TODAY: dict[str, Any] = {
    "moe_type": "megablocks", "moe_token_dropping": False, "moe_train_capacity_factor": 1.0,
    "moe_eval_capacity_factor": 1.0, "moe_min_capacity": 4, "moe_expert_parallel_size": 1,
    "enable_expert_tensor_parallelism": False, "create_moe_param_group": True, "moe_use_residual": False,
    "moe_glu": False, "moe_loss_coeff": 0.1, "use_tutel": False,
}  # fmt: skip


def _of_experts(today: Any, value: Any, context: Context) -> New | None:
    """Without experts, none of their settings had an effect."""
    return {} if context.get("moe_num_experts") in (ABSENT, 1) or value == today else None


_MOVED = "GPT-NeoX reads it from DeepSpeed's section"
_RETRIEVAL = "it belonged to BERT and retrieval models, which GPT-NeoX dropped"

OWN = (
    Rewrite("sparsity", ANY, _sparsity, "attention_config says the kind of each layer"),
    Rewrite("mlp_type", "llama", _llama, "it gated the activation, had no biases and a width of 8/3 hidden_size"),
    Rewrite("fp16.fp16", ANY, {}, "no effect: DeepSpeed reads fp16.enabled, and refuses this key today"),
    Rewrite("bf16.bf16", ANY, {}, "no effect: DeepSpeed reads bf16.enabled, and refuses this key"),
    *(Rewrite("fp16.type", word, _format, "precision chooses the number format")
      for word in ("bfloat16", "bf16", "fp16", "float16", "fp32")),
    *(Rewrite("precision", word, {"precision": Instead(known)}, f"GPT-NeoX only knows {known}")
      for word, known in ALIASES.items()),
    Rewrite("adam_beta1", ANY, _betas, _MOVED),
    Rewrite("adam_beta2", ANY, _betas, _MOVED),
    Rewrite("adam_eps", ANY, {"optimizer.params.eps": SAME}, _MOVED),
    Rewrite("momentum", ANY, _momentum, _MOVED),
    Rewrite("optimizer.params.max_grad_norm", ANY, _clipping, "DeepSpeed refuses it here; gradient_clipping clips"),
    Rewrite("gas", ANY, {"gradient_accumulation_steps": SAME}, "one name for one setting"),
    Rewrite("DDP_impl", ANY, {}, "no effect: DeepSpeed divides the batch"),
    Rewrite("detect_nvlink_pairs", ANY, {}, "no effect: stock DeepSpeed has no such flag"),
    *(Rewrite(name, ANY, {}, _RETRIEVAL) for name in (
        "bert_load", "block_data_path", "faiss_use_gpu", "ict_head_size", "ict_load", "indexer_batch_size",
        "indexer_log_interval", "mask_prob", "query_in_block_prob", "report_topk_accuracies", "titles_data_path",
        "use_one_sent_docs",
    )),
    *(Rewrite(name, ANY, partial(_of_experts, today), "dropped, and this value says nothing")
      for name, today in EXPERTS_TODAY.items()),
)  # fmt: skip

# -- rewrites of the registry ------------------------------------------------------------------------------------------


@cache
def rewrites() -> dict[str, tuple[Rewrite, ...]]:
    """Every rewrite by its old name (of a parameter, or a retired spelling of one)."""
    by_name: dict[str, list[Rewrite]] = {}
    for rewrite in (*OWN, *_from_registry()):
        dated = rewrite if rewrite.since else rewrite._replace(since=removed(rewrite.old))
        by_name.setdefault(rewrite.old, []).append(dated)
    return {name: tuple(group) for name, group in by_name.items()}


def _from_registry() -> Iterator[Rewrite]:
    for parameter in REGISTRY.parameters.values():
        for value, new in (parameter.replaced_by or {}).items():
            yield Rewrite(parameter.name, value, new, "retired" if new else "retired, and this value says nothing")
    for old, parameter in REGISTRY.renamed.items():
        yield Rewrite(old, ANY, {parameter.name: SAME}, "renamed")


def rewrite_for(name: str, value: Any) -> Rewrite | None:
    """The rewrite of a parameter with this value, our own first."""
    return next((rewrite for rewrite in rewrites().get(name, ()) if rewrite.fits(value)), None)


# -- and back: what 2021 called it -------------------------------------------------------------------------------------


def _kinds(_: Any, context: Context) -> New | None:
    """`attention_config` as `sparsity`, if its layers are of two kinds in turn."""
    layers = context.get("attention_config")
    if layers is ABSENT or not all(isinstance(kind, str) for kind in layers):
        return None  # how many layers there are stands in another file
    for word, (first, second) in SPARSITY.items():
        if layers == [(first, second)[layer % 2] for layer in range(len(layers))]:
            return {} if word == "none" else {"sparsity": word}
    return None


def _no_precision(value: Any, _: Context) -> New | None:
    said: dict[str, New] = {"fp16": {"fp16.enabled": True}, "fp32": {}}
    return said.get(value)


BACK = (
    Rewrite("attention_config", ANY, _kinds, "sparsity chose between dense and sparse layers"),
    Rewrite("precision", ANY, _no_precision, "the section fp16 chose it"),
)


@cache
def _back() -> dict[tuple[str, Any], New]:
    """(parameter, value) -> what said it on SEED, where the registry has a retired name for exactly that."""
    by_result: dict[tuple[str, Any], New] = {}
    for parameter in REGISTRY.parameters.values():
        if introduced(parameter.name) or "." in parameter.name:
            continue
        for value, new in (parameter.replaced_by or {}).items():
            if len(new) == 1:
                by_result.setdefault(next(iter(new.items())), {parameter.name: value})
    return by_result


def rewrite_back(parameter: Parameter, value: Any, context: Context) -> Rewrite | None:
    """The rewrite that leads from a name which came after SEED back to what said it then; None if nothing did."""
    name, since = parameter.name, introduced(parameter.name)
    for rewrite in BACK:
        if rewrite.old == name:
            return None if rewrite.today(value, context) is None else rewrite._replace(since=since)
    if isinstance(value, str | bool | int) and (new := _back().get((name, value))):
        return Rewrite(name, value, new, "its name in February 2021", since)
    if value == default_at(name, SEED):
        return Rewrite(name, value, {}, "in February 2021 this went without saying", since)
    return None


def old_spelling(parameter: Parameter) -> str | None:
    """Another spelling of the parameter that February 2021 had."""
    return next((old for old in parameter.aliases if introduced(old) is None), None)


def is_of_seed(spelling: str) -> bool:
    """Is a key as old as SEED (or not GPT-NeoX's)?"""
    return introduced(normal(spelling)) is None
