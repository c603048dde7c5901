"""A lenient JSON reader: JSON with comments and stray commas, Python dicts, blocks inside a document.

It accepts `#`, `//` and `/* */` comments, both kinds of quotes, Python's `True`, `False` and `None`, extra and missing
commas, and duplicate keys. It never executes anything.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass, field
from typing import NoReturn

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.migrate.shell.arithmetic import COMMAND, SUM
from neoxargs.resolve.values.auto import arguments
from neoxargs.resolve.values.hints import number_hint
from neoxargs.resolve.yaml.compose import MAX_KEYS, MAX_VALUES, too_long
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar, Sequence, read_plain

MAX_DEPTH = 32
#: Configurations in one document. More than this is a data file, not a choice.
MAX_BLOCKS = 100
_BEGIN = re.compile(r"^[ \t]*(?:[\w.]+[ \t]*=[ \t]*)?(\{)", re.M)
_STRING = re.compile(r"""[rRuU]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""")
_BARE = re.compile(r"[^\s,:\[\](){}\"'#]+")
_LINE_BREAK = re.compile("\r\n|\n|\r")
_WORD = re.compile(r"[\w./-]+")
_FILLED_IN = re.compile(r"[A-Z](?:[A-Z0-9_]+|[A-Za-z]*[0-9_][A-Za-z0-9_]*)")
_ESCAPE = re.compile(r"\\(.)")
_COMPUTED = re.compile(r"(if|for|and|or)\b")
_PLAIN = "write a number, or text in quotes; names and expressions are not evaluated"
_WITH_COMMA = re.compile(r"[-+]?\d[\d.,]*,\d[\d.]*(?:[eE][-+]?\d+)?\Z")
_SPACE = re.compile(r"\s+")
_COMMENT = re.compile(r"(?:#|//)([^\n]*)|/\*(.*?)\*/", re.S)
_SETTING = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)=(\S+)[ \t]*$", re.M)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}\s]*))?\})")


@dataclass
class Block:
    """One configuration of a document."""

    tree: Mapping
    settings: dict[str, tuple[str, Place]] = field(default_factory=dict)
    """The `NAME=VALUE` lines directly above the configuration, as name -> (value, place)."""
    comments: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """Comments, as line -> (text, whether the line contains nothing else)."""
    warnings: list[Problem] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    """Comment lines at the top of the new file about what is left to the user."""
    removed: list[str] = field(default_factory=list)
    """The parameters whose values a script inserts; the user has to set them."""
    arguments: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Arguments of Hugging Face's Trainer in commands of the document, as name -> (value, line)."""


def blocks(text: Text, given: AnyMapping[str, str] | None = None) -> list[Block]:
    """Return every `{ }` at the beginning of a line or after `name =`. Raises Problems if one cannot be read.

    given: values of shell variables and of words that a script replaces, such as `BATCH_SIZE`.
    """
    reader, read = _Reader(text, given or {}), list[Block]()
    while begin := _BEGIN.search(text.text, reader.at):
        if len(read) == MAX_BLOCKS:
            what = f"this file contains more than {MAX_BLOCKS} configurations"
            hint = "copy the configurations that you need into a separate file"
            raise Problems([Problem(what, reader.place(begin.start(1)), hint, id="migrate-too-many-configurations")])
        read.append(reader.block(begin.start(1)))
    return read


