"""Split a shell script into words and expand simple variables, without running it.

Supported: quotes, comments, continued lines, `$NAME`, `${NAME}`, `${NAME:-default}`, `:=`, `:+` and `:?`, `${NAME[@]}`
and arithmetic in `$(( ))`. Any other expansion stays in the word as it is written, with its `$`. `$@` and `$*` expand
to nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from neoxargs.problems import Place, Problem, Problems
from neoxargs.resolve import Text
from neoxargs.tools.migrate.shell.arithmetic import COMMAND, SUM, TEST, evaluate
from neoxargs.tools.migrate.shell.placeholders import is_placeholder, placeholder_at

#: A word's characters, each with its index in the text.
Chars = list[tuple[str, int]]
ASSIGNMENT = re.compile(r"(\w+)(\+?)=", re.A)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(\[[@*]\])?(?::?([-=+?])((?:[^{}]|\{[^{}]*\})*))?\})", re.A)
# `$@` and `$*`, the arguments of the script, inside and outside of double quotes
_PASSED_ON_INSIDE = re.compile(r"\$[@*]|\$\{[@*][^}]*\}")
_PASSED_ON = re.compile(r"\"\$[@*]\"|\$[@*]|\"?\$\{[@*][^}]*\}\"?")
#: Characters that end a command.
ENDS = "\n;|&<>"
#: Characters of an expanded value; `X="$X$X"` doubles at each repetition.
MAX_EXPANSION = 100_000
#: Characters of a word that are searched for `NAME=`, so that very long words take linear time.
MAX_NAME = 200


class Word(NamedTuple):
    """A word of a command and its place; for a word from a variable, the place of the assignment."""

    text: str
    place: Place

    @property
    def is_known(self) -> bool:
        """Whether it has no unexpanded variable or command substitution."""
        return "$" not in self.text and "`" not in self.text

    @property
    def is_placeholder(self) -> bool:
        """Whether it has a placeholder in it, such as `<Specify path>`."""
        return is_placeholder(self.text)


class Shell:
    """A reader of the words of a script, one after the other. given: variables that are set before it starts."""

    def __init__(self, text: Text, given: Mapping[str, str]) -> None:
        # self.at: the index of the next character to read
        self.name, self.text, self.at = text.name, text.text.replace("\r\n", "\n"), 0
        self.lines = self.text.split("\n")
        self.starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        self.unset: set[str] = set()
        """Variables that the script uses but does not set."""
        self.used: set[str] = set()
        """Variables that the current command uses."""
        self.variables: dict[str, list[Chars]] = {name: [[(c, 0) for c in value]] for name, value in given.items()}

    def read_words(self, ends: str) -> list[Chars]:
        """Read the words up to one of the characters `ends`."""
        words: list[Chars] = []
        while self.at < len(self.text):
            character = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif character in ends and not self.unsplit_text():
                break
            elif character.isspace():
                self.at += 1
            elif character == "#":
                self.at = self.line_end()
            else:
                words += self.read_word(ends)
        return words

    def read_word(self, ends: str) -> list[Chars]:
        """Read one word of the script, which becomes several if it has an unquoted variable."""
        words: list[Chars] = [[]]
        quoted = False
        while self.at < len(self.text):
            character = self.text[self.at]
            if passed_on := _PASSED_ON.match(self.text, self.at):
                self.at = passed_on.end()
            elif unsplit := self.unsplit_text():
                words[-1] += [(c, self.at + i) for i, c in enumerate(unsplit)]
                self.at += len(unsplit)
            elif character in "'\"":
                self.read_quotes(words)
                quoted = True
            elif self.text.startswith("\\\n", self.at):
                break
            elif character == "\\":
                words[-1] += [(c, self.at + 1) for c in self.text[self.at + 1 : self.at + 2]]
                self.at += 2
            elif character in "$`":
                self.expand_unquoted(words, is_split=not _begins_assignment(words))
            elif character == "(" and (bracketed := self.read_brackets(words)):
                return bracketed
            elif character.isspace() or character in ends:
                break
            else:
                words[-1].append((character, self.at))
                self.at += 1
        return [chars for chars in self.without_stream_number(words) if chars or quoted]

    def without_stream_number(self, words: list[Chars]) -> list[Chars]:
        """Remove the stream number of a redirection such as `2>`."""
        is_stream = self.text[self.at : self.at + 1] in (">", "<") and words[-1] and words[-1][-1][0].isdigit()
        return words[:-1] if is_stream else words

    def read_quotes(self, words: list[Chars]) -> None:
        """Read a quoted string into the last word."""
        if self.text[self.at] == '"':
            self.at += 1
            self.read_double_quoted(words)
            return
        end = self.text.find("'", self.at + 1)
        end = len(self.text) if end < 0 else end
        words[-1] += [(self.text[i], i) for i in range(self.at + 1, end)]
        self.at = end + 1

    def read_double_quoted(self, words: list[Chars]) -> None:
        """Read up to the closing double quote; variables are expanded without splitting them into words."""
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                words[-1].append((self.text[self.at + 1], self.at + 1))
                self.at += 2
            elif passed_on := _PASSED_ON_INSIDE.match(self.text, self.at):
                self.at = passed_on.end()
            elif self.text[self.at] in "$`":
                first, *others = self.expand(is_quoted=True)
                words[-1] += first
                for other in others:  # elements of an array; after `NAME=` they are joined by spaces
                    if _begins_assignment(words):
                        words[-1] += [(" ", self.at), *other]
                    else:
                        words.append(list(other))
            else:
                words[-1].append((self.text[self.at], self.at))
                self.at += 1
        self.at += 1

    def expand_unquoted(self, words: list[Chars], is_split: bool) -> None:
        """Expand a variable outside quotes. is_split: its value is split into words, unlike after `NAME=`."""
        first, *others = [part for value in self.expand() for part in (split(value) if is_split else [value])]
        words[-1] += first
        words += others

    def expand(self, is_quoted: bool = False) -> list[Chars]:
        """Expand the variable, arithmetic or command at this `$` or backquote; unknown ones stay as written."""
        start = self.at
        if match := SUM.match(self.text, start):
            self.at = match.end()
            return [[(c, start) for c in self.computed(match)]]
        if match := _VARIABLE.match(self.text, start):
            self.at = match.end()
            value = self.lookup(match[1] or match[2])
            if value and sum(map(len, value)) > MAX_EXPANSION:
                what = f"this variable expands to more than {MAX_EXPANSION} characters"
                hint = "change the script variable whose value refers to the variable itself"
                raise Problems([Problem(what, self.word([("$", start)]).place, hint, id="migrate-expansion-too-long")])
            if match[4] == "+":
                return [self.read_default(match, is_quoted) if any(value) else []]
            if any(value) or (value and match[4] is None):
                return value
            if match[4] in (None, "?"):  # an empty array, or an unknown variable
                name = match[1] or match[2]
                unknown = f"${{{name}}}" if match[4] else match[0]  # without the message after `:?`
                return [[] if name in self.variables else [(c, start) for c in unknown]]
            default = self.read_default(match, is_quoted)
            if match[4] == "=":  # `: ${NAME:=default}` also sets the variable
                self.variables[match[1] or match[2]] = [default]
            return [default]
        match = COMMAND.match(self.text, start)
        self.at = match.end() if match else start + 1
        return [[(c, start) for c in (match[0] if match else "$")]]

    def read_default(self, match: re.Match[str], is_quoted: bool) -> Chars:
        """Read the text after `:-`, without its quotes. Within double quotes, a single quote is literal, as in bash."""
        words: list[Chars] = [[]]
        self.at, end = match.start(5), match.end(5)
        while self.at < end:
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                self.read_double_quoted(words)
            elif character == "'" and not is_quoted and 0 < (close := self.text.find("'", self.at + 1)) < end:
                words[-1] += [(self.text[i], i) for i in range(self.at + 1, close)]
                self.at = close + 1
            elif character in "$`":
                words += map(list, self.expand(is_quoted))
            else:
                words[-1].append((character, self.at))
                self.at += 1
        self.at = max(self.at, match.end())
        return [pair for chars in words for pair in chars]

    def read_test(self, test: re.Match[str]) -> Chars:
        """Replace `(( N > 1 ))` by the word `true` or `false`; keep it as arithmetic if a variable is unknown."""
        start, self.at = test.start(), test.end()
        total = evaluate(test[1], self.value_of)
        word = f"$({test[0]})" if total is None else "true" if total else "false"
        return [(character, start) for character in word]

    def expand_heredoc(self, body: str) -> str:
        """Expand the known variables and the arithmetic of a here-document."""
        body = SUM.sub(self.computed, body)
        return _VARIABLE.sub(lambda match: self.value_of(match[1] or match[2]) or match[0], body)

    def computed(self, arithmetic: re.Match[str]) -> str:
        """Return the result of `$(( ))`, or its text if a variable is unknown."""
        total = evaluate(arithmetic[1], self.value_of)
        return arithmetic[0] if total is None else str(total)

    def value_of(self, name: str) -> str:
        return "".join(character for chars in self.lookup(name) for character, _ in chars)

    def lookup(self, name: str) -> list[Chars]:
        self.used.add(name)
        if name not in self.variables:
            self.unset.add(name)
        return self.variables.get(name, [])

    def read_brackets(self, words: list[Chars]) -> list[Chars]:
        """Return the word of a test `(( ))` that begins here; empty if this `(` begins something else."""
        test = None if words[-1] else TEST.match(self.text, self.at)
        return [self.read_test(test)] if test else []

    def unsplit_text(self) -> str:
        """Return the text here that belongs to one word in spite of spaces and special characters."""
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
    """Split a variable's value at spaces, except inside `$( )` and placeholders. Parts may be empty."""
    text, parts, end = "".join(character for character, _ in value), list[Chars]([[]]), 0
    for number, (character, index) in enumerate(value):
        if number >= end:
            end = number + len(_unsplit_text(text, number))
        if character.isspace() and number >= end:
            parts.append([])
        else:
            parts[-1].append((character, index))
    return parts


def _unsplit_text(text: str, at: int) -> str:
    """Return the arithmetic, command substitution or placeholder at this index, which is not split at spaces."""
    command = (SUM.match(text, at) or COMMAND.match(text, at)) if text[at] in "$`" else None
    return command[0] if command else placeholder_at(text, at)


def _begins_assignment(words: list[Chars]) -> bool:
    return len(words) == 1 and bool(ASSIGNMENT.match("".join(character for character, _ in words[0][:MAX_NAME])))
