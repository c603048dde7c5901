"""The edits that correct a key or a value.

An edit is safe only if nothing else can be meant: the key is one letter away from a single known key, or has the name
of a single parameter of another section; and the value is valid there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as AnyMapping

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, is_one_edit
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.keys.match import Key, Match, current_section, is_known, keys_of
from neoxargs.resolve.values.coerce import Mismatch, coerce
from neoxargs.resolve.yaml.compose import compose
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar, is_null, read_plain


def key_edits(key: Key, match: Match, entry: Entry) -> tuple[Edit, ...]:
    """Return the edits for a key that is not a parameter, given what it matches."""
    if len(match.meant) != 1:
        return ()
    [name] = match.meant
    section, _, word = name.rpartition(".")
    if pair := re.fullmatch(r"([\w-]+)(?::|\s*=\s*)(\S.*)", entry.key) if match.found_by == "letters" else None:
        fits = is_null(entry.value) and _fits(name, Scalar(read_plain(pair[2]), pair[2]))
        return (Edit(entry.place, "replace", f"{pair[1]}: {pair[2]}"),) if fits else ()
    if not _fits(name, entry.value) or match.advice.startswith("remove "):
        return ()
    if section != current_section(key.section):
        return (Edit(entry.place, "move", name, safe=match.found_by == "same word" and _is_only(word, key.word)),)
    is_safe = match.found_by == "letters" or (match.found_by == "similar" and _is_nearest(key, match.spelling))
    return (Edit(entry.place, "replace", _spelled(word, entry.place, name), safe=is_safe),)


def moved_to(name: str, entry: Entry) -> tuple[Edit, ...]:
    """Return the edit for a known key that is written outside of its section."""
    return (Edit(entry.place, "move", name),) if _fits(name, entry.value) else ()


def indented(section: str, entries: Sequence[Entry]) -> tuple[Edit, ...]:
    """Return the edits that indent all these keys, which are meant in the empty section above them."""
    for entry in entries:
        begins_line = not entry.place.text[: entry.place.column - 1].strip()
        is_one_line = entry.value.place.line == entry.place.line and _is_on_one_line(entry.value)
        if not (begins_line and is_one_line and _fits(f"{section}.{normal(entry.key)}", entry.value)):
            return ()
    return tuple(Edit(entry.place._replace(column=1, width=0), "replace", "  ") for entry in entries)


def current_names(spelled: AnyMapping[str, Place]) -> Iterator[Edit]:
    """Yield the edit of each key that is written with an old name. spelled: dotted name -> its place."""
    for name, place in spelled.items():
        parameter = REGISTRY.find(name)
        current = parameter.name if parameter else current_section(name)
        old, word = (each.rpartition(".")[2] for each in (name, current))
        if word != old:
            yield Edit(place, "replace", _spelled(word, place, current))


def value_edits(entry: Entry, mismatch: Mismatch) -> tuple[Edit, ...]:
    """Return the edit for a value of a wrong type, if what to write instead is valid."""
    place, instead = mismatch.node.place, mismatch.instead
    # The value of an alias is written elsewhere, above its key.
    is_own = place.file == entry.place.file and place[1:3] > entry.place[1:3]
    if not (instead.write and is_own and _is_on_one_line(mismatch.node)):
        return ()
    quote = place.text[place.column - 1] if isinstance(mismatch.node, Scalar) and mismatch.node.quoted else ""
    for written in (f"{quote}{instead.write}{quote}", instead.write):
        node, problems = compose(Text("", written))
        if node is not None and not problems and _is_valid(node, mismatch.wanted):
            return (Edit(place, "replace", written, safe=instead.is_certain),)
    return ()


def _fits(name: str, value: Node) -> bool:
    """Return whether a parameter can have this value, or whether a section has all of these keys."""
    if parameter := REGISTRY.find(name):
        return _is_valid(value, parameter.type)
    if isinstance(value, Mapping):
        return all(is_known(f"{name}.{normal(entry.key)}") for entry in value.entries)
    return False


def _is_valid(value: Node, wanted: object) -> bool:
    try:
        coerce(value, wanted)
    except Mismatch:
        return False
    return True


def _is_only(word: str, written: str) -> bool:
    """Return whether the key is written as the one name in the registry that ends so."""
    names = [*REGISTRY.parameters, *REGISTRY.renamed, *REGISTRY.sections]
    return word == written and sum(name.rpartition(".")[2] == word for name in names) == 1


def _is_nearest(key: Key, spelling: str) -> bool:
    """Return whether the key is one edit away from this name of its section, and from no other."""
    near = {name for word, name in keys_of(key.section).items() if is_one_edit(key.word, word)}
    return len(near) == 1 and is_one_edit(key.word, spelling)


def _spelled(word: str, place: Place, name: str) -> str:
    """Return a key with the quotes and, unless it is one of DeepSpeed's, with the hyphens of the one it replaces."""
    parameter = REGISTRY.find(name)
    if "-" in place.written and "_" not in place.written and parameter and "DSC" not in parameter.origins:
        word = word.replace("_", "-")
    return in_its_quotes(word, place)


def in_its_quotes(word: str, place: Place) -> str:
    """Return a word with the quotes of the one that it replaces."""
    quote = place.written[0] if place.written[:1] in ("'", '"') else ""
    return f"{quote}{word}{quote}"


def _is_on_one_line(node: Node) -> bool:
    """Return whether the place of a value is all of it."""
    written = node.place.written
    if isinstance(node, Scalar):
        return written == node.text or (node.quoted and len(written) > 1 and written[0] == written[-1])
    return written[:1] in ("[", "{") and written[-1:] in ("]", "}")
