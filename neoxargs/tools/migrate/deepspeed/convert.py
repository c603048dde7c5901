"""DeepSpeed's JSON as our YAML, whatever form it is kept in, with every `"auto"` resolved and explained.

A document may hold several configurations, and a configuration several versions of one section; they are offered by
number.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from neoxargs.problems import Place, Problem, Problems, listed
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve import Draft, Text
from neoxargs.resolve.keys.letters import is_comment
from neoxargs.resolve.merge import draft_of
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Scalar, node_of, read_plain, shown
from neoxargs.tools.migrate.deepspeed.auto import AUTO, stands_for
from neoxargs.tools.migrate.deepspeed.lenient_json import Block, leaves
from neoxargs.tools.migrate.neox.migrate import Change, migrate
from neoxargs.tools.migrate.yaml_edit import Document
from neoxargs.tools.migrate.yaml_write import Setting, yaml_text

#: Variables of scripts that stand beside a configuration, and the parameter each one sets.
SETTINGS = {
    "PIPELINE_MP_SIZE": "model_parallel_size", "MP_SIZE": "model_parallel_size", "TP_SIZE": "model_parallel_size",
    "PP_SIZE": "pipe_parallel_size", "NUM_GPUS": "num_gpus", "NUM_NODES": "num_nodes",
}  # fmt: skip
#: What tells configurations apart at a glance, in short words.
TELLING = {
    "model_parallel_size": "tensor parallel",
    "train_batch_size": "batch",
    "train_micro_batch_size_per_gpu": "micro batch",
    "gradient_accumulation_steps": "accumulation",
    "zero_optimization.stage": "ZeRO",
    "zero_optimization.overlap_comm": "overlap",
    "zero_optimization.offload_optimizer.device": "optimizer on",
    "zero_optimization.offload_optimizer.pin_memory": "pinned",
    "zero_optimization.offload_param.device": "weights on",
}
#: No more choices than this are offered for one configuration.
MOST = 12


@dataclass
class Written:
    """The new file, and what there is to say about it."""

    text: str
    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass
class Version:
    """One configuration that a document offers."""

    block: Block
    tree: Mapping
    draft: Draft

    def told(self, names: Sequence[str]) -> str:
        values = {name: value.value for name, value in self.draft.values.items()}
        words = [f"{TELLING[name]} {values[name]}" for name in names if name in values]
        return ", ".join(words) or "none of what the others have"

    def value(self, name: str) -> str:
        return repr(self.draft.values[name].value) if name in self.draft.values else ""


def versions(blocks: Sequence[Block]) -> list[Version]:
    """Every configuration of a document, and of each every choice between sections that it has several of."""
    found = []
    for block in blocks:
        for tree in _choices(_without_remarks(block.tree)):
            entries = [*_settings(block), *tree.entries]
            whole = Mapping(entries, tree.place)
            found.append(Version(block, whole, draft_of(whole)))
    return found


def _without_remarks(tree: Mapping) -> Mapping:
    """The tree without keys such as `_comment`, which DeepSpeed passes over at the top."""
    return Mapping([entry for entry in tree.entries if not is_comment(entry.key)], tree.place)


def _choices(tree: Mapping) -> Iterator[Mapping]:
    """The tree with one of each key that stands in it more than once at the top."""
    groups: dict[str, list[Entry]] = {}
    for entry in tree.entries:
        groups.setdefault(normal(entry.key), []).append(entry)
    for number, choice in enumerate(product(*groups.values())):
        if number >= MOST:
            break
        yield Mapping(list(choice), tree.place)


def _settings(block: Block) -> Iterator[Entry]:
    for name, (value, place) in block.settings.items():
        if name in SETTINGS:
            yield Entry(SETTINGS[name], Scalar(read_plain(value), value, False, place), place)


def chosen(found: Sequence[Version], number: int | None, name: str) -> Version:
    """The version with this number (from 1), or the only one; raises Problems that list what there is."""
    if number is not None and not 1 <= number <= len(found):
        raise Problems([Problem(f"--choose {number}: there are {len(found)} to choose from", Place(name, 0, 0))])
    version = found[0] if len(found) == 1 else found[number - 1] if number else None
    wrong = version.draft.problems if version else _every_problem(found)
    if version is None:
        wrong = [_offer(found, name), *wrong]
    if wrong:
        raise Problems(wrong)
    assert version is not None
    return version


def _every_problem(found: Sequence[Version]) -> list[Problem]:
    """What is wrong with any of them, once."""
    return list({(p.what, p.where): p for version in found for p in version.draft.problems}.values())


def _offer(found: Sequence[Version], name: str) -> Problem:
    names = [name for name in TELLING if len({version.value(name) for version in found}) > 1]
    lines = [f"{number}: line {_line(version)}: {version.told(names)}" for number, version in enumerate(found, 1)]
    count = sum(map(_combinations, {id(version.block): version.block for version in found}.values()))
    more = [f"and {count - len(found)} more: take out of the file what is not meant"] if count > len(found) else []
    what = "\n  ".join([f"this holds {count} configurations; choose one by its number", *lines, *more])
    return Problem(what, Place(name, 0, 0), "add --choose N")


def _combinations(block: Block) -> int:
    """In how many ways one of each key can be taken."""
    return prod(Counter(normal(entry.key) for entry in _without_remarks(block.tree).entries).values())


def _line(version: Version) -> int:
    """Where a version begins, or the last of its keys that there are several of."""
    keys = [normal(entry.key) for entry in version.block.tree.entries]
    several = [e.place.line for e in version.tree.entries if keys.count(normal(e.key)) > 1]
    return max(several, default=version.block.tree.place.line)


# -- the new file ----------------------------------------------------------------------------------------------------


def converted(version: Version, source: str) -> Written:
    """The YAML of one version, in today's words."""
    result = Written("", problems=list(version.block.warnings))
    settings = dict(settings_of(version, result))
    settings.update(_deepspeeds_own(version))
    head = [f"From {os.path.basename(source)} by deepy migrate."]
    text = yaml_text(settings, head, version.draft.sections - {name.rpartition(".")[0] for name in settings})
    try:
        today = migrate([Text(source, text)], "neox-2026")
    except Problems as stop:
        raise Problems(_as_written(stop.problems, Text(source, text), version)) from None
    result.text = f"{today.texts[0].text}dialect: neox-2026\n"
    result.changes += [change._replace(where=Place(source, 0, 0)) for change in today.changes]
    result.problems += _became_fp32(version, source)
    missing = [p.name for p in REGISTRY.parameters.values() if p.required and p.name not in version.draft.values]
    if missing:
        what = f"a model is still to be described: {', '.join(missing)}"
        hint = "write them into this file, or name a second file that has them"
        result.problems.append(Problem(what, hint=hint, severity="warning"))
    return result


