"""Read the commands that a shell script would start, and the here-documents it writes, without running it.

Where a condition is unknown, its first branch is read, with a warning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from neoxargs.problems import Place, Problem
from neoxargs.resolve import Text
from neoxargs.tools.migrate.shell import conditions
from neoxargs.tools.migrate.shell.assignments import Assignments
from neoxargs.tools.migrate.shell.branches import Branches, Branching
from neoxargs.tools.migrate.shell.words import ENDS, Chars, Word, split

_PATTERN = re.compile(r"[\s(]*((?:[^()\n;]|\n\s*\|)+)\)")
_SPACE = re.compile(r"(?:\s|#[^\n]*\n)*")
_FLAG = re.compile(r"(?:^|\s)--[a-zA-Z]")
_LOOPS = ("for", "while", "until", "select")
_CLOSING = ("fi", "done", "esac")
_TESTS = ("[", "[[", "test", "true", "false")
_KEYWORDS = {"if", "then", "else", "elif", "case", "do", "{", "}", "time", "(", ")", *_LOOPS, *_CLOSING}
#: Files that are sourced for the programs that they provide, rather than for settings of the run.
_USERS_ENVIRONMENT = ("activate", "conda.sh", "profile", ".profile", ".bashrc", ".bash_profile")


class _HereDocument(NamedTuple):
    """A here-document that begins after this line, up to the line `end`."""

    end: str
    is_plain: bool
    """Its variables are not expanded."""
    into: str = ""
    """The file that it is written to."""
    variable: str = ""
    """The variable that `read` sets to it."""


@dataclass
class Script:
    """The parts of a script that can be read without running it."""

    commands: list[list[Word]] = field(default_factory=list)
    printed: list[list[Word]] = field(default_factory=list)
    """`echo` and `printf` commands; some scripts print the command that they submit elsewhere."""
    flag_lines: list[list[Word]] = field(default_factory=list)
    """Commands that begin with a flag, usually because the line above does not end with a `\\`."""
    documents: dict[str, Text] = field(default_factory=dict)
    """Here-documents by the file they are written to, padded with empty lines to keep their line numbers."""
    notes: list[Problem] = field(default_factory=list)
    """Warnings about the branches that were read."""
    unset: set[str] = field(default_factory=set)
    """Variables that the script uses but does not set."""
    overwritten: dict[str, Place] = field(default_factory=dict)
    """Variables that were set before the script starts, but that it sets to a value of its own, and where."""
    doubts: list[tuple[list[Word], list[Problem]]] = field(default_factory=list)
    """Commands whose variables may have wrong values, and the warnings about these variables."""
    variable_flags: list[Word] = field(default_factory=list)
    """Flags in the values of the script's variables; used if another script is meant to source this one."""


def read_script(text: Text, given: Mapping[str, str] | None = None) -> Script:
    """Read a script. given: variables that are set before it starts."""
    reader = _Reader(text, given or {})
    reader.read()
    reader.script.unset = reader.unset
    reader.script.variable_flags = [reader.word(chars) for chars in reader.variable_flags()]
    return reader.script


#: Nesting depth of `bash -c` commands that are read.
MAX_SHELL_DEPTH = 3