class _Reader:
    def __init__(self, text: Text, given: AnyMapping[str, str]) -> None:
        self.name, self.text, self.at, self.keys, self.values = text.name, text.text, 0, 0, 0
        self.lines = _LINE_BREAK.split(text.text)
        self.starts = [0, *(match.end() for match in _LINE_BREAK.finditer(text.text))]
        self.given, self.arguments = given, arguments(text.text)
        self.variables = dict(given)
        self.comments: dict[int, tuple[str, bool]] = {}
        self.warnings: list[Problem] = []
        self.wrong: list[Problem] = []

    def block(self, begin: int) -> Block:
        """Read the configuration that starts with the `{` at `begin`."""
        for setting in _SETTING.finditer(self.text, self.at, begin):
            self.variables[setting[1]] = self.given.get(setting[1], setting[2].strip("\"'"))
        self.at, self.comments, self.warnings, self.wrong = begin, {}, [], []
        node = self.value(0)
        assert isinstance(node, Mapping)
        if self.wrong:
            raise Problems([*self.wrong, *self.warnings])
        settings = self.settings(node.place.line)
        return Block(node, settings, self.comments, self.warnings, arguments=self.arguments)

    def settings(self, line: int) -> dict[str, tuple[str, Place]]:
        """Return the `NAME=VALUE` lines above a line; blank lines and code fences between them are skipped."""
        settings = {}
        for number in range(line - 1, 0, -1):
            content = self.lines[number - 1]
            if match := _SETTING.match(content):
                place = Place(self.name, number, match.start(1) + 1, content, len(match[1]))
                settings[match[1]] = (match[2].strip("\"'"), place)
            elif content.strip() and not content.strip().startswith("`"):
                break
        return settings

    def value(self, depth: int) -> Node:
        self.skip()
        self.values += 1
        if self.values > MAX_VALUES:
            raise too_long(self.place(self.at), f"{MAX_VALUES:,} values")
        sign = self.text[self.at : self.at + 1]
        if sign in ("{", "[", "("):
            if depth >= MAX_DEPTH:
                self.stop(
                    f"brackets are nested more than {MAX_DEPTH} levels deep, but no parameter is nested that deeply",
                    self.at,
                )
            return self.mapping(depth + 1) if sign == "{" else self.sequence(depth + 1)
        if match := _STRING.match(self.text, self.at):
            return self.string(match)
        return self.bare()

    def mapping(self, depth: int) -> Mapping:
        begin, entries = self.at, list[Entry]()
        self.at += 1
        while not self.ends("}", begin):
            start = self.at
            match = _STRING.match(self.text, start) or _BARE.match(self.text, start)
            if not match:
                self.stop("expected a key before this character", start)
            self.at = match.end()
            key = str(self.string(match).value) if match[0][-1] in "\"'" else match[0]
            self.skip()
            if self.text[self.at : self.at + 1] != ":":
                if (number := _WITH_COMMA.search(self.text, 0, match.end())) and number.start() < start:
                    value = Scalar(number[0], number[0])
                    self.stop(f"{number[0]} is not a number", number.start(), number_hint(value).text)
                self.stop(f"expected `:` after the key {key}", start, "write `key: value`")
            self.at += 1
            self.keys += 1
            if self.keys > MAX_KEYS:
                raise too_long(self.place(start), f"{MAX_KEYS:,} keys")
            entries.append(Entry(key, self.value(depth), self.place(start, len(match[0]))))
            self.comma("}")
        return Mapping(entries, self.place(begin))

    def sequence(self, depth: int) -> Sequence:
        begin, items = self.at, list[Node]()
        closing = "]" if self.text[begin] == "[" else ")"
        self.at += 1
        while not self.ends(closing, begin):
            items.append(self.value(depth))
            self.comma(closing)
        return Sequence(items, self.place(begin))

    def ends(self, closing: str, begin: int) -> bool:
        self.skip()
        if self.at >= len(self.text):
            self.stop(f"this `{self.text[begin]}` is never closed", begin, f"add the closing `{closing}`")
        if self.text[self.at] != closing:
            return False
        self.at += 1
        return True

    def comma(self, closing: str) -> None:
        """Read the comma after an entry; a missing one before a string is only a warning."""
        self.skip()
        sign = self.text[self.at : self.at + 1]
        if sign == ",":
            self.at += 1
        elif sign and sign != closing and sign not in "\"'":
            hint = _PLAIN if sign in "*+-/%=<>" or _COMPUTED.match(self.text, self.at) else ""
            self.stop(f"expected `,` or the closing `{closing}` before this character", self.at, hint)
        elif sign and sign != closing:
            what = "a `,` is missing before this string; the file is read as if the `,` were there"
            place = self.place(self.at)
            self.warnings.append(Problem(what, place, severity="warning", id="migrate-json-comma-missing"))

    def string(self, match: re.Match[str]) -> Scalar:
        self.at = match.end()
        try:
            # Python's syntax, because a dictionary of a script may have r"..." and '...'.
            value = ast.literal_eval(match[0] if match[0][0] in "rR" else _without_escaped_slashes(match[0]))
        except (SyntaxError, ValueError):
            value = match[0][1:-1]
        if re.search("[\ud800-\udfff]", str(value)):
            what = "an escape sequence in this string is only half of a surrogate pair"
            place, hint = self.place(match.start(), len(match[0])), "write the character itself"
            self.wrong.append(Problem(what, place, hint, id="migrate-json-escape"))
        text = str(value)
        known = self.given.get(text) or _VARIABLE.sub(
            lambda name: self.variables.get(name[1] or name[2], name[0]), text
        )
        if known == text:
            return Scalar(value, text, True, self.place(match.start(), len(match[0])))
        # A number that a template has in quotes is still a number.
        value = read_plain(known) if _VARIABLE.fullmatch(text) or text in self.given else known
        return Scalar(value, known, isinstance(value, str), self.place(match.start(), len(match[0])))

    def bare(self) -> Scalar:
        if match := _VARIABLE.match(self.text, self.at):
            # The value that the script last gave it, its `:-` default, or its own text.
            return self.read(match, self.variables.get(match[1] or match[2], match[3] or match[0]))
        match = next(filter(None, (pattern.match(self.text, self.at) for pattern in (SUM, COMMAND, _BARE))), None)
        if not match:
            self.stop("expected a value before this character", self.at)
        return self.read(match, self.given.get(match[0], match[0]))

    def read(self, match: re.Match[str], text: str) -> Scalar:
        self.at, place = match.end(), self.place(match.start(), len(match[0]))
        value = read_plain(text)
        is_value = match.re is _VARIABLE and _WORD.fullmatch(text)
        if isinstance(value, str) and not is_value and not is_placeholder(text):
            self.wrong.append(
                Problem(f"expected a JSON value, got `{match[0]}`", place, _PLAIN, id="migrate-json-value")
            )
        return Scalar(value, text, False, place)

    def skip(self) -> None:
        """Skip spaces and comments, and record the comments."""
        while match := _SPACE.match(self.text, self.at) or _COMMENT.match(self.text, self.at):
            words = match.lastindex and match[match.lastindex]
            if words and words.strip():
                place = self.place(match.start())
                alone = not place.text[: place.column - 1].strip()
                self.comments[place.line] = (" ".join(words.split()), alone)
            self.at = match.end()

    def place(self, at: int, width: int = 1) -> Place:
        line = bisect_right(self.starts, at)
        return Place(self.name, line, at - self.starts[line - 1] + 1, self.lines[line - 1], width)

    def stop(self, what: str, at: int, hint: str = "") -> NoReturn:
        problem = Problem(what, self.place(min(at, len(self.text) - 1)), hint, id="migrate-json-syntax")
        raise Problems([*self.wrong, problem, *self.warnings])


def _without_escaped_slashes(text: str) -> str:
    """Replace the escape `\\/`, which only JSON has."""
    return _ESCAPE.sub(lambda escape: "/" if escape[1] == "/" else escape[0], text)


def is_placeholder(text: str) -> bool:
    """Return whether an unquoted value is filled in later: a shell variable, a command, or a word like `BATCH_SIZE`."""
    return text.startswith(("$", "`")) or _FILLED_IN.fullmatch(text) is not None


def leaves(tree: Mapping, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield every entry with its dotted key; a section comes before its entries."""
    for entry in tree.entries:
        yield path + entry.key, entry
        if isinstance(entry.value, Mapping):
            yield from leaves(entry.value, f"{path}{entry.key}.")