def _became_fp32(version: Version, source: str) -> Iterator[Problem]:
    """Told where `auto` leaves the precision to the Trainer, and nothing that is written chooses one."""
    halves = ("fp16.enabled", "bf16.enabled")
    auto = [name for name in halves if name in version.draft.auto]
    values = {name: stands_for(name, version.block.arguments).value for name in auto}
    values |= {name: value.value for name, value in version.draft.values.items()}
    if auto and not any(values.get(name) for name in halves):
        what = f'{listed(auto, "and")} "auto" is off here, as Hugging Face\'s Trainer has it: this trains in fp32'
        hint = "if the Trainer was given --bf16 or --fp16, write `bf16: {enabled: true}` or `fp16: {enabled: true}`"
        yield Problem(what, Place(source, 0, 0), hint, severity="warning")


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


def settings_of(version: Version, result: Written) -> Iterator[tuple[str, Setting]]:
    """Each parameter with its line of the new file; what is to be said of `auto` goes to the result."""
    values, seen = version.draft.values, set[int]()
    for key, entry in leaves(version.tree):
        parameter = REGISTRY.find(key)
        if parameter is None:
            continue
        above, behind = _comments(version.block, entry, seen)
        if parameter.name in version.draft.auto:
            stands = stands_for(parameter.name, version.block.arguments)
            stays = stands.value == AUTO
            after = "auto as well" if stays else shown(node_of(stands.value))
            result.changes.append(Change(entry.place, f'{key}: "auto"', after, stands.why))
            yield parameter.name, Setting(stands.value, "", above, stands.why if stays else f"auto: {stands.why}")
        elif parameter.name in values:
            yield parameter.name, Setting(values[parameter.name].value, _own_spelling(entry), above, behind)


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


def _deepspeeds_own(version: Version) -> Iterator[tuple[str, Setting]]:
    """What DeepSpeed does where its JSON says nothing, and this dialect does otherwise."""
    values = {**version.draft.values, **dict.fromkeys(version.draft.auto)}
    name = "optimizer.params.weight_decay"
    if "optimizer.type" in values and name not in values and "weight_decay" not in values:
        yield name, Setting(0.0, behind="DeepSpeed's default")


def is_deepspeeds(tree: Mapping) -> bool:
    """Does DeepSpeed know every key at the top that anybody knows?"""
    known = [REGISTRY.find(entry.key) for entry in tree.entries]
    return all("DSC" in parameter.origins for parameter in known if parameter)