class _Reader(Assignments):
    depth = 0

    def __init__(self, text: Text, given: Mapping[str, str]) -> None:
        super().__init__(text, given)
        self.script, self.given = Script(), frozenset(given)
        self.branches = Branches(self.script.notes)
        self.separator, self.place = "", Place(text.name, 0, 0)
        self.status: bool | None = None
        """Whether the last command succeeded; None if that is unknown."""
        self.test = ""
        """The last command if it was a test, otherwise empty."""
        self.doubts = {}
        self.inherited: frozenset[str] = frozenset()
        self.target: Word | None = None
        self.pending: list[_HereDocument] = []
        self.sourced: list[Problem] = []
        """Warnings about the files that the script has sourced."""

    def read(self) -> None:
        while self.at < len(self.text):
            if (case := self.branches.innermost("case")) and case.waiting:
                self.read_patterns(case)
                continue
            self.used = set()
            words = self.command_words()
            if words:
                self.command(words)
            self.separate()

    def command_words(self) -> list[Chars]:
        """Read one command. Redirections are removed from it; `self.target` is its output file."""
        words: list[Chars] = []
        self.target = None
        while True:
            words += self.read_words(ENDS)
            if self.text[self.at : self.at + 1] not in ("<", ">"):
                break
            self.redirect()
        # `cat <<EOF > file` and `cat > file <<EOF` are the same.
        into, name = self.target.text if self.target else "", _variable_read(words)
        self.pending = [each._replace(into=each.into or into, variable=each.variable or name) for each in self.pending]
        return words

    def redirect(self) -> None:
        start = self.at
        while self.text[self.at : self.at + 1] in ("<", ">", "&", "|"):
            self.at += 1
        sign = self.text[start : self.at]
        if sign == "<<":
            self.at += self.text.startswith("-", self.at)
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        begin = self.at
        words = self.read_word(ENDS)
        if not words:
            return
        if sign == "<<":
            # If the end word is quoted, the shell expands nothing in the document.
            plain = self.text[begin] in "'\"\\"
            self.pending.append(_HereDocument(self.word(words[0]).text, plain))
        elif sign[0] == ">":
            self.target = self.word(words[0])

    def separate(self) -> None:
        """Read the separator after a command, and here-documents after a line break."""
        for sign in (";;", "&&", "||"):
            if self.text.startswith(sign, self.at):
                self.separator, self.at = sign, self.at + 2
                if sign == ";;":
                    self.branches.end_of_case()
                elif not self.pending and (space := _SPACE.match(self.text, self.at)):
                    self.at = space.end()
                return
        self.separator, self.at = self.text[self.at : self.at + 1], self.at + 1
        if self.separator == "\n":
            for heredoc in self.pending:
                self.read_heredoc(heredoc)
            self.pending = []

    def read_heredoc(self, heredoc: _HereDocument) -> None:
        # Tabs before the end word, as `<<-` allows.
        close = re.compile(rf"^\t*{re.escape(heredoc.end)}$", re.M).search(self.text, self.at)
        stop = close.start() if close else len(self.text)
        body = self.text[self.at : stop]
        if self.branches.is_active and heredoc.variable:
            self.store(heredoc.variable, [self.heredoc_chars(stop, heredoc.is_plain)])
        elif self.branches.is_active:
            content = body if heredoc.is_plain else self.expand_heredoc(body)
            lines = self.text.count("\n", 0, self.at)
            self.script.documents[heredoc.into] = Text(self.name, "\n" * lines + content)
        self.at = close.end() if close else stop

    def heredoc_chars(self, stop: int, is_plain: bool) -> Chars:
        """Read a here-document up to an index, with its places in the script."""
        words: list[Chars] = []
        while self.at < stop:
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] in "$`" and not is_plain:
                words += self.expand(is_quoted=True)
            else:
                words.append([(self.text[self.at], self.at)])
                self.at += 1
        return [pair for chars in words for pair in chars]

    # -- commands ----------------------------------------------------------------------------------------------------

    def command(self, words: list[Chars]) -> None:
        words = self.without_keywords(words)
        if words and _text(words[-1]) == ")":  # the end of `( cd x && python train.py )`
            words = words[:-1]
        if not words:
            return
        if (branching := self.branches.innermost("if")) and branching.waiting:
            branching.condition.append((self.separator, self.evaluate(words)))
        elif self.branches.is_active and not self.is_skipped:
            self.place = self.word(words[0]).place
            self.status = self.run(words)

    def run(self, words: list[Chars]) -> bool | None:
        """Store what the command assigns, or add it to the script; return whether it succeeds, None if unknown."""
        if self.assigns(words):
            return True
        if _text(words[0]) in ("source", ".") and words[1:]:
            self.note_sourced(words)
        self.add_command(words)
        self.test = " ".join(map(_text, words)) if _text(words[0]) in _TESTS else ""
        return self.evaluate(words) if self.test else None

    def note_sourced(self, words: list[Chars]) -> None:
        """Warn, if the command uses a variable that this file may set."""
        if os.path.basename(_text(words[1])) not in _USERS_ENVIRONMENT:
            what = f"`{' '.join(map(_text, words))}` is not read, so the variables that it sets are unknown"
            hint = "add --var NAME=VALUE for each of them, or copy the file's lines to the script"
            self.sourced.append(self.doubt(what, hint))

    def lookup(self, name: str) -> list[Chars]:
        if self.sourced and name not in self.variables and not name.isdigit():
            self.doubts[name] = list(self.sourced)
        return super().lookup(name)

    @property
    def is_skipped(self) -> bool:
        """Whether the `&&` or `||` before this command skips it."""
        return (self.separator, self.status) in (("&&", False), ("||", True))

    def store(self, name: str, value: list[Chars]) -> None:
        super().store(name, value)
        if name in self.given and name not in self.used:
            self.script.overwritten.setdefault(name, self.place)
        if name in self.used and self.branches.is_in_loop():
            what = f"{name} changes in each iteration of a loop, of which only the first is read"
            self.doubts[name].append(self.doubt(what, f"write {name}=VALUE instead of the loop, and migrate again"))
        if self.test and self.status is None and self.separator in ("&&", "||"):
            what = f"the condition `{self.test}` cannot be evaluated; {name} is set as if it were true"
            self.doubts[name].append(self.doubt(what, "set the condition's variables with --var NAME=VALUE"))

    def doubt(self, what: str, hint: str) -> Problem:
        return Problem(what, self.place, hint, severity="warning", id="migrate-value-uncertain")

    def doubts_of_used(self) -> list[Problem]:
        self.used |= self.inherited
        return super().doubts_of_used()

    def without_keywords(self, words: list[Chars]) -> list[Chars]:
        """Open or close branches for leading keywords; return the rest, which is empty after `case` and loops."""
        words = _without_function_name(words)
        while words and (keyword := _text(words[0])) in _KEYWORDS:
            where = self.word(words[0]).place
            if keyword == "case":
                self.branches.begin("case", where, self.word(words[1]) if words[1:] else None)
                return []
            if keyword in _LOOPS:
                self.open_loop(words, where)
                return []
            if keyword in ("if", "{"):
                self.branches.begin(keyword, where, is_active=keyword == "if" or not self.is_skipped)
            elif keyword in _CLOSING or (keyword == "}" and self.branches.innermost("{")):
                self.branches.end()
            else:
                self.branches.on_if_keyword(keyword, where)
            words = words[1:]
        return words

    def open_loop(self, words: list[Chars], where: Place) -> None:
        """Open a loop. `for NAME in a b` sets NAME to its first value."""
        texts = [_text(chars) for chars in words]
        is_active = self.branches.is_active
        self.branches.begin("loop", where)
        if texts[0] == "for" and is_active and texts[2:3] == ["in"] and texts[3:]:
            self.variables[texts[1]] = words[3:4]
            self.branches.note_loop(texts[1], texts[3:], self.word(words[1]).place)

    def read_patterns(self, branching: Branching) -> None:
        """Read the patterns `a|b)` of a `case`."""
        skipped = _SPACE.match(self.text, self.at)
        self.at = skipped.end() if skipped else self.at
        match = _PATTERN.match(self.text, self.at)
        branching.waiting = False
        if self.text.startswith("esac", self.at) or match is None:
            return
        start, self.at = match.start(1) + len(match[1]) - len(match[1].lstrip()), match.end()
        where = self.word([(character, start + i) for i, character in enumerate(match[1].strip())]).place
        self.branches.on_case_patterns(branching, match[1], where)

    def evaluate(self, words: list[Chars]) -> bool | None:
        """Return whether a test such as `[ "$A" = b ]` is true; None if that is unknown."""
        return conditions.evaluate([text for text in map(_text, words) if text not in ("[", "]", "[[", "]]", "test")])

    def add_command(self, words: list[Chars]) -> None:
        texts = [_text(chars) for chars in words]
        if texts[0] == "eval" and self.depth < MAX_SHELL_DEPTH:
            _Inner(self, _joined(words[1:])).read()
            return
        command = [self.word(chars) for chars in words]
        if texts[0] in ("echo", "printf"):
            self.script.printed.append(command)
            return
        self.script.commands.append(command)
        self.script.doubts.append((command, self.doubts_of_used()))
        if self.depth == 0 and texts[0].startswith("--"):
            self.script.flag_lines.append(command)
        for number, inner in enumerate(words[1:], 1):
            if _is_command(texts, number) and self.depth < MAX_SHELL_DEPTH:
                _Inner(self, inner).read()

    def variable_flags(self) -> list[Chars]:
        """Return the words of variables that contain flags, except variables that are part of another one."""
        words = {name: _words_of(value) for name, value in self.variables.items()}
        flags = {name: {chars[0][1] for chars in of if _text(chars[:2]) == "--"} for name, of in words.items()}
        outermost = [name for name in flags if flags[name] and not any(flags[name] < each for each in flags.values())]
        return [chars for name in outermost for chars in words[name]]


