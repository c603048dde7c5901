"""Expand the words of a script: variables, arrays, defaults and arithmetic. What cannot be known stays, as Unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from neoxargs.base.problems import Problem, Problems
from neoxargs.migrate.shell.arithmetic import evaluate
from neoxargs.migrate.shell.syntax import Part, Parts
from neoxargs.migrate.shell.values import Chars, Source, Unknown, Value, split, text_of, unknowns_of

#: Characters of an expanded value; `X="$X$X"` doubles at each repetition.
MAX_EXPANSION = 100_000
_SET_BY_BASH = re.compile(r"[#?$!0-]|RANDOM|LINENO|SECONDS|HOSTNAME|PWD|UID|BASH\w*")
#: `{0..7}` and `{a,b}`, which bash expands outside quotes.
_BRACED = re.compile(r"\{(?:[^{}\s,]*,[^{}\s]*|-?\d+\.\.-?\d+(?:\.\.\d+)?|\w\.\.\w)\}")


class Environment:
    """The variables of a script at one of its commands."""

    def __init__(self, source: Source, given: Mapping[str, str]) -> None:
        self.source = source
        self.variables: dict[str, Value] = {name: [[(c, 0) for c in value]] for name, value in given.items()}
        self.sourced = ""
        """The file that the script has sourced, which can set any variable."""
        self.unset: set[str] = set()
        """Variables that the script uses but does not set."""
        self.used: set[str] = set()
        """Variables that the current command uses."""

    def store(self, name: str, value: Value) -> None:
        if sum(map(len, value)) > MAX_EXPANSION:
            what = f"the variable {name} expands to more than {MAX_EXPANSION} characters"
            place = self.source.place(next((chars[0][1] for chars in value if chars), 0))
            hint = "change the script variable whose value refers to the variable itself"
            raise Problems([Problem(what, place, hint, id="migrate-expansion-too-long")])
        self.variables[name] = value

    def fields(self, word: Parts) -> list[Chars]:
        """Expand a word, which becomes several if it has an array or an unquoted variable."""
        fields: list[list[tuple[str, int]]] = [[]]
        is_quoted = False
        for part in word:
            if part.kind == "text":
                fields[-1] += part.chars
                is_quoted |= part.quoted
                continue
            value = self.value(part)
            parts = value if part.quoted else [each for chars in value for each in split(chars)]
            is_quoted |= part.quoted and bool(value)
            for number, chars in enumerate(parts):
                if number:
                    fields.append([])
                fields[-1] += chars
        return [self.unbraced(word, chars) for chars in fields if chars or is_quoted]

    def unbraced(self, word: Parts, chars: Chars) -> Chars:
        """Return the word, or an Unknown if bash would make several of it."""
        plain = any(part.kind == "text" and not part.quoted and _BRACED.search(text_of(part.chars)) for part in word)
        if not plain:
            return chars
        why = "`migrate` does not expand braces"
        return [(Unknown.of(text_of(chars), why), chars[0][1])]

    def joined(self, word: Parts) -> Chars:
        """Expand a word that stays one, as after `NAME=`; the elements of an array are joined by spaces."""
        chars: list[tuple[str, int]] = []
        for part in word:
            for number, each in enumerate([part.chars] if part.kind == "text" else self.value(part)):
                chars += [(" ", each[0][1])] if number and each else []
                chars += each
        return chars

    def value(self, part: Part) -> Value:
        """Return the value of an expansion; an array has several elements, and an empty one has none."""
        index = part.chars[0][1]
        written = text_of(part.chars)
        if part.kind == "sum":
            return [[(total, index)] if isinstance(total := self.sum(written[3:-2], written), Unknown)
                    else [(character, index) for character in total]]  # fmt: skip
        if part.kind == "output":
            return [[(Unknown.of(written, because=self.unknowns_in(written)), index)]]
        if part.name in ("@", "*"):
            return []  # the script's arguments, which it is run without
        return self._variable(part, written, index)

    def _variable(self, part: Part, written: str, index: int) -> Value:
        value = self.lookup(part.name)
        if value is not None and part.subscript not in (None, "@", "*"):
            unknowns = [unknown for chars in value for unknown in unknowns_of(chars)]
            return [[(Unknown.of(written, "`migrate` does not read single elements", because=unknowns), index)]]
        is_empty = value is not None and not any(value)
        if part.sign in (":+", "+"):
            unknowns = [unknown for chars in value or () for unknown in unknowns_of(chars)]
            if unknowns:  # it may be empty
                return [[(Unknown.of(written, unknowns[0].why, because=unknowns[:1]), index)]]
            return [] if value is None or is_empty else [self.joined(part.word)]
        if value is not None and not (is_empty and part.sign.startswith(":")):
            return value
        if part.sign in (":-", "-", ":=", "=") and not (value is None and self.sourced):
            default = [self.joined(part.word)]
            if "=" in part.sign:  # `: ${NAME:=default}` also sets the variable
                self.store(part.name, default)
            return default
        return [[(self.unknown(part.name, f"${{{part.name}}}" if part.sign else written), index)]]

    def unknown(self, name: str, written: str) -> Unknown:
        """Return what stands for a variable without a value."""
        if _SET_BY_BASH.fullmatch(name):
            return Unknown.of(written)
        why = f"`{self.sourced}`, which may set it, is not read" if self.sourced and not name.isdigit() else ""
        return Unknown.of(written, why, (name,), is_unset=not self.sourced)

    def lookup(self, name: str) -> Value | None:
        self.used.add(name)
        if name not in self.variables and not _SET_BY_BASH.fullmatch(name):
            self.unset.add(name)
        return self.variables.get(name)

    def sum(self, expression: str, written: str) -> str:
        """Return the result of `$(( ))`, or an Unknown if a variable in it is unknown."""
        total = evaluate(expression, self.text_of)
        return Unknown.of(written, because=self.unknowns_in(expression)) if total is None else str(total)

    def unknowns_in(self, expression: str) -> list[Unknown]:
        """Return what makes an expression unknown."""
        names = dict.fromkeys(re.findall(r"\$\{?(\w+)" if "$" in expression else r"([A-Za-z_]\w*)", expression))
        values = {name: self.lookup(name) for name in names}
        unset = [Unknown.of(f"${name}", names=(name,)) for name, value in values.items() if value is None]
        return [
            *unset,
            *(unknown for value in values.values() for chars in value or () for unknown in unknowns_of(chars)),
        ]

    def text_of(self, name: str) -> str:
        """Return a variable's text for arithmetic; empty if it is not known."""
        value: Sequence[Chars] = self.lookup(name) or []
        return "" if any(map(unknowns_of, value)) else " ".join(map(text_of, value[:1]))
