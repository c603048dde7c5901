"""What GPT-NeoX called differently once: one row for each old name and value, with what says the same today.

Most rows are made from the registry (`aliases`, `replaced_by`), which the resolver reads too; below are those that
need more than one name or a look at the other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import cache
from typing import Any, NamedTuple

from neoxargs.registry import ABSENT, REGISTRY, Parameter, normal
from neoxargs.registry.history import SEED, default_at, introduced, removed
from neoxargs.resolve.rules.model import GATED, SPARSITY
from neoxargs.resolve.rules.optimizer import is_adam
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


class Written(NamedTuple):
    """The values around an old one: what each is in these files (ABSENT if unknown), and whether it is written."""

    get: Callable[[str], Any]
    has: Callable[[str], bool]


New = Mapping[str, Any]


class Row(NamedTuple):
    """An old name with a value, and what to write instead; `new` is empty where it can be left out."""

    old: str
    value: Any
    new: New | Callable[[Any, Written], New | None]
    why: str
    since: date | None = None

    def today(self, value: Any, written: Written) -> New | None:
        """What to write instead of this value; None if nothing says the same."""
        new = self.new(value, written) if callable(self.new) else self.new
        return None if new is None else {name: value if to is SAME else to for name, to in new.items()}

    def fits(self, value: Any) -> bool:
        return self.value is ANY or bool(self.value == value and isinstance(value, type(self.value)))


# -- rows of our own -------------------------------------------------------------------------------------------------


def _sparsity(value: Any, written: Written) -> New | None:
    kinds = SPARSITY[value]
    if kinds[0] == kinds[1]:
        return {} if kinds[0] == "global" else {"attention_config": [[[kinds[0]], "all"]]}
    layers = written.get("num_layers")
    if layers is ABSENT or layers % 2 == 0:
        return {"attention_config": [[list(kinds), "all"]]}
    return {"attention_config": [[list(kinds), layers // 2], [[kinds[0]], 1]]}


def _llama(_: Any, written: Written) -> New | None:
    activation = written.get("activation") if written.has("activation") else "gelu"
    gated = {"activation": Instead(GATED[activation])} if activation in GATED else {}
    registered = REGISTRY.parameters["mlp_type"].replaced_by
    assert registered is not None
    if written.has("intermediate_size"):  # of each matrix, today the sum of the three: a check says what to write
        return None
    return {**gated, **registered["llama"]}


def _format(value: Any, written: Written) -> New:
    rows = REGISTRY.parameters["fp16.type"].replaced_by
    assert rows is not None
    said = rows[value]
    enabled = written.has("fp16.enabled") and written.get("fp16.enabled") != (said["precision"] == "fp16")
    return {**said, **({"fp16.enabled": GONE} if enabled else {})}


def _betas(_: Any, written: Written) -> New | None:
    kind = written.get("optimizer.type")
    if kind is not ABSENT and not is_adam(str(kind)):
        return None
    return {"optimizer.params.betas": [written.get("adam_beta1"), written.get("adam_beta2")]}


def _clipping(value: Any, written: Written) -> New:
    return {} if written.has("clip_grad") and written.get("clip_grad") == value else {"gradient_clipping": value}


_MOVED = "GPT-NeoX reads it from DeepSpeed's section"
_RETRIEVAL = "it belonged to BERT and retrieval models, which GPT-NeoX dropped"

OWN = (
    Row("sparsity", ANY, _sparsity, "attention_config says the kind of each layer"),
    Row("mlp_type", "llama", _llama, "it gated the activation, had no biases and a width of 8/3 hidden_size"),
    Row("fp16.fp16", ANY, {}, "no effect: DeepSpeed reads fp16.enabled, and refuses this key today"),
    Row("bf16.bf16", ANY, {}, "no effect: DeepSpeed reads bf16.enabled, and refuses this key"),
    *(Row("fp16.type", word, _format, "precision chooses the number format")
      for word in ("bfloat16", "bf16", "fp16", "float16", "fp32")),
    *(Row("precision", word, {"precision": Instead(known)}, f"GPT-NeoX only knows {known}")
      for word, known in ALIASES.items()),
    Row("adam_beta1", ANY, _betas, _MOVED),
    Row("adam_beta2", ANY, _betas, _MOVED),
    Row("adam_eps", ANY, {"optimizer.params.eps": SAME}, _MOVED),
    Row("optimizer.params.max_grad_norm", ANY, _clipping, "DeepSpeed refuses it here; gradient_clipping clips"),
    Row("gas", ANY, {"gradient_accumulation_steps": SAME}, "one name for one setting"),
    Row("DDP_impl", ANY, {}, "no effect: DeepSpeed divides the batch"),
    Row("detect_nvlink_pairs", ANY, {}, "no effect: stock DeepSpeed has no such flag"),
    *(Row(name, ANY, {}, _RETRIEVAL) for name in (
        "bert_load", "block_data_path", "faiss_use_gpu", "ict_head_size", "ict_load", "indexer_batch_size",
        "indexer_log_interval", "mask_prob", "query_in_block_prob", "report_topk_accuracies", "titles_data_path",
        "use_one_sent_docs",
    )),
)  # fmt: skip

#: Names that GPT-NeoX had for a while and the registry has not: what each was when nobody wrote it.
FORGOTTEN: dict[str, Any] = {
    "no_adamw": False,
    "momentum": 0.0,
    "out_seq_length": 1024,
    "create_moe_param_group": True,
    "enable_expert_tensor_parallelism": False,
    "moe_eval_capacity_factor": 1.0,
    "moe_expert_parallel_size": 1,
    "moe_glu": False,
    "moe_loss_coeff": 0.1,
    "moe_min_capacity": 4,
    "moe_token_dropping": False,
    "moe_train_capacity_factor": 1.0,
    "moe_type": "megablocks",
    "moe_use_residual": False,
    "use_tutel": False,
}
#: Without experts, none of their settings had an effect.
_OF_EXPERTS = ("moe_", "create_moe", "enable_expert", "use_tutel")


def forgotten(name: str, value: Any, written: Written) -> bool:
    """May a name that the registry does not have be left out?"""
    without_experts = name.startswith(_OF_EXPERTS) and written.get("moe_num_experts") in (ABSENT, 1)
    return without_experts or value == FORGOTTEN[name]


# -- rows of the registry --------------------------------------------------------------------------------------------


@cache
def rows() -> dict[str, tuple[Row, ...]]:
    """Every row by its old name (of a parameter, or a retired spelling of one)."""
    found: dict[str, list[Row]] = {}
    for row in (*OWN, *_from_registry()):
        dated = row if row.since else row._replace(since=removed(row.old))
        found.setdefault(row.old, []).append(dated)
    return {name: tuple(group) for name, group in found.items()}


def _from_registry() -> Iterator[Row]:
    for parameter in REGISTRY.parameters.values():
        for value, new in (parameter.replaced_by or {}).items():
            yield Row(parameter.name, value, new, "retired" if new else "retired, and this value says nothing")
    for old, parameter in REGISTRY.renamed.items():
        yield Row(old, ANY, {parameter.name: SAME}, "renamed")


def row_for(name: str, value: Any) -> Row | None:
    """The row of a parameter with this value, our own first."""
    return next((row for row in rows().get(name, ()) if row.fits(value)), None)


# -- and back: what 2021 called it -----------------------------------------------------------------------------------


def _kinds(_: Any, written: Written) -> New | None:
    """`attention_config` as `sparsity`, if its layers are of two kinds in turn."""
    layers = written.get("attention_config")
    if layers is ABSENT or not all(isinstance(kind, str) for kind in layers):
        return None  # how many layers there are stands in another file
    for word, (first, second) in SPARSITY.items():
        if layers == [(first, second)[layer % 2] for layer in range(len(layers))]:
            return {} if word == "none" else {"sparsity": word}
    return None


def _no_precision(value: Any, _: Written) -> New | None:
    said: dict[str, New] = {"fp16": {"fp16.enabled": True}, "fp32": {}}
    return said.get(value)


BACK = (
    Row("attention_config", ANY, _kinds, "sparsity chose between dense and sparse layers"),
    Row("precision", ANY, _no_precision, "the section fp16 chose it"),
)


@cache
def _back() -> dict[tuple[str, Any], New]:
    """(parameter, value) -> what said it on SEED, where the registry has a retired name for exactly that."""
    found: dict[tuple[str, Any], New] = {}
    for parameter in REGISTRY.parameters.values():
        if introduced(parameter.name) or "." in parameter.name:
            continue
        for value, new in (parameter.replaced_by or {}).items():
            if len(new) == 1:
                found.setdefault(next(iter(new.items())), {parameter.name: value})
    return found


def earlier(parameter: Parameter, value: Any, written: Written) -> Row | None:
    """The row that leads from a name which came after SEED back to what said it then; None if nothing did."""
    name, since = parameter.name, introduced(parameter.name)
    for row in BACK:
        if row.old == name:
            return None if row.today(value, written) is None else row._replace(since=since)
    if isinstance(value, str | bool | int) and (new := _back().get((name, value))):
        return Row(name, value, new, "its name in February 2021", since)
    if value == default_at(name, SEED):
        return Row(name, value, {}, "in February 2021 this went without saying", since)
    return None


def old_spelling(parameter: Parameter) -> str | None:
    """Another spelling of the parameter that February 2021 had."""
    return next((old for old in parameter.aliases if introduced(old) is None), None)


def is_of_seed(spelling: str) -> bool:
    """Is a key as old as SEED (or not GPT-NeoX's)?"""
    return introduced(normal(spelling)) is None
