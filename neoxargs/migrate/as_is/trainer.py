"""Hugging Face's TrainingArguments: a file, alone or beside settings that a script reads, or calls in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problem, Problems, close_matches, is_one_edit, listed
from neoxargs.base.record import replace
from neoxargs.migrate.as_is import deepspeed
from neoxargs.migrate.as_is.keys import (
    Program,
    Settings,
    conflict,
    entries,
    finite,
    number,
    other_version,
    removed_choice,
    settings,
    unknown_key,
)
from neoxargs.registry import other_keys
from neoxargs.registry.other_keys import Key
from neoxargs.resolve.keys.corrections import in_its_quotes
from neoxargs.resolve.keys.other_programs import files
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar, format_node, is_null, node_of

#: Retired name -> the current one.
RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "push_to_hub_token": "hub_token",
    "push_to_hub_model_id": "hub_model_id",
    "warmup_ratio": "warmup_steps",
    "include_tokens_per_second": "include_num_input_tokens_seen",
}
#: Of which the value means the same.
SAME_VALUE = ("evaluation_strategy", "no_cuda", "per_gpu_train_batch_size", "per_gpu_eval_batch_size")
#: Key of the DeepSpeed JSON -> the argument that must have the same value.
SAME_IN_JSON = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_max_lr": "learning_rate",
    "fp16.enabled": "fp16",
    "bf16.enabled": "bf16",
}
#: Classes of which a Python program gives the arguments.
CALLED = ("TrainingArguments", "Seq2SeqTrainingArguments")
#: Arguments that are compared with each other.
TOGETHER = {
    "fp16", "bf16", "fp16_full_eval", "bf16_full_eval", "eval_strategy", "evaluation_strategy", "save_strategy",
    "load_best_model_at_end", "eval_steps", "save_steps", "logging_steps", "lr_scheduler_type", "max_steps",
    "dataloader_prefetch_factor", "dataloader_num_workers",
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "max_grad_norm": 1.0, "learning_rate": 5e-5,
    "adam_epsilon": 1e-8, "weight_decay": 0.0, "fp16": False, "bf16": False,
}  # fmt: skip


class Arguments(Settings):
    """The arguments of a file, or of one call in a Python program.

    unknown: names of which the program computes the value. is_open: whether it passes others that are not named.
    """

    unknown: frozenset[str] = frozenset()
    is_open: bool = False
    is_call: bool = False


def read(text: Text) -> Sequence[Arguments] | None:
    """Return the arguments; None if the file has none of the Trainer. Raises Problems if it cannot be read."""
    if text.name.endswith(".py"):
        return list(_calls(text)) or None
    if not re.search(r"""(^|[{,])\s*["']?(per_device_\w+_batch_size|num_train_epochs)["']?\s*:""", text.text, re.M):
        return None
    try:
        found = settings(text)
    except Problems:
        if text.name.endswith((".yml", ".yaml", ".json")):
            raise
        return None
    names = {entry.key for entry in found.tree.entries} if found else set[str]()
    [mark] = [each for each in files() if "TrainingArguments" in each.called]
    is_trainers = found and mark.has_written(names) and "base_model" not in names
    return [Arguments(found.tree, found.twice)] if found and is_trainers else None


def _calls(text: Text) -> Iterator[Arguments]:
    """Yield the arguments of each `TrainingArguments(...)` of a Python program, which is not run."""
    if "TrainingArguments" not in text.text:
        return
    try:
        tree = ast.parse(text.text)
    except (SyntaxError, ValueError):
        return
    lines, named = text.text.split("\n"), _imported(tree)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) not in named:
            continue
        words: list[tuple[str, ast.expr, ast.expr | ast.keyword]]
        words = [(word.arg, word.value, word) for word in call.keywords if word.arg]
        words += [("output_dir", value, value) for value in call.args[:1]]
        known = {key: _literal(value, text.name, lines) for key, value, _ in words}
        entries = [
            Entry(
                key, known[key] or Scalar(None, ""), _at(node, text.name, lines, len(key) if node is not value else 0)
            )
            for key, value, node in words
        ]
        is_open = len(words) < len(call.keywords) + len(call.args)
        unknown = frozenset(key for key, node in known.items() if node is None)
        yield Arguments(Mapping(entries, _at(call, text.name, lines)), (), unknown, is_open, True)


def _imported(tree: ast.Module) -> set[str]:
    """Return what a program calls Transformers' own classes; it can have another one of the same name."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "transformers":
            found |= {each.asname or each.name for each in node.names if each.name in CALLED}
            found |= {*CALLED} if any(each.name == "*" for each in node.names) else set()
        elif isinstance(node, ast.Import):
            modules = [each.asname or each.name for each in node.names if each.name == "transformers"]
            found |= {f"{module}.{name}" for module in modules for name in CALLED}
    return found


def _literal(value: ast.expr, file: str, lines: Sequence[str]) -> Node | None:
    """Return the value of an argument, None if it is no literal."""
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError):
        return None
    node = node_of(list(found) if isinstance(found, tuple) else found) if not isinstance(found, set | bytes) else None
    return node._replace(place=_at(value, file, lines)) if isinstance(node, Scalar) else node


def _at(node: ast.expr | ast.keyword, file: str, lines: Sequence[str], width: int = 0) -> Place:
    line = lines[node.lineno - 1]
    begin, end = (len(line.encode()[:at].decode()) for at in (node.col_offset, node.end_col_offset or 0))
    is_one_line = node.end_lineno == node.lineno
    return Place(file, node.lineno, begin + 1, line, width or (end - begin if is_one_line else 1))


def judge(given: Sequence[Arguments], text: Text, program: Program, gpus: int | None) -> Iterator[Problem]:
    """Yield what is wrong with the arguments."""
    for arguments in given:
        yield from arguments.twice
        found = {entry.key: entry for entry in arguments.tree.entries}
        for entry in arguments.tree.entries:
            yield from _of_key(entry, program, found, arguments, is_yaml=not text.name.endswith((".json", ".py")))
        if not (arguments.is_open or arguments.unknown & TOGETHER):
            yield from _together(found)
        if "deepspeed" in found and not (arguments.is_open or arguments.unknown):
            yield from _in_json(found, text, gpus)


def remarks(given: Sequence[Arguments]) -> dict[str, str]:
    """Return lines about a file."""
    others = [
        entry.key
        for arguments in given
        for entry in arguments.tree.entries
        if entry.key not in other_keys.keys("transformers") and not arguments.is_call
    ]
    lines = {"others": f"{listed(others, 'and', most=6)}, which the script has to read"} if others else {}
    unknown = sorted({key for arguments in given for key in arguments.unknown})
    unknown += ["those of **"] if any(arguments.is_open for arguments in given) else []
    left = f"the values of {listed(unknown, 'and', most=20)}, which the program computes"
    return lines | ({"unchecked": left} if unknown else {})


def _of_key(
    entry: Entry, program: Program, found: dict[str, Entry], arguments: Arguments, is_yaml: bool
) -> Iterator[Problem]:
    keys = other_keys.keys("transformers")
    known = keys.get(entry.key)
    if known is None and arguments.is_call:
        yield unknown_key(entry, program, keys, found, "refuses")
        return
    if known is None:
        # Other keys are read by the script, by its own classes.
        near = [name for name in keys if is_one_edit(entry.key, name) and name not in found]
        if len(near) == 1 and len(entry.key) > 4:
            yield unknown_key(entry, program, keys, found, "may refuse")
        return
    instead = RENAMED.get(entry.key, "")
    for problem in other_version(entry.key, entry.place, program, known.since, known.until, instead, "refuses"):
        yield problem if entry.key in SAME_VALUE and instead not in found else replace(problem, edits=())
    value = entry.value.to_python()
    if entry.key in arguments.unknown:
        return
    if isinstance(value, str) and value in known.former:
        yield from removed_choice(entry.key, value, entry.value.place, program, known)
    elif wrong := _of_value(entry, known, is_yaml) or _of_words(entry, known):
        yield wrong if _is_refused(known, found) else wrong.as_warning()


def loaded(node: Node, is_yaml: bool) -> Any:
    """Return a value as PyYAML gives it to the program: `5e-5` is a text there."""
    if not is_yaml or not isinstance(node, Scalar) or node.quoted:
        return node.to_python()
    try:
        return yaml.safe_load(node.text)
    except yaml.YAMLError:
        return node.value


#: Type -> what a value must be.
WORDS = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text", "dict": "a section",
    "list": "a list",
}  # fmt: skip


def fits(value: Any, known: Key) -> bool:
    """Return whether a value has one of the types of a key; whole numbers are numbers."""
    kinds = known.type.split("|")
    if value is None or "any" in kinds:
        return True
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "float" in kinds or ("int" in kinds and (isinstance(value, int) or value.is_integer()))
    return type(value).__name__ in kinds


def _of_value(entry: Entry, known: Key, is_yaml: bool) -> Problem | None:
    value, node = loaded(entry.value, is_yaml), entry.value
    shown, edits = f"{entry.key} ({format_node(node)})", tuple[Edit, ...]()
    is_choice = known.refused == "choice"
    if value is False and "no" in known.choices and isinstance(node, Scalar):
        what = f"{shown} is false for the YAML reader, which Transformers refuses"
        edits = (Edit(node.place, "replace", '"no"'),)
        return Problem(what, node.place, 'write "no", in quotes', id="other-program-value", edits=edits)
    if is_choice and value not in known.choices:
        found = close_matches(str(value), known.choices)
        hint = f"did you mean {listed(found)}?" if found else ""
        what = f"{shown} must be one of {listed(known.choices, most=60)}; Transformers refuses the file"
        edits = (
            (Edit(node.place, "replace", found[0]),) if len(found) == 1 and is_one_edit(str(value), found[0]) else ()
        )
        return Problem(what, node.place, hint, id="other-program-value", edits=edits if is_yaml else ())
    is_null_refused = known.refused == "type" and value is None and not known.none
    if problem := _of_size(value, known, shown, node):
        return problem
    if is_choice or (fits(value, known) and not is_null_refused):
        return None
    what, hint = f"{shown} must be {listed((WORDS[kind] for kind in known.type.split('|')), most=9)}", ""
    # Numbers and booleans take part in comparisons as each other.
    may_pass = isinstance(value, bool | int | float) and not {"int", "float"}.isdisjoint(known.type.split("|"))
    is_refused = known.refused == "type" and not may_pass
    if isinstance(value, str) and number(node) is not None and isinstance(node, Scalar) and not node.quoted:
        written = re.sub(r"^([-+]?\d+)([eE])([-+]?)(\d)", lambda m: f"{m[1]}.0{m[2]}{m[3] or '+'}{m[4]}", node.text)
        what = f"{shown} is a text for PyYAML, which needs a point and a sign in such a number"
        hint, edits = f"write {written}, unless the script converts it", (Edit(node.place, "replace", written),)
        is_refused = False
    what += "; Transformers refuses the file" if is_refused else ""
    return Problem(
        what, node.place, hint, severity="error" if is_refused else "warning", id="other-program-value", edits=edits
    )


def _of_size(value: Any, known: Key, shown: str, node: Node) -> Problem | None:
    """Return the problem of a number that Transformers refuses."""
    amount = finite(value)
    if amount is not None and known.least is not None and amount < known.least:
        what = f"{shown} must be at least {known.least:g}; Transformers refuses the file"
    elif amount is not None and known.whole and amount > 1 and amount != int(amount):
        what = f"{shown} must be a whole number, or a part below 1; Transformers refuses the file"
    else:
        return None
    return Problem(what, node.place, "", id="other-program-value")


def _is_refused(known: Key, found: dict[str, Entry]) -> bool:
    """Return whether the other arguments are such that Transformers looks at a value at all."""
    defaults = {"logging_strategy": "steps", "save_strategy": "steps"}
    values = {
        name: found[name].value.to_python() if name in found else defaults.get(name, "no") for name in known.only_with
    }
    return values == {**known.only_with}


def _of_words(entry: Entry, known: Key) -> Problem | None:
    """Return the problem of a text of several words of which one is none of its choices."""
    value, place = entry.value.to_python(), entry.value.place
    texts = value if isinstance(value, list) else [value]
    words = [word for text in texts if isinstance(text, str) for word in re.split(r"[\s,]+", text.strip())]
    wrong = [word for word in words if word.lower() not in {"", "true", "false", *known.words}]
    if not known.words or not wrong:
        return None
    near = [word for word in known.words if is_one_edit(wrong[0].lower(), word)]
    shown = f"{entry.key} ({format_node(entry.value)}) has the word {wrong[0]}"
    what = f"{shown}, which must be one of {listed(known.words, most=20)}"
    is_whole = isinstance(entry.value, Scalar) and len(words) == 1 and len(near) == 1
    edits = (Edit(place, "replace", in_its_quotes(near[0], place)),) if is_whole else ()
    hint = f"did you mean {listed(near)}?" if near else ""
    return Problem(f"{what}; Transformers refuses the file", place, hint, id="other-program-value", edits=edits)


# -- arguments that belong together -----------------------------------------------------------------------------------


class _Values:
    """The values of the arguments, and their places."""

    def __init__(self, found: dict[str, Entry]) -> None:
        self.found = found

    def get(self, name: str, default: Any = None) -> Any:
        is_set = name in self.found and not is_null(self.found[name].value)
        return self.found[name].value.to_python() if is_set else default

    def places(self, *names: str) -> list[Place]:
        return [self.found[name].place for name in names if name in self.found]


def _together(found: dict[str, Entry]) -> Iterator[Problem]:
    """Yield what TrainingArguments refuses, and what has no effect."""
    values = _Values(found)
    for one, other in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if values.get(one) is True and values.get(other) is True:
            what = f"{one} and {other} exclude each other; Transformers refuses them"
            yield conflict(what, found[other].place, "set one of them to false", values.places(one))
    yield from _evaluations(values)
    if values.get("dataloader_prefetch_factor") is not None and values.get("dataloader_num_workers", 0) == 0:
        what = "dataloader_prefetch_factor needs dataloader_num_workers above 0"
        where, *also = values.places("dataloader_prefetch_factor", "dataloader_num_workers")
        yield conflict(what, where, "remove it, or set dataloader_num_workers", also)
    steps = values.get("max_steps", -1)
    if isinstance(steps, int) and steps > 0 and "num_train_epochs" in found:
        what = f"num_train_epochs has no effect, because max_steps ({steps}) is set"
        where = found["num_train_epochs"].place
        yield conflict(what, where, "remove one of the two", values.places("max_steps"), "warning")


def _evaluations(values: _Values) -> Iterator[Problem]:
    """Yield what does not fit when the model is evaluated and saved."""
    name = "evaluation_strategy" if "evaluation_strategy" in values.found else "eval_strategy"
    evaluates, saves = (
        str(values.get(key, default)).lower() for key, default in ((name, "no"), ("save_strategy", "steps"))
    )
    evaluates, saves = ("no" if each == "false" else each for each in (evaluates, saves))
    kind = str(values.get("lr_scheduler_type"))
    if kind in ("reduce_lr_on_plateau", "greedy") and evaluates == "no":
        what = f"lr_scheduler_type ({kind}) needs evaluations, but {name} is no"
        yield conflict(
            what, values.places("lr_scheduler_type")[0], f"set {name} to steps or epoch", values.places(name)
        )
    if values.get("load_best_model_at_end") is not True or saves == "best":
        return
    where, *also = values.places("load_best_model_at_end", name, "save_strategy")
    if evaluates != saves:
        what = f"load_best_model_at_end needs equal strategies, but {name} is {evaluates} and save_strategy {saves}"
        yield conflict(what, where, f"set {name} and save_strategy to the same value", also)
    every, after = values.get("eval_steps") or values.get("logging_steps", 500), values.get("save_steps", 500)
    if evaluates == saves == "steps" and isinstance(every, int) and isinstance(after, int) and every and after % every:
        what = f"with load_best_model_at_end, save_steps ({after}) must be a multiple of eval_steps ({every})"
        hint, also = f"set save_steps to {(after // every + 1) * every}", values.places("save_steps", "eval_steps")
        yield conflict(what, where, hint, also)


def _in_json(found: dict[str, Entry], text: Text, gpus: int | None) -> Iterator[Problem]:
    """Yield each value that differs between the arguments and the DeepSpeed JSON that they name."""
    node = found["deepspeed"].value
    theirs = entries(node) if isinstance(node, Mapping) else deepspeed.named(str(node.to_python()), text) or {}
    for key, argument in SAME_IN_JSON.items():
        entry, own = theirs.get(key), found.get(argument)
        value = own.value.to_python() if own else DEFAULTS[argument]
        if entry is None or isinstance(entry.value, Mapping) or entry.value.to_python() in ("auto", None):
            continue
        if entry.value.to_python() != _number(value):
            mine = f"{argument} is {value}" if own else f"the default of {argument} is {value}"
            theirs_is = f"{key} is {format_node(entry.value)} in the DeepSpeed JSON"
            what = f"{theirs_is}, but {mine}; Transformers refuses different values"
            where, also = (own.place, [entry.place]) if own else (entry.place, [found["deepspeed"].place])
            yield conflict(what, where, f'write "auto" for {key}, or the same value', also)


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