class _Inner(_Reader):
    """The argument of another shell, as in `bash -c '$LAUNCHER $CMD'`; its words keep their places in the file.

    An index below `len(self.where)` is one of the argument's own characters; a higher one, less that length, is an
    index in the outer text, from a variable of the outer shell.
    """

    def __init__(self, outer: _Reader, chars: Chars) -> None:
        super().__init__(Text(outer.name, _text(chars)), {})
        self.outer, self.where = outer, [index for _, index in chars]
        self.given = frozenset()
        self.script, self.unset, self.depth = outer.script, outer.unset, outer.depth + 1
        self.branches, self.doubts = Branches(self.script.notes), outer.doubts
        self.inherited = frozenset(outer.used | outer.inherited)

    def lookup(self, name: str) -> list[Chars]:
        self.used.add(name)
        if name in self.variables:
            return self.variables[name]
        offset = len(self.where)
        return [[(character, index + offset) for character, index in chars] for chars in self.outer.lookup(name)]

    def word(self, chars: Chars) -> Word:
        own = len(self.where)
        return self.outer.word([(character, self.where[i] if i < own else i - own) for character, i in chars])


def _is_command(texts: list[str], number: int) -> bool:
    """Return whether a word is a command: the argument of `bash -c`, or several flags in one quoted word."""
    is_of_shell = number > 1 and texts[number - 1] in ("-c", "-lc") and texts[number - 2].endswith("sh")
    return is_of_shell or len(_FLAG.findall(texts[number])) > 1


def _without_function_name(words: list[Chars]) -> list[Chars]:
    """Remove `NAME()` and `function NAME`, because a function's body is read where it is defined."""
    texts = [_text(chars) for chars in words[:3]]
    begin = 2 if texts[0] == "function" or texts[1:2] == ["()"] else int(texts[0].endswith("()"))
    return words[begin + (texts[begin : begin + 1] == ["()"]) :]


def _variable_read(words: list[Chars]) -> str:
    """Return the variable of `read -r -d '' NAME`, which reads a whole here-document; empty for another command."""
    texts = [text for text in map(_text, words) if text != "IFS="]
    return texts[-1] if texts[:1] == ["read"] and texts[-2] == "" else ""


def _joined(words: list[Chars]) -> Chars:
    return [pair for chars in words for pair in [*chars, (" ", chars[-1][1] if chars else 0)]]


def _words_of(value: list[Chars]) -> list[Chars]:
    """Return the words of a variable's value."""
    return [part for chars in value for part in split(chars) if part]


def _text(chars: Chars) -> str:
    return "".join(character for character, _ in chars)
