"""Assignments in a shell script: `NAME=value` and `NAME=(a b c)`."""

from __future__ import annotations

import re

from neoxargs.tools.migrate.shell.words import ASSIGNMENT, Chars, Shell

#: Commands before an assignment, which can have options such as `declare -a`.
_DECLARATIONS = ("export", "local", "declare", "typeset", "readonly")
_GROUP = re.compile(r"\((?:[^()\n]|\([^()\n]*\))*\)")


class Assignments(Shell):
    """A reader of a script's words that keeps the current values of its variables."""

    in_array = False

    def assigns(self, words: list[Chars]) -> bool:
        """Store `NAME=value`; return True if the command consists of assignments only."""
        plain = ["".join(character for character, _ in chars) for chars in words]
        if plain[0] in _DECLARATIONS:
            begin = next((i for i, word in enumerate(plain[1:], 1) if not word.startswith("-")), len(plain))
            words, plain = words[begin:], plain[begin:]
        # `_array` has put a marker after the `=`; `NAME+=(...)` appends.
        if plain and re.fullmatch(r"\w+\+?=", plain[0]) and plain[1:2] == ["("]:
            name = plain[0].rstrip("+=")
            before = self.variables.get(name, []) if plain[0].endswith("+=") else []
            self.variables[name] = [*before, *words[2:]]
            return True
        for chars, word in zip(words, plain, strict=True):
            match = ASSIGNMENT.match(word)
            if not match:
                return False
            self.variables[match[1]] = [chars[match.end() :]]
        return True

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
        return bool(re.fullmatch(r"\w+\+?=", "".join(character for character, _ in words[-1])))

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
