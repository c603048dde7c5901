"""Parse a shell script into commands. Nothing is expanded here, and errors of syntax are passed over.

A word is a tuple of parts: text, and expansions such as `${NAME:-default}` and `$(( ))`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from neoxargs.migrate.shell.placeholders import placeholder_at
from neoxargs.migrate.shell.values import Chars

#: Characters of a `$( )` or `${ }` that are searched for its end, so that many open ones take linear time.
_MAX_BRACKETS = 4000
#: Takes the place of an Unknown in the text of an inner script.
_HOLE = "\ue000"
_SPECIAL = " \t\n;|&<>()"
_NAME = re.compile(r"\$(?:(\w+)|[@*#?$!-])", re.A)
#: `((i = 0; i < N; i++))`, which changes no other variable.
_COUNTING = re.compile(r"\(\(\s*(\w+)\s*=[^,;]*;[^,;]*;\s*(?:\+\+|--)?\1(?:\+\+|--|[-+*/]=[^,;]*)?\s*\)\)", re.A)
_BRACES = re.compile(r"(\w+|[@*])(?:\[([^]]*)\])?(?:(:?[-=+?])(.*))?", re.A | re.S)
_ASSIGNED = re.compile(r"(\w+)(\+?)=", re.A)
_FUNCTION = re.compile(r"(?:function[ \t]+)?([\w.-]+)[ \t]*\([ \t]*\)\s*|function[ \t]+([\w.-]+)\s*", re.A)
_REDIRECTION = re.compile(r"\d*(<<-?(?!<)|<<<|<>|<&|<|>>|>&|>\||>|&>>|&>)[ \t]*")
_KEYWORD = re.compile(r"(?:if|then|elif|else|fi|case|esac|for|select|while|until|do|done|[{}])(?![^\s;&|()<>])")
_CLOSING = ("then", "elif", "else", "fi", "esac", "do", "done", "}")


class Part(NamedTuple):
    """Text or one expansion. chars: as the script has it.

    kind: `name` is a variable, `sum` arithmetic, `output` a command substitution or what this reader cannot expand.
    sign: `:-` and the like, before `word`. subscript: of an array.
    """

    kind: Literal["text", "name", "sum", "output"]
    chars: Chars
    quoted: bool = False
    name: str = ""
    sign: str = ""
    word: tuple[Part, ...] = ()
    subscript: str | None = None


Parts: TypeAlias = tuple[Part, ...]


class Assignment(NamedTuple):
    """`NAME=value`, `NAME+=value` or, with `items`, `NAME=(a b)`."""

    name: str
    appends: bool
    value: Parts
    items: tuple[Parts, ...] | None
    written: Parts


@dataclass
class Here:
    """A here-document, whose body follows the line that it begins in."""

    end: str
    is_plain: bool
    body: Parts = ()
    begin: int = 0


class Simple(NamedTuple):
    """A command with its redirections. Assignments can stand anywhere: `export A=1` has one."""

    words: list[Parts | Assignment]
    target: Parts
    here: list[Here]
    begin: int


class AndOr(NamedTuple):
    """Pipelines joined by `&&` and `||`: the commands of each, with the sign before it."""

    pipelines: list[tuple[str, list[Command]]]
    begin: int


class Branching(NamedTuple):
    """An `if` with its `elif`s. otherwise: the commands after `else`."""

    arms: list[tuple[Commands, Commands]]
    otherwise: Commands


class Case(NamedTuple):
    subject: Parts
    arms: list[tuple[list[Parts], Commands]]
    begin: int


class For(NamedTuple):
    name: str
    words: list[Parts]
    body: Commands
    begin: int


class While(NamedTuple):
    """A loop with a condition. written: the condition as the script has it."""

    condition: Commands
    written: str
    body: Commands
    begin: int


class Group(NamedTuple):
    body: Commands
    is_subshell: bool


class Function(NamedTuple):
    """The name of a function, whose body is not read."""

    name: str


Command: TypeAlias = "Simple | Branching | Case | For | While | Group | Function"
Commands: TypeAlias = "list[AndOr]"


def parse(chars: Chars) -> Commands:
    """Parse a script, or the characters of one that another one starts."""
    return _Parser(chars).whole()


class _Parser:
    def __init__(self, chars: Chars) -> None:
        self.chars, self.at = chars, 0
        self.pending: list[Here] = []
        self.text = "".join(character if len(character) == 1 else _HOLE for character, _ in self.chars)

    def index(self, at: int) -> int:
        return self.chars[min(at, len(self.chars) - 1)][1] if self.chars else 0

    # -- commands ----------------------------------------------------------------------------------------------------

    def whole(self) -> Commands:
        commands = self.commands()
        while self.at < len(self.text):  # a closing keyword or bracket that nothing has opened
            self.at += len(self.keyword()) or 1
            commands += self.commands()
        return commands

    def commands(self, in_case: bool = False) -> Commands:
        """Read commands up to a keyword that does not begin one, a closing bracket or, in an arm of `case`, `;;`."""
        found: Commands = []
        while True:
            self.skip(newlines=True)
            keyword = self.keyword()
            if self.at >= len(self.text) or self.text[self.at] == ")" or keyword in _CLOSING:
                break
            if in_case and self.text.startswith(";;", self.at):
                break
            begin = self.at
            if self.text[self.at] in ";&|":
                self.at += 1
            else:
                found.append(self.and_or())
            assert self.at > begin
        return found

    def and_or(self) -> AndOr:
        pipelines, sign, begin = [], "", self.index(self.at)
        while True:
            pipelines.append((sign, self.pipeline()))
            self.skip()
            sign = self.text[self.at : self.at + 2]
            if sign not in ("&&", "||"):
                return AndOr(pipelines, begin)
            self.at += 2
            self.skip(newlines=True)

    def pipeline(self) -> list[Command]:
        commands: list[Command] = []
        while True:
            commands.append(self.command())
            self.skip()
            if self.text[self.at : self.at + 1] != "|" or self.text.startswith("||", self.at):
                return commands
            self.at += 1 + self.text.startswith("|&", self.at)
            self.skip(newlines=True)

    def command(self) -> Command:
        keyword = self.keyword()
        command: Command
        if self.text.startswith("((", self.at) and (end := self.brackets(self.at)) and self.text[end - 2] == ")":
            command = self.not_read(end - self.at)
            self.at = end
        elif self.text.startswith("(", self.at) or keyword == "{":
            self.at += 1
            command = Group(self.commands(), keyword != "{")
            self.at += self.text[self.at : self.at + 1] in (")", "}")
        elif keyword == "if":
            command = self.branching()
        elif keyword in ("for", "while"):
            command = self.loop(keyword)
        elif keyword == "case":
            command = self.case()
        elif keyword in ("select", "until"):
            command = self.not_read(len(keyword))
            self.loop(keyword)
        elif match := _FUNCTION.match(self.text, self.at):
            self.at = match.end()
            self.command()
            command = Function(match[1] or match[2])
        else:
            command = self.simple()
        if not isinstance(command, Simple) and self.redirects():
            self.simple()  # the redirections of a compound command
        return command

    def not_read(self, length: int) -> Simple:
        """Return a construct as a command of one word, which ends in a problem if it is reached."""
        return Simple([(Part("text", self.chars[self.at : self.at + length]),)], (), [], self.index(self.at))

    def branching(self) -> Branching:
        arms = []
        while self.keyword() in ("if", "elif"):
            self.at += len(self.keyword())
            condition = self.commands()
            self.take("then")
            arms.append((condition, self.commands()))
        otherwise = self.commands() if self.take("else") else []
        self.take("fi")
        return Branching(arms, otherwise)

    def case(self) -> Case:
        index = self.index(self.at)
        self.at += len("case")
        self.skip()
        subject = self.word()
        self.skip(newlines=True)
        if self.text.startswith("in", self.at):
            self.at += 2
        arms = []
        while self.at < len(self.text):
            self.skip(newlines=True)
            if self.keyword() == "esac" or self.at >= len(self.text):
                break
            self.at += self.text.startswith("(", self.at)
            patterns: list[Parts] = []
            while self.at < len(self.text) and self.text[self.at] != ")":
                self.skip(newlines=True)
                begin = self.at
                patterns.append(self.word())
                self.at += self.text[self.at : self.at + 1] == "|" or self.at == begin
            self.at += 1
            arms.append((patterns, self.commands(in_case=True)))
            self.at += 2 * self.text.startswith(";;", self.at)
            if self.keyword() not in ("esac", ""):
                self.at += len(self.keyword())
        self.take("esac")
        return Case(subject, arms, index)

    def loop(self, keyword: str) -> Command:
        index = self.index(self.at)
        self.at += len(keyword)
        self.skip()
        if keyword in ("while", "until"):
            begin, condition = self.at, self.commands()
            return While(condition, self.text[begin : self.at], self.body(), index)
        if self.text.startswith("((", self.at) and (end := self.brackets(self.at)):
            header, written = self.text[self.at : end], self.not_read(end - self.at)
            passes: Parts = (Part("output", self.chars[self.at : end]),)  # of which nothing is known
            self.at = end
            body, counting = self.body(), _COUNTING.fullmatch(header)
            return For(counting[1], [passes], body, index) if counting else written
        name = "".join(character for part in self.word() for character, _ in part.chars)
        self.skip(newlines=True)
        words: list[Parts] = [(Part("name", [("$@", index)], True, "@"),)]
        if re.compile(r"in(?!\S)").match(self.text, self.at):
            self.at += 2
            words = self.words_until("\n;")
        return For(name, words, self.body(), index)

    def body(self) -> Commands:
        self.skip(newlines=True)
        self.at += self.text[self.at : self.at + 1] == ";"
        self.skip(newlines=True)
        self.take("do")
        body = self.commands()
        self.take("done")
        return body

    def take(self, keyword: str) -> bool:
        """Go past a keyword if it is the next word."""
        self.skip(newlines=True)
        found = self.keyword() == keyword
        self.at += len(keyword) if found else 0
        return found

    def keyword(self) -> str:
        match = _KEYWORD.match(self.text, self.at)
        return match[0] if match else ""

    def simple(self) -> Simple:
        begin, words, target, here = self.at, list[Parts | Assignment](), Parts(), list[Here]()
        is_test = re.compile(r"\[\[\s").match(self.text, self.at) is not None
        while True:
            self.skip()
            if self.at >= len(self.text) or (self.text[self.at] in "\n;|&)" and not self.redirects() and not is_test):
                break
            if is_test and (sign := re.compile(r"&&|\|\||[<>()\n]").match(self.text, self.at)):
                if sign[0] == "\n" and not words:
                    break
                words += [(Part("text", self.chars[self.at : sign.end()], True),)] if sign[0] != "\n" else []
                self.at = sign.end()
            elif is_redirection := self.redirects():
                self.at = is_redirection.end()
                if is_redirection[1].startswith("<<") and is_redirection[1] != "<<<":
                    plain = self.text[self.at : self.at + 1] in ("'", '"', "\\")
                    end = "".join(character for part in self.word() for character, _ in part.chars)
                    here.append(Here(end, plain))
                    self.pending.append(here[-1])
                elif self.text[self.at : self.at + 1] == "(":  # <( )
                    self.at = self.brackets(self.at) or len(self.text)
                else:
                    word = self.word()
                    target = word if ">" in is_redirection[1] else target
            else:
                words.append(self.assignment() or self.word(is_test=is_test))
                is_test &= self.text[self.at - 2 : self.at] != "]]"
        if self.at == begin:
            self.at += 1  # a character that begins no command
        return Simple(words, target, here, self.index(begin))

    def redirects(self) -> re.Match[str] | None:
        """Return the redirection that begins here, unless it is a placeholder such as `<Specify path>`."""
        match = _REDIRECTION.match(self.text, self.at)
        return match if match and not placeholder_at(self.text, self.at) else None

    def skip(self, newlines: bool = False) -> None:
        """Skip spaces, continued lines and comments; with `newlines`, also line breaks and the documents after them."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "\n":
                if not newlines:
                    return
                self.at += 1
                for each in self.pending:
                    self.read_here(each)
                self.pending = []
            elif self.text[self.at].isspace():
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def read_here(self, here: Here) -> None:
        # Tabs before the end word, as `<<-` allows.
        close = re.compile(rf"^\t*{re.escape(here.end)}$", re.M).search(self.text, self.at)
        stop = close.start() if close else len(self.text)
        here.begin = self.index(self.at)
        if here.is_plain:
            here.body = (Part("text", self.chars[self.at : stop], True),)
        else:
            here.body = _Parser(self.chars[self.at : stop]).quoted("")
        self.at = close.end() if close else stop

    # -- words -------------------------------------------------------------------------------------------------------

    def assignment(self) -> Assignment | None:
        match = _ASSIGNED.match(self.text, self.at)
        if match is None:
            return None
        begin, self.at = self.at, match.end()
        items = None
        value: Parts = ()
        if self.text.startswith("(", self.at):
            self.at += 1
            items = tuple(self.words_until(")"))
            self.at += 1
        else:
            value = self.word(may_be_empty=True)
        written = (Part("text", self.chars[begin : match.end()]), *value)
        return Assignment(match[1], bool(match[2]), value, items, written)

    def words_until(self, ends: str) -> list[Parts]:
        words: list[Parts] = []
        while True:
            self.skip(newlines="\n" not in ends)
            if self.at >= len(self.text) or self.text[self.at] in ends:
                return words
            words.append(self.word())

    def word(self, may_be_empty: bool = False, is_test: bool = False) -> Parts:
        """Read one word, which has at least one character unless `may_be_empty`."""
        parts, plain, begin, depth = list[Part](), list[tuple[str, int]](), self.at, 0
        while self.at < len(self.text):
            character = self.text[self.at]
            if taken := self.literal(depth):
                plain += taken
                depth += (character == "(") - (character == ")")
            elif character in "'\"$`":
                parts += [Part("text", plain)] if plain else []
                plain = []
                parts += self.quotes_or_expansion(character)
            else:
                break
        if self.at == begin and not may_be_empty:  # a special character where none is expected
            self.at += 1
        is_stream = self.text[self.at : self.at + 1] in ("<", ">") and not parts and not is_test
        if is_stream and all(character.isdigit() for character, _ in plain):
            plain = []  # the number of a stream, as in `2>`
        return (*parts, Part("text", plain)) if plain else tuple(parts)

    def literal(self, depth: int) -> Chars:
        """Read text that stands for itself; nothing if the word ends here or has a quote or `$`. depth: of brackets."""
        begin, character = self.at, self.text[self.at]
        if unsplit := placeholder_at(self.text, self.at):
            self.at += len(unsplit)
            return self.chars[begin : self.at]
        if character == "\\" and not self.text.startswith("\\\n", begin):
            self.at += 2
            return self.chars[begin + 1 : begin + 2]
        is_bracket = character == "(" or (character == ")" and depth > 0)
        if not is_bracket and (character in "\\'\"$`" + _SPECIAL or character.isspace()):
            return []
        self.at += 1
        return self.chars[begin : begin + 1]

    def quotes_or_expansion(self, character: str) -> Sequence[Part]:
        if character == '"':
            self.at += 1
            return self.quoted('"')
        if character != "'":
            return [self.expansion(quoted=False)]
        begin, end = self.at + 1, self.text.find("'", self.at + 1)
        self.at = (end if end >= 0 else len(self.text)) + 1
        return [Part("text", self.chars[begin : self.at - 1], True)]

    def quoted(self, end: str) -> Parts:
        """Read up to a closing double quote, or the whole text if `end` is empty."""
        parts, plain = list[Part](), list[tuple[str, int]]()
        while self.at < len(self.text) and self.text[self.at] != end:
            character = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif character == "\\" and self.text[self.at + 1 : self.at + 2] in ("\\", "$", "`", end or "\\"):
                plain.append(self.chars[self.at + 1])
                self.at += 2
            elif character in "$`":
                parts.append(Part("text", plain, True))
                plain = []
                parts.append(self.expansion(quoted=True))
            else:
                plain.append(self.chars[self.at])
                self.at += 1
        self.at += 1
        # an empty text makes a word of its own only if nothing else is in the quotes
        return tuple(part for part in [*parts, Part("text", plain, True)] if part.chars or not parts)

    def expansion(self, quoted: bool) -> Part:
        """Read the variable, arithmetic or command substitution at this `$` or backquote."""
        begin = self.at
        part = self.unplaced_expansion(quoted)
        return part._replace(chars=self.chars[begin : self.at], quoted=quoted)

    def unplaced_expansion(self, quoted: bool) -> Part:
        begin = self.at
        if self.text.startswith("$((", begin) and (end := self.brackets(begin + 1)) and self.text[end - 2] == ")":
            self.at = end
            return Part("sum", ())
        if match := _NAME.match(self.text, begin):
            self.at = match.end()
            return Part("name", (), name=match[0][1:])
        if self.text[begin] == "`":
            end = self.text.find("`", begin + 1) + 1
        else:
            end = self.brackets(begin + 1) if self.text[begin + 1 : begin + 2] in ("(", "{") else 0
        self.at = end or begin + 1
        match = _BRACES.fullmatch(self.text, begin + 2, end - 1) if self.text[begin + 1 : begin + 2] == "{" else None
        if not end or match is None:
            return Part("output" if end else "text", ())
        inner = _Parser(self.chars[match.start(4) : match.end(4)] if match[4] else [])
        word = inner.quoted_default() if quoted else inner.default()
        return Part("name", (), name=match[1], sign=match[3] or "", word=word, subscript=match[2])

    def quoted_default(self) -> Parts:
        """Read the text after `:-` within quotes, in which a single quote is literal."""
        parts = self.quoted('"')
        while self.at < len(self.text):
            parts += self.quoted('"')
        return parts

    def default(self) -> Parts:
        """Read the text after `:-` outside quotes, in which spaces do not end the word."""
        parts: list[Part] = []
        while self.at < len(self.text):
            if self.text[self.at] in _SPECIAL:
                parts.append(Part("text", [self.chars[self.at]]))
                self.at += 1
            else:
                parts += self.word()
        return tuple(parts)

    def brackets(self, at: int) -> int:
        """Return the index after the bracket that closes the one here; 0 if it is not closed."""
        opens = self.text[at]
        closes = {"(": ")", "{": "}"}[opens]
        depth, quote = 0, ""
        while at < min(len(self.text), self.at + _MAX_BRACKETS):
            character = self.text[at]
            if character == "\\":
                at += 1
            elif quote:
                quote = "" if character == quote else quote
            elif character == "'" and opens == "(":
                quote = character
            elif character == opens:
                depth += 1
            elif character == closes:
                depth -= 1
                if not depth:
                    return at + 1
            at += 1
        return 0
