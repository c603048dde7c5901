"""Edit a YAML file in place, by character ranges, so that everything else in it stays exactly the same.

Every edit parses the text again to get valid ranges, which is fast enough for a few hundred lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import yaml

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Place, Problems
from neoxargs.registry import normal
from neoxargs.resolve.yaml.compose import LINE_BREAK, UNPRINTABLE, compose, lines_of
from neoxargs.resolve.yaml.nodes import read_plain
from neoxargs.resolve.yaml.syntax_errors import syntax_problem

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ALIAS = re.compile(r"\s*:\s*(\*[^\s,\]}]+)")
_WORD = re.compile(r"[A-Za-z_][\w./-]*")
_COMMENT = re.compile(r"\s*#.*")


class Entry(NamedTuple):
    """One `key: value` of the text.

    name: dotted and spelt with `_`. key, value: character ranges [start, end). parent: the PyYAML mapping node that
    holds it. number: its index in that mapping.
    """

    name: str
    key: tuple[int, int]
    value: tuple[int, int]
    parent: Any
    number: int


class NotEditable(Exception):
    """Raised if an edit cannot be made where it is."""


class Document:
    """The text of one file, its entries, and the edits."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.newline = "\r\n" if 2 * text.count("\r\n") > text.count("\n") else "\n"
        self._all: list[Entry] = []
        self._read = ""

    def copy(self) -> Document:
        """Return a document that is edited apart; it is not parsed again."""
        self.entries()
        return copy(self)

    # -- reading -----------------------------------------------------------------------------------------------------

    def entries(self) -> dict[str, Entry]:
        """Return all entries by dotted name, in the order of the text. An aliased mapping is listed at its anchor.

        Of a key that is written twice, the first.
        """
        first: dict[str, Entry] = {}
        for entry in self._every_entry():
            first.setdefault(entry.name, entry)
        return first

    def _every_entry(self) -> list[Entry]:
        # Parsed again only after an edit.
        if self._read != self.text:
            self._all, root = [], self._composed()
            if isinstance(root, yaml.MappingNode):
                self._collect(root, "")
            self._read = self.text
        return self._all if self.text else []

    def _composed(self) -> Any:
        try:
            return yaml.compose(self.text, Loader=_LOADER)
        except yaml.YAMLError as error:  # deepy's own reader accepts an anchor that is set twice; PyYAML does not
            lines = lines_of(self.text)
            raise Problems(
                syntax_problem(error, lambda line, column: Place(self.name, line + 1, column + 1, lines[line]))
            ) from None

    def _collect(self, mapping: Any, path: str) -> None:
        for number, (key, value) in enumerate(mapping.value):
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            name = path + normal(key.value)
            self._all.append(Entry(name, _range(key), self._value(key, value), mapping, number))
            if isinstance(value, yaml.MappingNode) and _is_own(key, value):
                self._collect(value, name + ".")

    def _value(self, key: Any, value: Any) -> tuple[int, int]:
        if _is_own(key, value):
            return value.start_mark.index, self._end(value)
        # PyYAML gives an alias the place of its anchor, so `*name` is searched behind the key.
        alias = _ALIAS.match(self.text, key.end_mark.index)
        return alias.span(1) if alias else _range(key)

    def _end(self, node: Any) -> int:
        """Return where a value really ends; PyYAML ends a block at the start of the next token."""
        if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
            return self._value(*node.value[-1])[1]
        if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
            return self._end(node.value[-1])
        start, end = _range(node)
        return start + len(self.text[start:end].rstrip())

    def place(self, entry: Entry) -> Place:
        """Return the place of the key."""
        start, end = entry.key
        before = LINE_BREAK.split(self.text[:start])
        line = before[-1] + LINE_BREAK.split(self.text[start:], maxsplit=1)[0]
        return Place(self.name, len(before), len(before[-1]) + 1, line, end - start)

    def plain(self, entry: Entry) -> Any:
        """Return the scalar value as a Python object; a list or mapping as its text."""
        return read_plain(self.text[slice(*entry.value)].strip("\"'"))

    def written(self, entry: Entry) -> str:
        """Return the text of the entry on one line."""
        start, end = entry.key[0], max(entry.key[1], entry.value[1])
        return re.sub(r"\s+", " ", self.text[start:end])

    def spelled(self, entry: Entry, attribute: str) -> str:
        """Spell a new key with `-` or `_` like the old key, or like most keys of the file."""
        old = self.text[slice(*entry.key)]
        if "-" in old or "_" in old:
            return attribute.replace("_", "-") if "-" in old and "_" not in old else attribute
        keys = [self.text[slice(*entry.key)] for entry in self.entries().values()]
        hyphens = sum("-" in key for key in keys) > sum("_" in key for key in keys)
        return attribute.replace("_", "-") if hyphens else attribute

    # -- editing -----------------------------------------------------------------------------------------------------

    def rename(self, name: str, key: str) -> None:
        """Replace the key of an entry, keeping its quotes."""
        start, end = self.entries()[name].key
        quote = self.text[start] if self.text[start] in "\"'" else ""
        self._put(start, end, f"{quote}{key}{quote}")

    def set(self, name: str, value: Any) -> None:
        """Replace the value of an entry."""
        entry = self.entries()[name]
        start, end = entry.value
        space = " " if self.text[start - 1] == ":" else ""
        self._put(start, end, space + yaml_value(value, self._quote(entry)))

    def say_what_was(self, name: str, old: str) -> None:
        """Say an entry's old value before the comment beside it, or beside the braces that it is in."""
        entries, around = self.entries(), name
        while around and (around not in entries or entries[around].parent.flow_style):
            around = around.rpartition(".")[0]
        if not around:  # JSON
            return
        words = f"was {old}" if around == name else f"{name.rpartition('.')[2]} was {old}"
        end = max(entries[around].key[1], entries[around].value[1])
        stop = self._line_end(end)
        comment = self.text[end:stop].strip()
        if not comment.startswith("#"):
            self._put(end, end, f"  # {words}")
        elif "deepy:" in comment:  # one that suppresses a warning stays as it is
            self._put(end, stop, f"  # {words}  {comment}")
        else:
            self._put(end, stop, f"  # {words}: {comment.lstrip('# ')}")

    def remove(self, name: str) -> None:
        """Remove an entry; a comment after it stays."""
        self._remove(self.entries()[name])

    def _remove(self, entry: Entry) -> None:
        start, end = entry.key[0], max(entry.key[1], entry.value[1])
        if self.text[end : end + 1] == ":":  # a key without a value
            end += 1
        if entry.parent.flow_style:
            self._remove_from_braces(entry, end)
        else:
            self._cut(start, end)

    def _remove_from_braces(self, entry: Entry, end: int) -> None:
        """Remove an entry of a `{ }` with the comma after it, or the comma before it if it is the last."""
        after = self._next(end)
        if self.text[after] == ",":
            self._cut(entry.key[0], after + 1)
            return
        self._cut(entry.key[0], end)
        if entry.number:
            before = self._value(*entry.parent.value[entry.number - 1])[1]
            comma = self._next(before)
            if self.text[comma] == ",":
                stop = comma + 1
                if self.text[stop : stop + 1] == " " and self.text[stop:].lstrip(" ")[:1] == "}":
                    stop += 1
                self._put(comma, stop, "")

    def _cut(self, start: int, end: int) -> None:
        """Delete a range, and its line if that has nothing else; a comment on the line stays."""
        begin, stop = self._line_start(start), self._line_end(end)
        rest = self.text[end:stop]
        if self.text[begin:start].strip() or not (rest.strip() == "" or _COMMENT.fullmatch(rest)):
            self._put(start, end + (len(rest) - len(rest.lstrip(" "))), "")
        elif rest.strip():
            self._put(begin, stop, self.text[begin:start] + rest.strip())
        else:
            self._put(begin, self.text.find("\n", stop) + 1 or len(self.text), "")

    def add(self, section: str, key: str, value: Any, after: str = "", comment: str = "") -> None:
        """Add an entry after the entry `after`, or at the end of a section ("" is the top level).

        comment: a comment line above it; left out where several entries share one line.
        """
        entries = self.entries()
        inside = (entry.parent for name, entry in entries.items() if name.rpartition(".")[0] == section)
        mapping: Any = next(inside, None)
        siblings = [entry for entry in entries.values() if entry.parent is mapping]
        if after:
            sibling = entries[after]
        elif siblings:
            sibling = max(siblings, key=lambda entry: entry.key[0])
        else:
            self._first(entries[section], key, value)
            return
        line = self._entry(sibling, key, value)
        if mapping.flow_style:
            self._add_in_braces(sibling, line, comment)
        else:
            end = self._line_end(max(sibling.value[1], sibling.key[1]))
            self._put(end, end, self._as_lines(sibling, line, comment))

    def _first(self, entry: Entry, key: str, value: Any) -> None:
        """Add the first entry of a section whose value is `{}` or missing."""
        quote = self._quote(entry)
        start, end = entry.value
        if end <= start:
            start = end = self.text.index(":", entry.key[1]) + 1
        space = " " if self.text[start - 1] == ":" else ""
        self._put(start, end, f"{space}{{{quote}{key}{quote}: {yaml_value(value, quote)}}}")

    def _add_in_braces(self, sibling: Entry, line: str, comment: str) -> None:
        end = max(sibling.value[1], sibling.key[1])
        after = self._next(end)
        comma = self.text[after] == ","
        stop = after + 1 if comma else end
        rest = self.text[stop : self._line_end(stop)]
        alone = not self.text[self._line_start(sibling.key[0]) : sibling.key[0]].strip()
        if alone and (not rest.strip() or _COMMENT.fullmatch(rest)):
            at = self._line_end(stop)
            self._put(at, at, self._as_lines(sibling, line + "," * comma, comment))
        else:
            self._put(stop, stop, f" {line}," if comma else f" {line}")
        if not comma:
            self._put(end, end, ",")

    def _as_lines(self, sibling: Entry, line: str, comment: str) -> str:
        indent = self.text[self._line_start(sibling.key[0]) : sibling.key[0]]
        indent = indent if not indent.strip() else ""
        above = f"{self.newline}{indent}# {comment}" if comment else ""
        return f"{above}{self.newline}{indent}{line}"

    def _entry(self, sibling: Entry, key: str, value: Any) -> str:
        quote = self._quote(sibling)
        between = self.text[sibling.key[1] : sibling.value[0]]
        colon = between if re.fullmatch(r" *: *", between) and (quote or between.endswith(" ")) else ": "
        return f"{quote}{key}{quote}{colon}{yaml_value(value, quote)}"

    def _quote(self, entry: Entry) -> str:
        first = self.text[entry.key[0]]
        return first if first in "\"'" else ""

    # -- corrections -------------------------------------------------------------------------------------------------

    def make(self, edit: Edit) -> None:
        """Make an edit of a problem; raises NotEditable, or Problems if the text is not YAML."""
        at = self._index(edit.where)
        if edit.do == "replace":
            self._put(at, at + edit.where.width, edit.text)
            return
        entry = next((entry for entry in self._every_entry() if entry.key[0] == at), None)
        if entry is None:
            raise NotEditable
        if edit.do == "remove":
            self._remove(entry)
        elif edit.do == "set":
            self._put(*entry.value, edit.text)
        else:
            self._move(entry, edit.text)

    def _index(self, where: Place) -> int:
        """Return the index of a place; raises NotEditable if its line has been edited."""
        start = 0
        for _ in range(where.line - 1):
            found = LINE_BREAK.search(self.text, start)
            if not found:
                raise NotEditable
            start = found.end()
        if LINE_BREAK.split(self.text[start:], maxsplit=1)[0] != where.text:
            raise NotEditable
        return start + where.column - 1

    def _move(self, entry: Entry, name: str) -> None:
        """Move an entry to another section, which is added if the file does not have it."""
        *path, key = name.split(".")
        entries = self.entries()
        depth = next((depth for depth in range(len(path), 0, -1) if ".".join(path[:depth]) in entries), 0)
        section, new = ".".join(path[:depth]), path[depth:]
        header = entries[section] if section else None
        target = header.parent.value[header.number][1] if header else self._composed()
        if header and header.key[1] > target.start_mark.index:  # an alias
            raise NotEditable
        if entry.parent.flow_style or getattr(target, "flow_style", False):
            self._move_in_braces(entry, section, [*new, key])
            return
        is_ended = self.text.endswith("\n")
        self.text += "" if is_ended else self.newline
        self._move_lines(entry, header, target, new, key)
        if not is_ended:
            self.text = self.text.removesuffix(self.newline)

    def _move_in_braces(self, entry: Entry, section: str, path: list[str]) -> None:
        written = self.text[slice(*entry.value)]
        node, problems = compose(Text("", written))
        if node is None or problems or (len(lines_of(written)) > 1 and not entry.parent.flow_style):
            raise NotEditable
        value = node.to_python()
        for inner in reversed(path[1:]):
            value = {inner: value}
        self._remove(entry)
        self.add(section, path[0], value)

    def _move_lines(self, entry: Entry, header: Entry | None, target: Any, new: list[str], key: str) -> None:
        """Move the lines of an entry to the end of a section's. new: sections to add inside it."""
        start, end = self._lines(entry)
        if isinstance(target, yaml.MappingNode) and target.start_mark.index == entry.parent.start_mark.index:
            at, column = start, self._column(entry)  # a new section takes its place
        else:
            start = self._heading(start, end)
            if isinstance(target, yaml.MappingNode):
                last_key, last_value = target.value[-1]
                at = self._next_line(max(last_key.end_mark.index, self._value(last_key, last_value)[1]))
                column = target.start_mark.column
            elif header and header.value[1] <= header.key[1] + 1:  # a section without keys
                at, column = self._next_line(header.key[1]), self._column(header) + self._step()
            else:  # a value that is not a section
                raise NotEditable
        if start < at < end:  # the section is inside the entry
            raise NotEditable
        headers = [" " * (column + depth * self._step()) + name + ":" + self.newline for depth, name in enumerate(new)]
        lines = self._shifted(entry, start, end, key, column + len(new) * self._step())
        moved = "".join([*headers, *lines])
        if at <= start:
            self._put(start, end, "")
            self._put(at, at, moved)
        else:
            self._put(at, at, moved)
            self._put(start, end, "")

    def _shifted(self, entry: Entry, start: int, end: int, key: str, column: int) -> Iterator[str]:
        """Yield the lines of an entry with another key, moved to another column."""
        begin, stop = entry.key
        key = self.text[begin:stop] if normal(self.text[begin:stop].strip("\"'")) == key else key
        by = column - self._column(entry)
        for line in re.findall(r".*\n", self.text[start:begin] + key + self.text[stop:end]):
            if by < 0 and line.strip() and line[:-by].strip():
                raise NotEditable
            yield line if not line.strip() else " " * by + line[max(0, -by) :]

    def _lines(self, entry: Entry) -> tuple[int, int]:
        """Return the range of the lines of an entry; raises NotEditable if they have anything else but a comment."""
        start, last = self._line_start(entry.key[0]), max(entry.key[1], entry.value[1])
        rest = self.text[last : self._line_end(last)]
        if self.text[start : entry.key[0]].strip() or not re.fullmatch(r":?\s*(#.*)?", rest):
            raise NotEditable
        return start, self._next_line(last)

    def _heading(self, start: int, end: int) -> int:
        """Return where the comment above an entry begins, if it is about this entry alone."""
        after = self.text[end : self._line_end(end)].strip()
        above = re.search(r"(?:^|\n[ \t]*\r?\n)((?:[ \t]*#.*\n)+)\Z", self.text[:start])
        return above.start(1) if above and (not after or after.startswith("#")) else start

    def _column(self, entry: Entry) -> int:
        return entry.key[0] - self._line_start(entry.key[0])

    def _step(self) -> int:
        """Return by how many columns the file indents."""
        columns = {self._column(entry) for entry in self._every_entry() if not entry.parent.flow_style}
        return min(columns - {0}, default=2)

    def _next_line(self, at: int) -> int:
        return self.text.find("\n", at) + 1 or len(self.text)

    # -- characters --------------------------------------------------------------------------------------------------

    def _put(self, start: int, end: int, new: str) -> None:
        self.text = self.text[:start] + new + self.text[end:]

    def _line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def _line_end(self, at: int) -> int:
        """Return the end of the line, before its line break."""
        end = self.text.find("\n", at)
        end = len(self.text) if end < 0 else end
        return end - 1 if end > at and self.text[end - 1] == "\r" else end

    def _next(self, at: int) -> int:
        """Return the index of the next character that is neither space nor comment."""
        while at < len(self.text) - 1:
            if self.text[at].isspace():
                at += 1
            elif self.text[at] == "#":
                at = self._line_end(at)
            else:
                break
        return min(at, len(self.text) - 1)


