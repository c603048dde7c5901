"""Convert a DeepSpeed JSON to YAML: every `"auto"` is resolved and explained, and comments are kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems, listed
from neoxargs.base.record import replace
from neoxargs.migrate.deepspeed.defaults import ASSUMED, CHANGED, DEFAULT, absent_settings, built_by_script
from neoxargs.migrate.deepspeed.lenient_json import Block, leaves
from neoxargs.migrate.deepspeed.versions import Version
from neoxargs.migrate.neox.migrate import migrate
from neoxargs.migrate.result import Change, Result, new_file
from neoxargs.migrate.source import CURRENT_DIALECT
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.rules.optimizer import DEFAULT_LR
from neoxargs.resolve.values.auto import AUTO, auto_value
from neoxargs.resolve.yaml.edit import Document
from neoxargs.resolve.yaml.nodes import Entry, Scalar, format_node, node_of
from neoxargs.resolve.yaml.nodes import Mapping as Tree
from neoxargs.resolve.yaml.write import Setting, yaml_text

MICRO_BATCH = "train_micro_batch_size_per_gpu"


def convert_version(
    version: Version,
    source: str,
    deepspeed: str | None = None,
    *,
    is_whole: bool = True,
    defaults: Mapping[str, Setting] | None = None,
) -> Result:
    """Convert one version to YAML with current names. Raises Problems placed in the JSON.

    deepspeed: the version of DeepSpeed in which the JSON was used, if it is known.
    is_whole: False if another file has the rest of DeepSpeed's configuration, and what it leaves out.
    defaults: what the program that passes the configuration to DeepSpeed sets in it by default.
    """
    settings, changes = settings_of(version)
    added = {name: setting for name, setting in (defaults or {}).items() if name not in settings}
    added |= built_by_script(version) if settings and is_whole else {}
    current = _with_current_names(settings | added, version, source)
    if is_whole:
        found = absent_settings(current.text, deepspeed or ASSUMED)
        if absent := {name: setting for name, setting in found.items() if name not in version.block.removed}:
            added |= absent
            current = _with_current_names(settings | added, version, source)
    changes += [change._replace(where=Place(source, 0, 0)) for change in current.changes]
    changes += _additions(added, source, deepspeed)
    without_optimizer = _missing_optimizer(version, added) if is_whole else ()
    warnings = *_fp32_warning(version, source), *without_optimizer, *_missing_model(version, is_whole)
    problems = [*version.block.warnings, *warnings]
    return new_file(f"{current.text}dialect: {CURRENT_DIALECT}\n", changes, problems, version.block.to_do)


def _with_current_names(settings: Mapping[str, Setting], version: Version, source: str) -> Result:
    """Return the new file, whose retired keys are rewritten like those of a GPT-NeoX file."""
    head = [f"Converted from {os.path.basename(source)} by deepy migrate.", *version.block.to_do]
    incomplete = {"".join(name[:end]) for name in version.block.removed for end, sign in enumerate(name) if sign == "."}
    empty = version.draft.sections - incomplete - {name.rpartition(".")[0] for name in settings}
    text = yaml_text(settings, head, empty)
    try:
        return migrate([Text(source, text)], CURRENT_DIALECT)
    except Problems as stop:
        raise Problems(_placed_in_json(stop.problems, Text(source, text), version)) from None


def _additions(added: Mapping[str, Setting], source: str, deepspeed: str | None) -> Iterator[Change]:
    """Yield a change for each setting that the JSON does not have."""
    for name, setting in added.items():
        why = setting.behind
        if why.startswith(DEFAULT) and name in CHANGED and deepspeed is None:
            why += f"; {ASSUMED} is assumed, --deepspeed VERSION names another"
        yield Change(Place(source, 0, 0), "", f"{name}: {format_node(node_of(setting.value))}", why)


def _missing_optimizer(version: Version, added: Iterable[str]) -> Iterator[Problem]:
    """Yield a warning if the training script built the optimizer, so that deepy's default replaces it."""
    if "optimizer.type" not in {*version.draft.values, *version.block.removed, *added}:
        what = (
            "the file does not set optimizer.type: your training script builds the optimizer and its schedule, in the "
            f"new file they are deepy's defaults, Adam with lr {DEFAULT_LR} and a linear decay"
        )
        hint = "add the optimizer section, lr_decay_style and warmup to the new file, as your script sets them"
        about = ("optimizer.type", "lr_decay_style", "warmup")
        yield Problem(what, hint=hint, severity="warning", id="migrate-optimizer-missing", about=about)


