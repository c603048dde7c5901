"""Files of other programs: recognised by keys that only they have, and reported as one problem with our names.

The rows are in `other_programs.json`, under `file`. A file of which no key is known or resembles a known one is of none
of these programs, but not ours either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, listed
from neoxargs.registry import REGISTRY, Parameter, normal
from neoxargs.resolve.keys.match import Key, is_known
from neoxargs.resolve.keys.other_programs import OtherFile, OtherKey, files, find, value_advice
from neoxargs.resolve.keys.similar import similar_anywhere, similar_here
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.yaml.compose import lines_of
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar, format_node, read_plain
from neoxargs.resolve.yaml.nodes import Sequence as Items
from neoxargs.resolve.yaml.read import File

#: Keys of a run that only GPT-NeoX, DeepSpeed and deepy call so: a file with one of them is not another program's.
OURS = (
    "num_layers", "seq_length", "train_iters", "train_batch_size", "train_micro_batch_size_per_gpu", "data_path",
    "zero_optimization",
)  # fmt: skip
#: Keys that count at every depth: those by which Hydra makes an object of a section.
INSIDE = ("_target_",)
#: What can be checked, for a file that is nothing of this.
READ = (
    "deepy reads the YAML of a run (deepy or GPT-NeoX) and, alone, a DeepSpeed JSON, an Accelerate YAML, "
    "TrainingArguments (also in Python) or a Megatron-LM script"
)
#: Keys from which on a file can be recognised by knowing none of them, and one in how many may resemble a known one.
LEAST, RESEMBLING = 5, 5
#: A line of TOML: `[section]`, or `key = value`.
_TOML = re.compile(r"\s*(?:\[+(?P<section>[\w.-]+)\]+|(?P<key>[\w.-]+)\s*=\s*(?P<value>[^#\s].*?))\s*(?:#.*)?")


def file_of_another_program(file: File) -> Problem | None:
    """Return the problem of a file that another program reads; None for any other file, however wrong it is."""
    node = file.node
    if file.name.endswith(".py"):
        what = "this is a Python program, not the configuration of a run"
        return Problem(what, Place(file.name, 0, 0), READ, id="file-of-another-program")
    if second := next((each for each in file.problems if each.id == "yaml-second-document"), None):
        lines = lines_of(file.text)[: second.where.line - 1 if second.where else 0]
        node = File(file.name, "\n".join(lines)).node
    is_toml = not isinstance(node, Mapping)
    sections, entries = ([], node.entries) if isinstance(node, Mapping) else _toml(file)
    names = {entry.key for entry in [*sections, *entries]}
    if isinstance(node, Mapping) and any(key in INSIDE for key in _keys_inside(node)):
        names |= {*INSIDE}
    if all(is_known(normal(name)) for name in names):
        return None
    found = next((each for each in files() if each.is_toml == is_toml and each.has_written(names)), None)
    is_ours = any(normal(name) in OURS for name in names)
    if (is_ours and not (found and found.is_certain)) or not (found or is_toml):
        return _of_no_run(node.entries) if isinstance(node, Mapping) and not is_ours else None
    if found and found.is_no_run:
        where = next(entry.place for entry in entries if entry.key in found.keys[0])
        what = f"this is {found.called}, not the configuration of a run"
        return Problem(what, where, READ, id="file-of-another-program")
    called, marks = (found.called, found.keys[0]) if found else ("TOML", names)
    written = [*sections, *entries]
    where = next((entry.place for entry in written if entry.key in marks), written[0].place)
    what = f"this is {called}, and deepy reads YAML with its own names"
    return Problem(what, where, _names_here(found, file, entries), id="file-of-another-program")


def _of_no_run(entries: Sequence[Entry]) -> Problem | None:
    """Return the problem of a file of which nothing is known; None for one whose keys may be misspelt."""
    keys = list({normal(entry.key): Key(normal(entry.key), entry.key, entry.place) for entry in entries}.values())
    if len(keys) < LEAST or any(is_known(key.name) or find(key.name) for key in keys):
        return None
    similar = sum(bool(similar_here(key) or similar_anywhere(key)) for key in keys)
    if similar * RESEMBLING > len(keys):
        return None
    shown = listed([key.written for key in keys], "and", most=4)
    what = f"this is not the configuration of a run: none of its keys is known ({shown})"
    return Problem(what, keys[0].where, READ, id="file-of-another-program")


def _keys_inside(node: Node) -> Iterator[str]:
    """Yield the keys at every depth."""
    if isinstance(node, Mapping):
        for entry in node.entries:
            yield entry.key
            yield from _keys_inside(entry.value)
    elif isinstance(node, Items):
        for item in node.items:
            yield from _keys_inside(item)


def _toml(text: Text) -> tuple[list[Entry], list[Entry]]:
    """Return the sections and the settings of TOML; nothing if the text is something else."""
    sections, settings = list[Entry](), list[Entry]()
    for number, line in enumerate(lines_of(text.text), 1):
        if match := _TOML.fullmatch(line):
            key, value = match["section"] or match["key"], (match["value"] or "").strip("\"'")
            place = Place(text.name, number, line.index(key) + 1, line, len(key))
            (sections if match["section"] else settings).append(Entry(key, Scalar(read_plain(value), value), place))
    return (sections, settings) if sections and settings else ([], [])


def _names_here(file: OtherFile | None, text: Text, entries: Sequence[Entry]) -> str:
    """Return the hint: how to convert the file, or what its settings are called here."""
    if file and file.is_migrated:
        return f"run `deepy migrate {text.name}` to convert it"
    read = [
        (entry.key, *_name_here(entry))
        for entry in entries
        if entry.value.to_python() not in (None, {}, []) and entry.value.to_python() is not False
    ]
    renamed = [f"{key} is {name}" for key, name, _ in read if name and name != normal(key)]
    same = [key for key, name, _ in read if name == normal(key)]
    form = f"in which {', '.join(renamed)}" if renamed else "of `key: value` lines"
    parts = [f"write a YAML file {form}"]
    if file and file.instead:
        parts = [file.instead, f"to train another model, {parts[0]}"]
    if same:
        parts.append(f"{listed(same, 'and', most=len(same))} {'have' if same[1:] else 'has'} the same name")
    parts += [note for _, _, note in read if note]
    if file:
        parts += [advice for key, advice in file.absent.items() if key not in {entry.key for entry in entries}]
    if (renamed or same) and any(not name and not note for _, name, note in read):
        parts.append("the other settings have no counterpart, or one with another meaning")
    return "; ".join(parts)


def _name_here(entry: Entry) -> tuple[str, str]:
    """Return our name of a setting, and what to do about its value; both empty if there is no counterpart."""
    other = find(entry.key) or OtherKey()
    if other.advice and not other.counterpart:
        return "", f"{entry.key}: {other.advice.removeprefix('remove it; ')}"
    name, value = other.counterpart or normal(entry.key), entry.value.to_python()
    if name in REGISTRY.sections:
        return (f"`{name}: {{enabled: true}}`" if value is True else ""), ""
    parameter = REGISTRY.find(name)
    if parameter is None:
        return "", ""
    note = _about_value(parameter, entry.value) if isinstance(entry.value, Scalar) else ""
    return ("" if note and parameter.name == normal(entry.key) else parameter.name), note


def _about_value(parameter: Parameter, value: Scalar) -> str:
    """Return what to do about a value that a parameter does not accept, else ""."""
    if advice := value_advice(parameter.name, value.value):
        return advice
    try:
        coerce(value, parameter.type)
    except Mismatch as mismatch:
        advice = f" ({mismatch.advice})" if mismatch.advice else ""
        return f"{parameter.name} does not accept {format_node(value)}{advice}"
    return ""