def corrected(text: Text, edits: Sequence[Edit]) -> Text:
    """Return the text after the edits of one problem in this file; raises NotEditable.

    They begin with the last one, because each moves what follows it.
    """
    document = Document(text.name, text.text)
    try:
        for edit in sorted(edits, key=lambda edit: edit.where[1:3], reverse=True):
            document.make(edit)
    except (Problems, KeyError, IndexError):  # not YAML, or without what is to be edited
        raise NotEditable from None
    return Text(text.name, document.text)


def _range(node: Any) -> tuple[int, int]:
    return node.start_mark.index, node.end_mark.index


def _is_own(key: Any, value: Any) -> bool:
    """Return whether the value is written after its key, and is not an alias to a value elsewhere."""
    return bool(value.start_mark.index >= key.end_mark.index)


def yaml_value(value: Any, quote: str = "") -> str:
    """Return a value as one line of YAML. quote: the quotes to put around strings and keys, if any."""
    if isinstance(value, Mapping):
        keys = {key: f"{quote}{key}{quote}" if quote or _WORD.fullmatch(key) else json.dumps(key) for key in value}
        return "{" + ", ".join(f"{keys[key]}: {yaml_value(item, quote)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(yaml_value(item, quote) for item in value) + "]"
    # Words that YAML reads as something else (`yes`, `null`) need quotes. JSON's notation of other values is valid
    # YAML.
    if isinstance(value, str) and not quote and _WORD.fullmatch(value) and isinstance(read_plain(value), str):
        return value
    return UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
