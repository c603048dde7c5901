"""Compose YAML (and JSON) text into nodes with places.

PyYAML only delivers events. Composing them here allows strict limits: type tags are refused, aliases are counted before
they are expanded, and nesting is limited.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from neoxargs.base.files import Text
from neoxargs.base.problems import SET, Edit, Place, Problem, Problems
from neoxargs.registry import normal
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar, Sequence, read_plain
from neoxargs.resolve.yaml.syntax_errors import syntax_problem

#: Levels of nesting; no parameter needs that many, and Python's recursion limit is not reached.
MAX_DEPTH = 32
#: Keys in one file; a file with more is data, and to report each of them would take minutes.
MAX_KEYS = 10_000
#: Lines in one file, values in it, and values that aliases may repeat: a "billion laughs" file stops here instead of
#: filling the memory.
MAX_VALUES = 200_000
TOO_LONG = "file-too-long"
NOT_DATA_HINT = "pass a configuration; it names training data in data_path or text_path, and a vocabulary in vocab_file"
#: libyaml's parser if PyYAML was built with it; it is about ten times faster.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Line breaks of YAML; str.splitlines() splits at more characters.
LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
#: A fenced code block of Markdown.
FENCED = re.compile(r"^[ >]*```[^\n`]*\n(.*?)^[ >]*```", re.M | re.S)
#: Two escapes of JSON that stand for one character, after an even number of backslashes. YAML has no such pairs.
SURROGATE_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})")
#: Characters that YAML does not allow unescaped.
UNPRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def too_long(where: Place, limit: str) -> Problems:
    """Return the problem of a file with more lines, keys or values than a configuration could ever need."""
    what = f"this file has more than {limit}; no configuration needs that many"
    return Problems([Problem(what, where, NOT_DATA_HINT, id=TOO_LONG)])


def compose(text: Text) -> tuple[Node | None, list[Problem]]:
    """Return the tree of the document (None if it is empty or invalid) and its problems."""
    is_json = text.text.lstrip().startswith("{")
    return _Composer(text.name, _with_joined_pairs(text.text) if is_json else text.text, lines_of(text.text)).compose()


def _with_joined_pairs(text: str) -> str:
    """Return JSON in which each pair of escaped surrogates is one escape, as YAML writes it."""

    def joined(match: re.Match[str]) -> str:
        backslashes, pair = match.groups()
        return f"{backslashes}\\U{ord(json.loads(chr(34) + pair + chr(34))):08x}"

    return SURROGATE_PAIR.sub(joined, text)


def lines_of(text: str) -> list[str]:
    """Return the lines as YAML counts them, without line breaks."""
    lines = LINE_BREAK.split(text)
    return lines if lines[-1] else lines[:-1]


def compose_set(argument: str, column: int) -> tuple[Node | None, list[Problem]]:
    """Compose the value of a `--set` argument, which begins at `column` (from 0); its places are in the argument."""
    # Blanks in place of the key, so that columns are those of the argument.
    return _Composer(SET, " " * column + argument[column:], argument.splitlines()).compose()


class _Composer:
    def __init__(self, name: str, text: str, lines: list[str]) -> None:
        self.name, self.text, self.lines = name, text, lines
        self.problems: list[Problem] = []
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.open: set[str] = set()
        self.count = self.repeated = self.keys = 0

    def compose(self) -> tuple[Node | None, list[Problem]]:
        try:
            return self.document(), self.problems
        except Problems as stop:
            # Thousands of keys that are not names would hide that the file is too long.
            before = [] if stop.problems[0].id == TOO_LONG else self.problems
            return None, before + stop.problems
        except yaml.YAMLError as error:
            return None, [*self.problems, self.in_markdown() or syntax_problem(error, self.place)]
        except RecursionError:  # pragma: no cover - MAX_DEPTH stops earlier
            return None, [Problem("this file is nested too deeply", Place(self.name, 0, 0), id="yaml-nesting-too-deep")]

    def in_markdown(self) -> Problem | None:
        """Return a problem if the text is Markdown with a code block that may be the configuration."""
        fenced = list(FENCED.finditer(self.text))
        # A file that begins with a fence is YAML in a code block: `line_patterns.py` reports the fence.
        if not fenced or not self.text[: fenced[0].start()].strip():
            return None
        longest = max(fenced, key=lambda match: len(match[1]))
        first = len(LINE_BREAK.findall(self.text[: longest.start(1)]))
        last = first + len(LINE_BREAK.findall(longest[1]))
        what = f"this is Markdown; the code block in lines {first + 1} to {last} may be the configuration"
        return Problem(what, self.place(first, 0), "save those lines as a separate file", id="yaml-markdown")

    def document(self) -> Node | None:
        if len(self.lines) > MAX_VALUES:
            raise too_long(self.place(MAX_VALUES, 0), f"{MAX_VALUES:,} lines")
        # Searched here, because the parser's own error for these characters has no line and column.
        if bad := UNPRINTABLE.search(self.text):
            before = LINE_BREAK.split(self.text[: bad.start()])
            where = self.place(len(before) - 1, len(before[-1]))
            what = f"control character U+{ord(bad.group()):04X} is not allowed in YAML"
            raise Problems([Problem(what, where, "remove it", id="yaml-control-character")])
        # PyYAML's pure Python parser does not accept the tabs of JSON between tokens.
        has_tabs = "CSafe" not in _LOADER.__name__ and self.text.lstrip().startswith("{")
        self.loader = _LOADER(self.text.replace("\t", " ") if has_tabs else self.text)
        self.next()  # the stream starts
        if isinstance(self.next(), yaml.StreamEndEvent):
            return None
        root = self.node(self.next(), 0)
        self.next()  # the document ends
        more = self.next()
        if isinstance(more, yaml.StreamEndEvent):
            return root
        what = "a second YAML document begins here; a configuration is a single document"
        hint = "remove the `---`, or move the lines below it to a separate file"
        raise Problems([Problem(what, self.at(more), hint, id="yaml-second-document")])

    def next(self) -> Any:
        return self.loader.get_event()

    def node(self, event: Any, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        self.count += 1
        if self.count > MAX_VALUES:
            raise too_long(self.at(event), f"{MAX_VALUES:,} values")
        if event.tag is not None:
            what = f"type tag `{event.tag.replace('tag:yaml.org,2002:', '!!')}` is not allowed"
            hint = "remove the tag; put the value in quotes if it is meant as a string"
            self.problems.append(Problem(what, self.at(event), hint, id="yaml-type-tag"))
        if isinstance(event, yaml.ScalarEvent):
            node: Node = self.scalar(event)
            size = 1
        else:
            node, size = self.collection(event, depth)
        if event.anchor:
            self.anchors[event.anchor] = node, size
        return node

    def scalar(self, event: Any) -> Scalar:
        text, quoted = event.value, bool(event.style)
        return Scalar(text if quoted else read_plain(text), text, quoted, self.at(event))

    def collection(self, event: Any, depth: int) -> tuple[Node, int]:
        if depth >= MAX_DEPTH:
            what = f"more than {MAX_DEPTH} levels of nesting; no parameter needs that many"
            hint = "check for a bracket that is never closed"
            raise Problems([Problem(what, self.at(event), hint, id="yaml-nesting-too-deep")])
        before = self.count
        if event.anchor:
            self.open.add(event.anchor)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        node = self.mapping(event, depth + 1) if is_mapping else self.sequence(event, depth + 1)
        self.open.discard(event.anchor)
        return node, 1 + self.count - before

    def sequence(self, start: Any, depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := self.next(), yaml.SequenceEndEvent):
            item = self.node(event, depth)
            # `[1,500]` has two items, but `000` is no number of its own: `[1,000]`.
            is_number = isinstance(item, Scalar) and not isinstance(item.value, str)
            number = None if is_number or not items else _with_comma(items[-1], item)
            items[-1:] = [number] if number else [*items[-1:], item]
        return Sequence(items, self.at(start, event))

    def mapping(self, start: Any, depth: int) -> Node:
        entries: dict[str, Entry] = {}
        merged: list[Node] = []
        last: Entry | None = None
        while not isinstance(event := self.next(), yaml.MappingEndEvent):
            self.keys += 1
            if self.keys > MAX_KEYS:
                raise too_long(self.at(event), f"{MAX_KEYS:,} keys")
            key = self.node(event, depth)
            value = self.node(self.next(), depth)
            is_absent = isinstance(value, Scalar) and not value.text and not value.quoted
            if last and is_absent and (whole := _with_comma(last.value, key) or _as_tuple(last.value, key)):
                entries[last.key] = last = last._replace(value=whole)
            elif isinstance(key, Scalar) and key.text == "<<" and not key.quoted:
                # `<<: [*a, *b]` merges several mappings.
                merged += value.items if isinstance(value, Sequence) else [value]
            elif isinstance(key, Scalar) and isinstance(key.value, str):
                last = Entry(key.text, value, key.place)
                self.entry(entries, last)
            else:
                self.problems.append(_not_a_name(key))
        self.merge(entries, merged)
        return Mapping(list(entries.values()), self.at(start, event))

    def entry(self, entries: dict[str, Entry], entry: Entry) -> None:
        first = entries.setdefault(entry.key, entry)
        if first is not entry:
            self.problems.append(duplicate_key(entry.key, entry, first))

    def merge(self, entries: dict[str, Entry], merged: list[Node]) -> None:
        """Add the entries of `<<`: keys of the mapping itself have priority, then those of earlier mappings."""
        names = {normal(key) for key in entries}
        for node in merged:
            if not isinstance(node, Mapping):
                what = "`<<` merges the keys of a mapping, but this value is not a mapping"
                hint = "write `<<: *name`, where `&name` marks a mapping"
                self.problems.append(Problem(what, node.place, hint, id="yaml-merge-key-needs-mapping"))
                continue
            for entry in node.entries:
                if normal(entry.key) not in names:
                    names.add(normal(entry.key))
                    entries[entry.key] = entry

    def alias(self, event: Any) -> Node:
        name, where = event.anchor, self.at(event)
        if name in self.open:
            what = f"alias `*{name}` is part of the value that it refers to"
            hint = f"replace `*{name}` with a literal value"
            raise Problems(Problem(what, where, hint, id="yaml-alias-inside-itself"))
        if name not in self.anchors:
            hint = f"add `&{name}` to a value above, or put `*{name}` in quotes if it is meant as a string"
            what = f"alias `*{name}` has no anchor `&{name}` above it"
            raise Problems(Problem(what, where, hint, id="yaml-unknown-alias"))
        node, size = self.anchors[name]
        self.count += size
        # Counted before anything walks the tree: a node is shared here, but each use of it is read as a copy.
        self.repeated += size
        if self.repeated > MAX_VALUES:
            what = f"aliases expand to more than {MAX_VALUES:,} values"
            hint = "remove the nested aliases: even a long configuration needs only a few hundred values"
            raise Problems(Problem(what, where, hint, id="yaml-too-many-aliases"))
        return node

    def at(self, event: Any, last: Any = None) -> Place:
        start, end = event.start_mark, (last or event).end_mark
        width = end.column - start.column if end.line == start.line else 0
        return self.place(start.line, start.column, width)

    def place(self, line: int, column: int, width: int = 1) -> Place:
        """Return a place. Line and column count from 0; a position after the last line becomes the end of that line."""
        if line >= len(self.lines):
            line = max(0, len(self.lines) - 1)
            column = len(self.lines[line]) if self.lines else 0
        text = self.lines[line] if self.lines else ""
        return Place(self.name, line + 1, column + 1, text, width or max(1, len(text) - column))


def duplicate_key(name: str, entry: Entry, other: Entry, spelled: str = "", about: tuple[str, ...] = ()) -> Problem:
    """Return the problem of a key that is set twice. spelled: names two spellings; about: registry names, if known."""
    where, first = entry.place, other.place
    hint = "remove one of the two; values can be overridden only with --set"
    if where.file == SET:
        hint = "use --set only once per parameter"
    elif where.file == first.file and not spelled:
        hint = "remove one of the two; GPT-NeoX silently uses the last one"
    edits: tuple[Edit, ...] = ()
    if where.file != SET and json.dumps(entry.value.to_python()) == json.dumps(other.value.to_python()):
        # A file may also be part of another run, which needs the value.
        edits = (Edit(where, "remove", safe=where.file == first.file),)
    what = f"{name} is set twice{spelled}"
    return Problem(what, where, hint, (first,), id="duplicate-key", about=about, edits=edits)


def _with_comma(before: Node, after: Node) -> Scalar | None:
    """Return `1` and `000` of `{key: 1,000}`, which YAML separates at the comma, as the one value that is meant."""
    if not (isinstance(before, Scalar) and isinstance(after, Scalar)) or before.quoted or after.quoted:
        return None
    place, last = before.place, after.place
    if last[:2] != place[:2] or last.column != place.column + place.width + 1:
        return None
    text = f"{before.text},{after.text}"
    is_number = re.fullmatch(r"[-+]?\d[\d.,]*,\d[\d.]*([eE][-+]?\d+)?", text)
    return Scalar(text, text, place=place._replace(width=len(text))) if is_number else None


def _as_tuple(before: Node, after: Node) -> Scalar | None:
    """Return `(0.9` and `0.95)` of `{key: (0.9, 0.95)}`, a tuple of Python, as the one value that is meant."""
    if not (isinstance(before, Scalar) and isinstance(after, Scalar)) or before.quoted or after.quoted:
        return None
    place, last = before.place, after.place
    if not before.text.startswith("(") or before.text.endswith(")") or last[:2] != place[:2]:
        return None
    text = f"{before.text}, {after.text}"
    return Scalar(text, text, place=place._replace(width=last.column + last.width - place.column))


_NO_NAME = "yaml-key-not-a-name"


def _not_a_name(key: Node) -> Problem:
    if isinstance(key, Scalar):
        if not key.text:
            return Problem("this key is empty", key.place, "write a parameter name before the colon", id=_NO_NAME)
        kind = "null" if key.value is None else "a boolean" if isinstance(key.value, bool) else "a number"
        what = f"a key must be a parameter name; YAML reads `{key.text}` as {kind}"
        hint = f"replace `{key.text}` with a parameter name, or remove this line"
        return Problem(what, key.place, hint, id=_NO_NAME)
    what = "a key must be a parameter name, not a list or a mapping"
    return Problem(what, key.place, "write `key: value`", id=_NO_NAME)
