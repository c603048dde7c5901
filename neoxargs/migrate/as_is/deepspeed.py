"""DeepSpeed's JSON: what DeepSpeed makes of it, and of each `"auto"` without Hugging Face's Trainer or Accelerate."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problem, Problems, is_one_edit, listed
from neoxargs.base.record import replace
from neoxargs.facts import optimizers
from neoxargs.facts.description import counted
from neoxargs.migrate.as_is.keys import Fate, Program, conflict, entries, number, other_version, unknown_key
from neoxargs.migrate.deepspeed.convert import OTHER_NAMES, is_deepspeed
from neoxargs.migrate.deepspeed.defaults import REST
from neoxargs.migrate.deepspeed.lenient_json import Block, blocks
from neoxargs.migrate.deepspeed.placeholders import without_placeholders
from neoxargs.migrate.deepspeed.versions import both_precisions, is_true
from neoxargs.registry import REGISTRY, receivers
from neoxargs.registry.data_file import strict_keys
from neoxargs.resolve.derive import before_ranks
from neoxargs.resolve.keys.corrections import in_its_quotes, value_edits
from neoxargs.resolve.keys.letters import is_comment
from neoxargs.resolve.merge import draft_of
from neoxargs.resolve.values.auto import AUTO, AUTO_VALUES
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.values.describe_type import UNIONS, describe_type
from neoxargs.resolve.yaml.compose import compose
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar, format_node, node_of

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
#: Keys by which a file that cannot be read is recognised.
_MARKS = re.compile(r'"(zero_optimization|train_micro_batch_size_per_gpu|train_batch_size)"\s*:')
#: The rules of deepy that hold for DeepSpeed itself. The errors are those that its configuration classes raise.
RULES: dict[str, Literal["error", "warning"]] = {
    "head-pruning-needs-num-heads": "error",
    "curriculum-sampling-needs-curriculum-metrics": "error",
    "dynamic-batching-needs-max-tokens": "error",
    "partial-optimizer-offload-needs-zero-3": "error",
    "sixteen-bit-master-weights-need-zero": "error",
    "zero-stage-list-needs-autotuning": "error",
    "curriculum-learning-needs-schedule-type": "warning",
    "offload-param-needs-zero-3": "warning",
    "offload-optimizer-needs-zero": "warning",
    "nvme-offload-needs-nvme-path": "warning",
    "divided-gradients-need-all-reduce": "warning",
}
#: What the Trainer and Accelerate put in place of `"auto"`.
FILLED_IN = {
    *AUTO_VALUES, "zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_param.nvme_path",
}  # fmt: skip
#: Keys of which DeepSpeed takes any text, although it has choices or lists in mind.
ANY_TEXT = {"comet.mode", *(f"zero_optimization.leaf_module.{name}" for name in ("classes", "name_suffixes", "names"))}
#: Key -> the names that DeepSpeed knows; others can be those of torch.
NAMED = {
    "optimizer.type": tuple(optimizers.OPTIMIZERS),
    "scheduler.type": ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"),
}
#: Schedule of DeepSpeed -> the arguments of its constructor that have no default.
REQUIRED = {
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"), "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
}  # fmt: skip
#: Optimizers that DeepSpeed builds itself; their constructors refuse other arguments than those of the registry.
OPTIMIZERS = ("adam", "adamw", "lamb", "lion", "adagrad", "onebitadam", "onebitlamb", "zerooneadam", "muon")


def read(text: Text) -> Block | None:
    """Return a DeepSpeed JSON without the values that a script fills in; None for another file. Raises Problems."""
    if text.name.endswith((".yml", ".yaml")) or not text.text.lstrip().startswith("{"):
        return None
    try:
        found = blocks(text)
    except Problems:
        if _MARKS.search(text.text) and not re.search(r'"(num[-_]layers|hidden[-_]size)"', text.text):
            raise
        return None
    tree = found[0].tree if len(found) == 1 else Mapping([])
    known = [entry.key for entry in tree.entries if _is_known(entry.key)]
    # With a single key, only a file that has no other: it could be one of several files of a run.
    is_one = len(known) > (1 if len(tree.entries) > 1 else 0) and is_deepspeed(tree)
    # GPT-NeoX and deepy have DeepSpeed's keys beside others of their own.
    is_one = is_one and not any(e.key in ("dialect", "include", "script") or "-" in e.key for e in tree.entries)
    return without_placeholders(found[0]) if is_one else None


def named(name: str, text: Text) -> dict[str, Entry] | None:
    """Return the entries of the DeepSpeed JSON that another file names, relative to it or to this folder."""
    for path in (os.path.join(os.path.dirname(text.name), name), name):
        try:
            with open(path, encoding="utf-8") as file:
                block = read(Text(path, file.read()))
        except (OSError, ValueError, Problems):
            continue
        return entries(block.tree) if block else None
    return None


def judge(block: Block, text: Text, program: Program, gpus: int | None) -> Iterator[Problem]:
    """Yield what is wrong with a DeepSpeed JSON."""
    tree, found = block.tree, entries(block.tree)
    if not block.to_do:
        yield from _syntax(text, found)
    yield from _duplicates(tree)
    yield from _keys(tree, "", program, found)
    if not any(name in line for line in block.to_do for name in BATCH):
        yield from _batch(found, gpus, tree)
    yield from both_precisions(found)
    yield from _schedule(found, block.removed)
    yield from _rules(tree)


def remarks(block: Block) -> dict[str, str]:
    """Return lines about a file."""
    autos = [name for name, entry in entries(block.tree).items() if _is_auto(entry.value) and name in FILLED_IN]
    lines = {
        "auto": f"{counted(len(autos), 'value')} that Hugging Face's Trainer or Accelerate fills in, but not DeepSpeed",
        "template": f"{counted(len(block.to_do), 'value')} that a script fills in, which are not judged",
    }
    return {label: line for label, line in lines.items() if not line.startswith("0")}


def _is_auto(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value == AUTO


# -- syntax -----------------------------------------------------------------------------------------------------------


def _syntax(text: Text, found: dict[str, Entry]) -> Iterator[Problem]:
    """Yield a problem if the file is not JSON: DeepSpeed reads Hjson, but the Trainer and Accelerate do not."""
    try:
        json.loads(text.text)
    except json.JSONDecodeError as error:
        place = Place(text.name, error.lineno, error.colno, text.text.split("\n")[error.lineno - 1])
        for_trainer = any(_is_auto(entry.value) for entry in found.values())
        what = "this is not JSON: DeepSpeed may read it as Hjson, but Hugging Face's Trainer and Accelerate refuse it"
        hint = "remove comments and trailing commas, and put keys and texts in double quotes"
        yield Problem(what, place, hint, severity="error" if for_trainer else "warning", id="other-program-not-json")


def _duplicates(tree: Mapping, path: str = "") -> Iterator[Problem]:
    first: dict[str, Entry] = {}
    for entry in tree.entries:
        if entry.key in first:
            what = f"{path}{entry.key} is written twice, which DeepSpeed refuses"
            also = (first[entry.key].place,)
            yield Problem(what, entry.place, "remove one of the two", also, id="duplicate-key")
        first.setdefault(entry.key, entry)
        if isinstance(entry.value, Mapping):
            yield from _duplicates(entry.value, f"{path}{entry.key}.")


# -- keys and values --------------------------------------------------------------------------------------------------


def _keys(tree: Mapping, section: str, program: Program, found: dict[str, Entry]) -> Iterator[Problem]:
    beside = [entry.key for entry in tree.entries]
    for entry in tree.entries:
        name = f"{section}.{entry.key}" if section else entry.key
        refused = receivers.refused().get(name, "")
        does = "refuses" if refused or section in strict_keys() else "ignores"
        until = refused or receivers.removed_in(name)
        if until and not program.is_before(until):
            yield from other_version(name, entry.place, program, "", until, does=does)
            continue
        if not _is_known(name):
            is_of_torch = section == "scheduler.params" and _kind(found) not in (None, *NAMED["scheduler.type"])
            if not is_of_torch and not (is_comment(entry.key) and section not in strict_keys()):
                yield _unknown(entry, section, beside, program, found)
            continue
        yield from other_version(name, entry.place, program, receivers.added_in(name), "", does=does)
        parameter = REGISTRY.find(OTHER_NAMES[0] if name in OTHER_NAMES else name)  # all of these are counts
        if parameter is None and isinstance(entry.value, Mapping):
            yield from _keys(entry.value, name, program, found)
        elif name in NAMED:
            yield from _of_name(name, entry.value)
        elif problem := _of_value(name, entry, parameter.type if parameter else None, found):
            yield problem


@cache
def _names() -> dict[str, set[str]]:
    """Return section -> the keys that some version of DeepSpeed has."""
    of_deepspeed = [p.name for p in REGISTRY.parameters.values() if "DSC" in p.origins]
    of_deepspeed += OTHER_NAMES
    of_deepspeed += [old for old, p in REGISTRY.renamed.items() if "DSC" in p.origins]
    of_deepspeed += [name for names in receivers.table()["removed"].values() for name in names]
    of_deepspeed = [name for name in of_deepspeed if name.rpartition(".")[0] not in strict_keys()]
    of_deepspeed += [f"{section}.{key}" for section, keys in strict_keys().items() for key in keys]
    of_deepspeed += [name for names in receivers.table()["added"].values() for name in names]
    found: dict[str, set[str]] = {}
    for name in of_deepspeed:
        parts = name.split(".")
        for end in range(len(parts)):
            found.setdefault(".".join(parts[:end]), set()).add(parts[end])
    found["bfloat16"] = found["bf16"]
    found[""] -= {"deepspeed", "deepspeed_extra_args", "loss_scale"}
    return found | {"": found[""] | {"bfloat16"}}


def _is_known(name: str) -> bool:
    section, _, key = name.rpartition(".")
    return key in _names().get(section, ()) or bool(receivers.added_in(section))


def _unknown(entry: Entry, section: str, beside: list[str], program: Program, found: dict[str, Entry]) -> Problem:
    kind = found.get("optimizer.type")
    is_own = kind is not None and str(kind.value.to_python()).lower() in OPTIMIZERS
    fate: Fate = "refuses" if section in strict_keys() or (section == "optimizer.params" and is_own) else "ignores"
    if section.endswith(".params"):
        fate = fate if fate == "refuses" else "may refuse"
    problem = unknown_key(entry, program, _names().get(section, set()), beside, fate, section)
    homes = [other for other, keys in _names().items() if entry.key in keys and other != section]
    if len(homes) == 1 and not problem.edits:
        where = f"in the section {homes[0]}" if homes[0] else "at the top level"
        return replace(problem, hint=f"write it {where}")
    return problem


def _of_value(name: str, entry: Entry, wanted: Any, found: dict[str, Entry]) -> Problem | None:
    """Return the problem of a value that DeepSpeed refuses, or that can hardly be meant."""
    node, section = entry.value, name.rpartition(".")[0]
    is_strict = name in strict_keys() or section in strict_keys()
    if _is_auto(node):
        return _of_auto(name, node, wanted, is_strict)
    is_tuned = is_true(found.get("autotuning.enabled")) and isinstance(node.to_python(), list)
    if is_tuned or (name == "zero_optimization" and isinstance(node.to_python(), bool)):
        return None
    if wanted is None:
        what, hint = f"{name} ({format_node(node)}) must be a section", "write { ... }"
        return _value(what, node, hint, name in strict_keys())
    value = node.to_python()
    refused = is_strict and not _accepts(wanted, value) and not (name in ANY_TEXT and isinstance(value, str))
    refused = refused or (name in BATCH and value is not None and not (number(node) or 0) > 0)
    try:
        value = coerce(node, wanted)
    except Mismatch as mismatch:
        problem = _value(mismatch.sentence(name), node, mismatch.advice, refused)
        return replace(problem, edits=tuple(_of_json(edit, wanted) for edit in value_edits(entry, mismatch)))
    if not refused:
        return None
    what = f"{name} ({format_node(node)}) must be {describe_type(wanted)}"
    problem = _value(what, node, f"write {json.dumps(value)}", True)
    return replace(problem, edits=(Edit(node.place, "replace", json.dumps(value)),))


def _of_json(edit: Edit, wanted: Any) -> Edit:
    """Return an edit of a value that writes it as JSON, a number or `true` without quotes."""
    node, _ = compose(Text("", edit.text))
    return replace(edit, text=json.dumps(coerce(node, wanted)))


def refused_value(name: str, entry: Entry) -> Problem | None:
    """Return the problem of a value that DeepSpeed refuses for a key, which another file calls otherwise."""
    parameter = REGISTRY.find(name)
    if parameter is None or _accepts(parameter.type, entry.value.to_python()):
        return None
    what = f"{entry.key} ({format_node(entry.value)}) must be {describe_type(parameter.type)}, as {name} of its JSON"
    try:
        coerce(entry.value, parameter.type)
    except Mismatch as mismatch:
        problem = _value(what, entry.value, mismatch.advice, True)
        return replace(problem, edits=value_edits(entry, mismatch))
    return _value(what, entry.value, "", True)


def _of_name(name: str, node: Node) -> Iterator[Problem]:
    """Yield the problem of a misspelt optimizer or scheduler; a name that resembles none may be one of torch."""
    kind, any_case = str(node.to_python()), name == "optimizer.type"
    same = [each for each in NAMED[name] if each == kind or (any_case and each.lower() == kind.lower())]
    near = [each for each in NAMED[name] if is_one_edit(kind.lower(), each.lower()) or each.lower() == kind.lower()]
    if near and not same:
        what = f"{name} ({format_node(node)}) is no name that DeepSpeed knows: it refuses it at the start"
        edits = (Edit(node.place, "replace", in_its_quotes(near[0], node.place)),) if len(near) == 1 else ()
        yield replace(_value(what, node, f"did you mean {listed(near)}?", False), edits=edits)


def _value(what: str, node: Node, hint: str, refused: bool) -> Problem:
    what += "; DeepSpeed refuses the file" if refused else ""
    return Problem(what, node.place, hint, severity="error" if refused else "warning", id="other-program-value")


def _of_auto(name: str, node: Node, wanted: Any, is_strict: bool) -> Problem | None:
    if name in FILLED_IN or wanted is None:
        return None
    try:
        coerce(node, wanted)
    except Mismatch:
        does = "DeepSpeed takes its default" if is_strict else "DeepSpeed reads the word itself"
        what = f'neither Hugging Face\'s Trainer nor Accelerate fills in "auto" for {name}: {does}'
        return Problem(what, node.place, "write a value, or remove it", severity="warning", id="other-program-auto")
    return None


#: Texts that pydantic converts to a value of these types.
_NUMBERS: dict[Any, str] = {
    bool: "true|false|yes|no|on|off|1|0|t|f|y|n",
    int: r"[-+]?\d+(\.0+)?",
    float: r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?(inf|infinity|nan)",
}


def _accepts(wanted: Any, value: Any) -> bool:
    """Return whether pydantic, with which DeepSpeed declares its strict sections, converts a value to a type."""
    origin = get_origin(wanted) or wanted
    if origin is Annotated:
        return _accepts(get_args(wanted)[0], value)
    if origin in UNIONS:
        return any(_accepts(member, value) for member in get_args(wanted))
    if origin is Literal:
        return str(value) in map(str, get_args(wanted))
    if origin in _NUMBERS and isinstance(value, str):
        return re.fullmatch(_NUMBERS[origin], value.strip().lower()) is not None
    if origin in _NUMBERS:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return value in (0, 1) if origin is bool else is_whole or (origin is float and isinstance(value, float))
    return origin is Any or isinstance(value, origin)


# -- values that belong together --------------------------------------------------------------------------------------


def _batch(found: dict[str, Entry], gpus: int | None, tree: Mapping) -> Iterator[Problem]:
    """Yield a problem if train_batch_size cannot be the product of the other two and the data parallel ranks."""
    written = {name: found[name] for name in BATCH if name in found}
    if "train_batch_size" not in written and "train_micro_batch_size_per_gpu" not in written:
        if not is_true(found.get("elasticity.enabled")) and not any(_is_auto(entry.value) for entry in found.values()):
            what = "neither train_batch_size nor train_micro_batch_size_per_gpu is set, and DeepSpeed needs one of them"
            hint = "set one of them, unless the script that reads this file does"
            yield Problem(what, tree.place, hint, severity="warning", id="other-program-batch")
        return
    total, micro, steps = (number(written[name].value) if name in written else None for name in BATCH)
    others = [name for name in BATCH[1:] if name in written]
    if not total or not others or any(not number(written[name].value) for name in others):
        return
    product = (micro or 1) * (steps or 1)
    text = " x ".join(f"{name} ({number(written[name].value)})" for name in others)
    place, also = written["train_batch_size"].place, tuple(written[name].place for name in others)
    of_elastic = is_true(found.get("elasticity.enabled"))
    if total % product and not of_elastic:
        what = f"train_batch_size ({total}) must be a multiple of {text} = {product}"
        near = sorted({max(1, int(total // product)) * product, (int(total // product) + 1) * product})
        yield Problem(
            what, place, f"write {listed(map(str, near))}, or remove one of them", also, id="other-program-batch"
        )
    elif gpus and len(others) == 2 and total != product * gpus and not of_elastic:
        ranks = int(total // product)
        what = f"train_batch_size ({total}) is {text} x {ranks} data parallel ranks, but there are {gpus} GPUs"
        hint = f"write {product * gpus}, or remove one of the three"
        # Several GPUs can hold one replica, if the script divides the model.
        severity: Literal["error", "warning"] = "error" if gpus % ranks else "warning"
        yield Problem(what, place, hint, also, severity, id="other-program-batch")


def _kind(found: dict[str, Entry]) -> Any:
    """Return the schedule of the learning rate: one of DeepSpeed, else a class of torch.optim.lr_scheduler."""
    return found["scheduler.type"].value.to_python() if "scheduler.type" in found else None


def _schedule(found: dict[str, Entry], removed: Collection[str]) -> Iterator[Problem]:
    """Yield a problem if the constructor of the schedule would miss arguments."""
    kind, params = _kind(found), found.get("scheduler.params")
    if not isinstance(kind, str) or "scheduler.type" in removed:
        return
    names = [f"scheduler.params.{name}" for name in REQUIRED.get(kind, ())]
    missing = [name for name in names if name not in {*found, *removed}]
    if not missing and (params is None or params.value.to_python() is None):
        missing = ["scheduler.params"]
    if missing:
        what = f"scheduler.type ({kind}) needs {listed(missing, 'and')}, without which DeepSpeed ends at the start"
        added = "both" if len(missing) > 1 else "it"
        hint = f"add {added}, unless the script passes a schedule of its own to DeepSpeed"
        yield conflict(what, found["scheduler.type"].value.place, hint)


def _rules(tree: Mapping) -> Iterator[Problem]:
    """Yield what the rules in RULES find."""
    rest = [Entry(name, node_of(value), tree.place) for name, value in REST.items()]
    batch = [Entry(BATCH[1], node_of(1), tree.place)]
    kept = [entry for entry in tree.entries if entry.key not in BATCH and not is_comment(entry.key)]
    try:
        partial = before_ranks(draft_of(Mapping([*kept, *batch, *rest], tree.place))).completed(1, 1 << 30, _checks())
    except Problems:
        return
    for _, problem in partial.problems:
        if problem.id in RULES and problem.where and problem.where != tree.place:
            yield replace(problem, severity=RULES[problem.id])


@cache
def _checks() -> tuple[Any, ...]:
    from neoxargs.resolve.rules import CHECKS

    return tuple(rule for rule in CHECKS if rule.id in RULES)