def _missing_model(version: Version, is_whole: bool) -> Iterator[Problem]:
    values = {*version.draft.values, *version.block.removed}
    missing = [each.name for each in REGISTRY.parameters.values() if each.required and each.name not in values]
    if is_whole and not {*values, *version.draft.auto} & {MICRO_BATCH, "train_batch_size"}:
        missing.append(MICRO_BATCH)
    if missing:
        what = f"the file does not describe a complete run: it does not set {listed(missing)}"
        hint = "add them to the new file, or to a second file for the same run"
        yield Problem(what, hint=hint, severity="warning", id="migrate-model-missing", about=tuple(missing))


def _fp32_warning(version: Version, source: str) -> Iterator[Problem]:
    """Yield a warning if `auto` leaves the precision to the Trainer's arguments, and none of them is known."""
    sections = ("fp16.enabled", "bf16.enabled")
    auto = [name for name in sections if name in version.draft.auto]
    values = {name: auto_value(name, version.block.arguments).value for name in auto}
    values |= {name: value.value for name, value in version.draft.values.items()}
    if auto and not any(values.get(name) for name in sections):
        what = f'"auto" for {listed(auto, "and")} becomes false, Hugging Face\'s default, so this run trains in fp32'
        hint = "if you start the Trainer with --bf16 or --fp16, set `bf16: {enabled: true}` or `fp16: {enabled: true}`"
        place = Place(source, 0, 0)
        yield Problem(what, place, hint, severity="warning", id="migrate-auto-precision-off", about=tuple(auto))


def _placed_in_json(problems: Sequence[Problem], text: Text, version: Version) -> list[Problem]:
    """Return problems of the new text with the places of the same keys in the JSON."""
    document = Document(*text)
    lines = {document.place(entry).line: name for name, entry in document.entries().items()}
    json_places = {normal(key): entry.place for key, entry in leaves(version.tree)}

    def in_json(place: Place) -> Place:
        return json_places.get(lines.get(place.line, ""), Place(text.name, 0, 0))

    return [
        replace(problem, where=problem.where and in_json(problem.where), also=tuple(map(in_json, problem.also)))
        for problem in problems
    ]


def settings_of(version: Version) -> tuple[dict[str, Setting], list[Change]]:
    """Return the setting of each parameter, and a change for each `auto`."""
    settings, changes, seen = dict[str, Setting](), list[Change](), set[int]()
    for key, entry in leaves(version.tree):
        parameter = REGISTRY.find(key)
        if parameter is None:
            continue
        above, behind = _comments(version.block, entry, seen)
        if normal(key) != parameter.name:
            changes.append(Change(entry.place, key, parameter.name, "another name of the same key"))
        if parameter.name in version.draft.auto:
            auto = auto_value(parameter.name, version.block.arguments)
            stays = auto.value == AUTO
            after = "auto, unchanged" if stays else format_node(node_of(auto.value))
            changes.append(Change(entry.place, f'{key}: "auto"', after, auto.why))
            comment = auto.why if stays else f"auto: {auto.why}"
            settings[parameter.name] = Setting(auto.value, "", above, comment)
        elif parameter.name in version.draft.values:
            value = version.draft.values[parameter.name].value
            settings[parameter.name] = Setting(value, _number_text(entry), above, behind)
    return settings, changes


def _number_text(entry: Entry) -> str:
    """Return a number as it is written, so that `5e8` stays `5e8`; empty for other values."""
    node = entry.value
    is_number = isinstance(node, Scalar) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
    return node.text if is_number and isinstance(node, Scalar) else ""


def _comments(block: Block, entry: Entry, seen: set[int]) -> tuple[list[str], str]:
    """Return the comment lines above a key and the comment after its value. seen: lines that were used already."""
    last = entry.value.place.line
    above: list[str] = []
    line = entry.place.line - 1
    while line in block.comments and block.comments[line][1] and line not in seen:
        above.insert(0, block.comments[line][0])
        seen.add(line)
        line -= 1
    words, alone = block.comments.get(last, ("", True))
    return above, "" if alone or last in seen else words


#: Keys of DeepSpeed's JSON that are other names of parameters from elsewhere, or follow from others; its
#: `initialize` makes process groups of both.
OTHER_NAMES = ("sequence_parallel_size", "data_parallel_size")


def is_deepspeed(tree: Tree) -> bool:
    """Return whether all known top-level keys are DeepSpeed's; unknown ones may be misspelt."""
    known = [REGISTRY.find(entry.key) for entry in tree.entries if entry.key not in OTHER_NAMES]
    return all("DSC" in parameter.origins for parameter in known if parameter)
