"""DeepSpeed's JSON as our YAML, with every `"auto"` resolved and explained, and the comments that came with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from neoxargs.problems import Place, Problem, Problems, listed
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import Text
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Scalar, node_of, shown
from neoxargs.tools.migrate.deepspeed.auto import AUTO, stands_for
from neoxargs.tools.migrate.deepspeed.lenient_json import Block, leaves
from neoxargs.tools.migrate.deepspeed.versions import Version
from neoxargs.tools.migrate.neox.migrate import migrate
from neoxargs.tools.migrate.result import Change, Result, new_file
from neoxargs.tools.migrate.source import TODAY
from neoxargs.tools.migrate.yaml_edit import Document
from neoxargs.tools.migrate.yaml_write import Setting, yaml_text


def convert_version(version: Version, source: str) -> Result:
    """The YAML of one version, in today's words."""
    settings, changes = settings_of(version)
    settings |= _deepspeeds_own(version)
    head = [f"From {os.path.basename(source)} by deepy migrate."]
    text = yaml_text(settings, head, version.draft.sections - {name.rpartition(".")[0] for name in settings})
    try:
        today = migrate([Text(source, text)], TODAY)
    except Problems as stop:
        raise Problems(_as_written(stop.problems, Text(source, text), version)) from None
    changes += [change._replace(where=Place(source, 0, 0)) for change in today.changes]
    problems = [*version.block.warnings, *_became_fp32(version, source), *_without_model(version)]
    return new_file(f"{today.text}dialect: {TODAY}\n", changes, problems)


def _without_model(version: Version) -> Iterator[Problem]:
    missing = [p.name for p in REGISTRY.parameters.values() if p.required and p.name not in version.draft.values]
    if missing:
        what = f"a model is still to be described: {', '.join(missing)}"
        hint = "write them into this file, or name a second file that has them"
        yield Problem(what, hint=hint, severity="warning", id="migrate-model-missing", about=tuple(missing))


def _became_fp32(version: Version, source: str) -> Iterator[Problem]:
    """Told where `auto` leaves the precision to the Trainer, and nothing that is written chooses one."""
    halves = ("fp16.enabled", "bf16.enabled")
    auto = [name for name in halves if name in version.draft.auto]
    values = {name: stands_for(name, version.block.arguments).value for name in auto}
    values |= {name: value.value for name, value in version.draft.values.items()}
    if auto and not any(values.get(name) for name in halves):
        what = f'{listed(auto, "and")} "auto" is off here, as Hugging Face\'s Trainer has it: this trains in fp32'
        hint = "if the Trainer was given --bf16 or --fp16, write `bf16: {enabled: true}` or `fp16: {enabled: true}`"
        place = Place(source, 0, 0)
        yield Problem(what, place, hint, severity="warning", id="migrate-auto-precision-off", about=tuple(auto))


def _as_written(problems: Sequence[Problem], text: Text, version: Version) -> list[Problem]:
    """Problems of the new text, pointing at the same keys of what it was made from."""
    document = Document(*text)
    lines = {document.place(entry).line: name for name, entry in document.entries().items()}
    written = {normal(key): entry.place for key, entry in leaves(version.tree)}

    def there(place: Place) -> Place:
        return written.get(lines.get(place.line, ""), Place(text.name, 0, 0))

    return [
        replace(problem, where=problem.where and there(problem.where), also=tuple(map(there, problem.also)))
        for problem in problems
    ]


def settings_of(version: Version) -> tuple[dict[str, Setting], list[Change]]:
    """Each parameter with its line of the new file, and what became of each `auto`."""
    settings, changes, seen = dict[str, Setting](), list[Change](), set[int]()
    for key, entry in leaves(version.tree):
        parameter = REGISTRY.find(key)
        if parameter is None:
            continue
        above, behind = _comments(version.block, entry, seen)
        if parameter.name in version.draft.auto:
            stands = stands_for(parameter.name, version.block.arguments)
            stays = stands.value == AUTO
            after = "auto as well" if stays else shown(node_of(stands.value))
            changes.append(Change(entry.place, f'{key}: "auto"', after, stands.why))
            comment = stands.why if stays else f"auto: {stands.why}"
            settings[parameter.name] = Setting(stands.value, "", above, comment)
        elif parameter.name in version.draft.values:
            value = version.draft.values[parameter.name].value
            settings[parameter.name] = Setting(value, _own_spelling(entry), above, behind)
    return settings, changes


def _own_spelling(entry: Entry) -> str:
    """`5e8` stays `5e8`."""
    node = entry.value
    is_number = isinstance(node, Scalar) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
    return node.text if is_number and isinstance(node, Scalar) else ""


def _comments(block: Block, entry: Entry, seen: set[int]) -> tuple[list[str], str]:
    """The comment lines right above a key, and the one behind its value; each is carried once."""
    last = entry.value.place.line
    above: list[str] = []
    line = entry.place.line - 1
    while line in block.comments and block.comments[line][1] and line not in seen:
        above.insert(0, block.comments[line][0])
        seen.add(line)
        line -= 1
    words, alone = block.comments.get(last, ("", True))
    return above, "" if alone or last in seen else words


def _deepspeeds_own(version: Version) -> dict[str, Setting]:
    """What DeepSpeed does where its JSON says nothing, and this dialect does otherwise."""
    values = {**version.draft.values, **dict.fromkeys(version.draft.auto)}
    name = "optimizer.params.weight_decay"
    if "optimizer.type" in values and name not in values and "weight_decay" not in values:
        return {name: Setting(0.0, behind="DeepSpeed's default")}
    return {}


def is_deepspeeds(tree: Mapping) -> bool:
    """Does DeepSpeed know every key at the top that anybody knows?"""
    known = [REGISTRY.find(entry.key) for entry in tree.entries]
    return all("DSC" in parameter.origins for parameter in known if parameter)
