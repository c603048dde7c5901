"""A shell script's text as words, with simple variables put in; nothing of it is ever run.

Understood: quotes, comments, continued lines, `$NAME`, `${NAME}`, `${NAME:-otherwise}`, `:=` and `:+`, `${NAME[@]}` and
sums in `$(( ))`. Anything else stays in the word as it is written, with its `$`. What is passed on from the command
line, `$@`, is nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from neoxargs.problems import Place, Problem, Problems
from neoxargs.resolve import Text
from neoxargs.tools.migrate.shell.arithmetic import COMMAND, SUM, TEST, computed
from neoxargs.tools.migrate.shell.placeholders import is_placeholder, placeholder_at

#: A word's characters, each with its index in the text.
Chars = list[tuple[str, int]]
ASSIGNMENT = re.compile(r"(\w+)=", re.A)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(\[[@*]\])?(?::?([-=+])((?:[^{}]|\{[^{}]*\})*))?\})", re.A)
_PASSED_ON_INSIDE = re.compile(r"\$[@*]|\$\{[@*][^}]*\}")
_PASSED_ON = re.compile(r"\"\$[@*]\"|\$[@*]|\"?\$\{[@*][^}]*\}\"?")
ENDS = "\n;|&<>"
LIMIT = 100_000
#: No name of a variable is longer than this.
LONGEST = 200


class Word(NamedTuple):
    """A word of a command and where it was written (for a variable's, where that was set)."""

    text: str
    place: Place

    @property
    def is_known(self) -> bool:
        """Is it free of what only running the script would tell?"""
        return "$" not in self.text and "`" not in self.text

    @property
    def is_placeholder(self) -> bool:
        """Does it stand for what a person is to write, as `<Specify path>` does?"""
        return is_placeholder(self.text)


class Shell:
    """The text from which words are taken, one after the other; `given` are variables it is started with."""

    def __init__(self, text: Text, given: Mapping[str, str]) -> None:
        self.name, self.text, self.at = text.name, text.text.replace("\r\n", "\n"), 0
        self.lines = self.text.split("\n")
        self.starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        self.asked: set[str] = set()
        """Variables that the text needs and does not set."""
        self.variables: dict[str, list[Chars]] = {name: [[(c, 0) for c in value]] for name, value in given.items()}

    def words(self, ends: str) -> list[Chars]:
        """The words up to a character that ends the command (or the array)."""
        words: list[Chars] = []
        while self.at < len(self.text):
            character = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif character in ends and not self.together():
                break
            elif character.isspace():
                self.at += 1
            elif character == "#":
                self.at = self.line_end()
            else:
                words += self.one(ends)
        return words

    def one(self, ends: str) -> list[Chars]:
        """One word as it is written, which a variable without quotes can make into several."""
        words: list[Chars] = [[]]
        quoted = False
        while self.at < len(self.text):
            character = self.text[self.at]
            if passed_on := _PASSED_ON.match(self.text, self.at):
                self.at = passed_on.end()
            elif together := self.together():
                words[-1] += [(c, self.at + i) for i, c in enumerate(together)]
                self.at += len(together)
            elif character in "'\"":
                self.quotes(words)
                quoted = True
            elif self.text.startswith("\\\n", self.at):
                break
            elif character == "\\":
                words[-1] += [(c, self.at + 1) for c in self.text[self.at + 1 : self.at + 2]]
                self.at += 2
            elif character in "$`":
                self.unquoted(words, is_split=not _begins_assignment(words))
            elif character == "(" and (bracketed := self.bracketed(words)):
                return bracketed
            elif character.isspace() or character in ends:
                break
            else:
                words[-1].append((character, self.at))
                self.at += 1
        return [chars for chars in self.without_stream(words) if chars or quoted]

    def without_stream(self, words: list[Chars]) -> list[Chars]:
        """`2>`: where a stream goes."""
        is_stream = self.text[self.at : self.at + 1] in (">", "<") and words[-1] and words[-1][-1][0].isdigit()
        return words[:-1] if is_stream else words

    def quotes(self, words: list[Chars]) -> None:
        """What stands in quotes; in single ones as it is."""
        if self.text[self.at] == '"':
            self.at += 1
            self.inside(words)
            return
        end = self.text.find("'", self.at + 1)
        end = len(self.text) if end < 0 else end
        words[-1] += [(self.text[i], i) for i in range(self.at + 1, end)]
        self.at = end + 1

    def inside(self, words: list[Chars]) -> None:
        """What stands in double quotes: variables are put in and stay one word."""
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                words[-1].append((self.text[self.at + 1], self.at + 1))
                self.at += 2
            elif passed_on := _PASSED_ON_INSIDE.match(self.text, self.at):
                self.at = passed_on.end()
            elif self.text[self.at] in "$`":
                first, *others = self.expansion(is_quoted=True)
                words[-1] += first
                for other in others:  # of an array, which is one text behind `NAME=`
                    if _begins_assignment(words):
                        words[-1] += [(" ", self.at), *other]
                    else:
                        words.append(list(other))
            else:
                words[-1].append((self.text[self.at], self.at))
                self.at += 1
        self.at += 1

    def unquoted(self, words: list[Chars], is_split: bool) -> None:
        """A variable outside quotes, whose spaces separate words unless it is behind `NAME=`."""
        first, *others = [part for value in self.expansion() for part in (split(value) if is_split else [value])]
        words[-1] += first
        words += others

    def expansion(self, is_quoted: bool = False) -> list[Chars]:
        """The words that stand for the `$` at this point; its own text where they are not known."""
        start = self.at
        if match := SUM.match(self.text, start):
            self.at = match.end()
            total = computed(match[1], self.value_of)
            return [[(c, start) for c in (match[0] if total is None else str(total))]]
        if match := _VARIABLE.match(self.text, start):
            self.at = match.end()
            value = self.looked_up(match[1] or match[2])
            if value and sum(map(len, value)) > LIMIT:
                what = "variables repeat each other without end here"
                raise Problems([Problem(what, self.word([("$", start)]).place, id="migrate-variables-endless")])
            if match[4] == "+":
                return [self.otherwise(match, is_quoted) if value else []]
            if value:
                return value
            return [[(c, start) for c in match[0]] if match[4] is None else self.otherwise(match, is_quoted)]
        match = COMMAND.match(self.text, start)
        self.at = match.end() if match else start + 1
        return [[(c, start) for c in (match[0] if match else "$")]]

    def otherwise(self, match: re.Match[str], is_quoted: bool) -> Chars:
        """What stands behind `:-`, without its quotes; between double quotes a single one is a letter, as in bash."""
        words: list[Chars] = [[]]
        self.at, end = match.start(5), match.end(5)
        while self.at < end:
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                self.inside(words)
            elif character == "'" and not is_quoted and 0 < (close := self.text.find("'", self.at + 1)) < end:
                words[-1] += [(self.text[i], i) for i in range(self.at + 1, close)]
                self.at = close + 1
            elif character in "$`":
                words += map(list, self.expansion(is_quoted))
            else:
                words[-1].append((character, self.at))
                self.at += 1
        self.at = max(self.at, match.end())
        return [pair for chars in words for pair in chars]

    def tested(self, test: re.Match[str]) -> Chars:
        """`(( N > 1 ))` as the word `true` or `false`; as a sum where that is not known."""
        start, self.at = test.start(), test.end()
        total = computed(test[1], self.value_of)
        word = f"$({test[0]})" if total is None else "true" if total else "false"
        return [(character, start) for character in word]

    def filled(self, body: str) -> str:
        """A here-document with the variables that are known."""
        return _VARIABLE.sub(lambda match: self.value_of(match[1] or match[2]) or match[0], body)

    def value_of(self, name: str) -> str:
        return "".join(character for chars in self.looked_up(name) for character, _ in chars)

    def looked_up(self, name: str) -> list[Chars]:
        if name not in self.variables:
            self.asked.add(name)
        return self.variables.get(name, [])

    def bracketed(self, words: list[Chars]) -> list[Chars]:
        """The word of a test `(( ))` that begins here; none where this `(` begins something else."""
        test = None if words[-1] else TEST.match(self.text, self.at)
        return [self.tested(test)] if test else []

    def together(self) -> str:
        """What begins here and is part of one word, whatever signs are in it."""
        return placeholder_at(self.text, self.at)

    def word(self, chars: Chars) -> Word:
        index = chars[0][1] if chars else 0
        line = bisect_right(self.starts, index)
        content = self.lines[line - 1] if line <= len(self.lines) else ""
        column = index - self.starts[line - 1] + 1
        return Word("".join(c for c, _ in chars), Place(self.name, line, column, content, max(1, len(chars))))

    def line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end


def split(value: Chars) -> list[Chars]:
    """A variable's value at its spaces, save those inside `$( )` and placeholders; the parts may be empty."""
    text, parts, end = "".join(character for character, _ in value), list[Chars]([[]]), 0
    for number, (character, index) in enumerate(value):
        if number >= end:
            end = number + len(_together(text, number))
        if character.isspace() and number >= end:
            parts.append([])
        else:
            parts[-1].append((character, index))
    return parts


def _together(text: str, at: int) -> str:
    """What begins here and is no several words, whatever spaces are in it."""
    command = COMMAND.match(text, at) if text[at] in "$`" else None
    return command[0] if command else placeholder_at(text, at)


def _begins_assignment(words: list[Chars]) -> bool:
    return len(words) == 1 and bool(ASSIGNMENT.match("".join(character for character, _ in words[0][:LONGEST])))
