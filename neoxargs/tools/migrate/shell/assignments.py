"""Assignments in a shell script: `NAME=value`, `NAME=(a b c)`, `NAME+=value`, `((NAME = 2))`, `unset NAME`."""

from __future__ import annotations

import re

from neoxargs.problems import Problem
from neoxargs.tools.migrate.shell.arithmetic import assigned
from neoxargs.tools.migrate.shell.words import ASSIGNMENT, Chars, Shell

#: Commands before an assignment, which can have options such as `declare -a`.
_DECLARATIONS = ("export", "local", "declare", "typeset", "readonly")
_GROUP = re.compile(r"\((?:[^()\n]|\([^()\n]*\))*\)")
#: A command `(( ))`, as `Shell.read_test` leaves it.
_ARITHMETIC = re.compile(r"\$\(\(\((.*)\)\)\)", re.S)
#: Commands that assign variables, but are not evaluated.
_SETTERS = ("read", "mapfile", "readarray", "getopts")
_ELEMENT = re.compile(r"(\w+)\[[^]]*\]\+?=", re.A)


class Assignments(Shell):
    """A reader of a script's words that keeps the current values of its variables."""

    in_array = False
    #: Variable -> the warnings about its value.
    doubts: dict[str, list[Problem]]

    def assigns(self, words: list[Chars]) -> bool:
        """Store what the command assigns; return True if the command consists of assignments only."""
        plain = [_text(chars) for chars in words]
        if plain[0] in _DECLARATIONS:
            begin = next((i for i, word in enumerate(plain[1:], 1) if not word.startswith("-")), len(plain))
            words, plain = words[begin:], plain[begin:]
        # `_array` has put a marker after the `=`; `NAME+=(...)` appends.
        if plain and re.fullmatch(r"\w+\+?=", plain[0]) and plain[1:2] == ["("]:
            name = plain[0].rstrip("+=")
            self.store(name, [*(self.lookup(name) if plain[0].endswith("+=") else []), *words[2:]])
            return True
        return self._changes(words, plain) or all(self._assigns_word(chars) for chars in words)

    def _assigns_word(self, chars: Chars) -> bool:
        match = ASSIGNMENT.match(_text(chars))
        if match:
            before = self.lookup(match[1]) if match[2] else []
            first, *others = before or [[]]
            self.store(match[1], [[*first, *chars[match.end() :]], *others])
        return match is not None

    def _changes(self, words: list[Chars], plain: list[str]) -> bool:
        """Handle `((NAME = 2))`, `let NAME=2` and `unset NAME`; warn about commands that are not evaluated."""
        arithmetic = [match[1] for match in [_ARITHMETIC.fullmatch(plain[0])] if match] if plain else []
        for statement in plain[1:] if plain[:1] == ["let"] else arithmetic:
            for name, value in assigned(statement, self.value_of).items():
                self.store(name, [[(character, words[0][0][1]) for character in value]])
        for name in plain[1:] if plain[:1] == ["unset"] else []:
            self.store(name, [[]])
        names = [match[1] for match in map(_ELEMENT.match, plain[:1]) if match]
        for name in names or (plain[1:] if plain[:1] and plain[0] in _SETTERS else []):
            self._doubt(name, words)
        return plain[:1] in (["let"], ["unset"]) or bool(names or arithmetic)

    def _doubt(self, name: str, words: list[Chars]) -> None:
        """Warn that a command is not evaluated, if the variable that it assigns has another value."""
        if name in self.variables:
            command = " ".join(map(_text, words))
            what = f"`{command}` is not evaluated, so {name} has the value that it had before"
            self.doubts.setdefault(name, []).append(self.doubt(what, f"write {name}=VALUE instead, and migrate again"))

    def doubt(self, what: str, hint: str) -> Problem:
        """Return a warning about the statement that is being read."""
        raise NotImplementedError

    def store(self, name: str, value: list[Chars]) -> None:
        """Set a variable. The warnings about the variables in its value are also about this one."""
        self.variables[name] = value
        self.doubts[name] = self.doubts_of_used()

    def doubts_of_used(self) -> list[Problem]:
        """Return the warnings about the variables that the current command uses."""
        return list(dict.fromkeys(problem for name in sorted(self.used) for problem in self.doubts.get(name, [])))

    def read_brackets(self, words: list[Chars]) -> list[Chars]:
        return [words[0], *self._array()] if self._begins_array(words) else super().read_brackets(words)

    def unsplit_text(self) -> str:
        # Published scripts have unquoted lists such as `[0]*1+([1]*26)` in arrays, although bash rejects them.
        group = _GROUP.match(self.text, self.at) if self.in_array else None
        return group[0] if group else super().unsplit_text()

    def _begins_array(self, words: list[Chars]) -> bool:
        # Checked before joining the word, whose length would make a word of many brackets take quadratic time.
        if self.in_array or not words[-1] or words[-1][-1][0] != "=":
            return False
        return bool(re.fullmatch(r"\w+\+?=", _text(words[-1])))

    def _array(self) -> list[Chars]:
        """Read `( ... )` after `NAME=`; return a marker `(` and the words."""
        begin, self.at = self.at, self.at + 1
        self.in_array = True  # arrays cannot be nested
        words = self._words_of_array()
        self.in_array = False
        self.at += 1
        return [[("(", begin)], *words]

    def _words_of_array(self) -> list[Chars]:
        words: list[Chars] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            words += self.read_words("\n)")
            if self.at < len(self.text) and self.text[self.at] == "\n":
                self.at += 1
        return words


def _text(chars: Chars) -> str:
    return "".join(character for character, _ in chars)
