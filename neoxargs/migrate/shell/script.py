"""Read the commands that a shell script would start, and the here-documents it writes, without running it.

Where a condition or the passes of a loop are not known, each body is read, and what they change is unknown afterwards,
with the place of the condition. A construct that published scripts do not use ends in a problem when it is reached. So
nothing that is known is a guess; `deepy migrate --run` runs what cannot be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.migrate.shell import conditions
from neoxargs.migrate.shell.expand import Environment
from neoxargs.migrate.shell.syntax import (
    AndOr,
    Assignment,
    Branching,
    Case,
    Command,
    Commands,
    For,
    Function,
    Group,
    Simple,
    While,
    parse,
)
from neoxargs.migrate.shell.values import Chars, Source, Unknown, Value, Word, split, text_of, unknowns_of

#: What to do where a script cannot be read.
RUN_IT = "if you trust the script, add --run, which runs it with stubs in place of its launchers"
_FLAG = re.compile(r"(?:^|\s)--[a-zA-Z]")
#: Commands that change variables, arguments or the course of the script in a way that is not read, as functions do.
_NOT_READ = re.compile(
    r"(local|declare|typeset|let|read|mapfile|readarray|getopts|break|continue|return|select|shift|until)( .*)?"
    r"|printf -v .*|set (.* )?-- .*|\w+\[[^]]*\]\+?=.*|\(.*|\{( .*)?",
    re.DOTALL,
)
#: Commands that practically never fail, so what follows after `&&` is executed.
_SUCCEED = {":", "true", "cd", "pushd", "mkdir", "echo", "printf", "source", ".", "export", "module", "eval", "set"}
#: Files that are sourced for the programs that they provide, rather than for settings of the run.
_USERS_ENVIRONMENT = ("activate", "conda.sh", "profile", ".profile", ".bashrc", ".bash_profile")
#: Nesting depth of `bash -c` and `eval`.
_MAX_DEPTH = 8
#: Passes of a loop and commands of a script that are read.
_MAX_PASSES, _MAX_COMMANDS = 200, 20_000


@dataclass
class Script:
    """The parts of a script that can be read without running it."""

    commands: list[list[Word]] = field(default_factory=list)
    conditions: dict[int, Place] = field(default_factory=dict)
    """The condition or loop that is not known and decides whether the command of this index is started."""
    printed: list[list[Word]] = field(default_factory=list)
    """`echo` and `printf` commands; some scripts print the command that they submit elsewhere."""
    flag_lines: list[list[Word]] = field(default_factory=list)
    """Commands that begin with a flag, usually because the line above does not end with a `\\`."""
    documents: dict[str, Text | None] = field(default_factory=dict)
    """Here-documents by the file they are written to, padded with empty lines to keep their line numbers; None for one
    that depends on a condition that is not known."""
    unset: set[str] = field(default_factory=set)
    """Variables that the script uses but does not set."""
    overwritten: dict[str, Place] = field(default_factory=dict)
    """Variables that were set before the script starts, but that it sets to a value of its own, and where."""
    variable_flags: list[Word] = field(default_factory=list)
    """Flags in the values of the script's variables; used if another script is meant to source this one."""


def read_script(text: Text, given: Mapping[str, str] | None = None) -> Script:
    """Read a script. given: variables that are set before it starts. Raises Problems if it cannot be read."""
    source = Source(text)
    reader = _Reader(source, given or {})
    try:
        is_ended = reader.run(parse([*((character, i) for i, character in enumerate(source.text))]))
    except RecursionError:
        raise _too_much("the commands or expansions of this script are nested too deep", source) from None
    script = reader.script
    script.variable_flags = [] if is_ended else [source.word(chars) for chars in reader.variable_flags()]
    script.unset, script.documents = reader.unset, reader.documents
    return script


class _Reader(Environment):
    """Runs the commands on paper. A command returns whether the script ends with it."""

    def __init__(self, source: Source, given: Mapping[str, str]) -> None:
        super().__init__(source, given)
        self.script, self.given = Script(), frozenset(given)
        self.documents: dict[str, Text | None] = {}
        self.functions: set[str] = set()
        self.depth = self.count = 0
        self.status: bool | None = True
        """Whether the last command succeeded; None if that is unknown."""
        self.doubted: list[Unknown] = []
        """What made the last conditions unknown."""
        self.is_assumed = False
        """Whether the last condition was answered by a variable being unset."""

    # -- lists of commands -------------------------------------------------------------------------------------------

    def run(self, commands: Commands) -> bool:
        return any(map(self.run_joined, commands))

    def run_joined(self, joined: AndOr) -> bool:
        """Run pipelines joined by `&&` and `||`, of which the status of the ones before decides."""
        for number, (sign, pipeline) in enumerate(joined.pipelines):
            if sign and self.status is None:
                rest = AndOr([("", pipeline), *joined.pipelines[number + 1 :]], joined.begin)
                return self.run_undecided([lambda rest=rest: self.run_joined(rest)], joined.begin)  # type: ignore[misc]
            if sign and self.status != (sign == "&&"):
                continue
            if self.run_pipeline(pipeline):
                return True
        return False

    def run_pipeline(self, commands: Sequence[Command]) -> bool:
        if len(commands) == 1:
            return self.run_command(commands[0])
        for command in commands:
            self.run_apart(lambda command=command: self.run_command(command))  # type: ignore[misc]
        self.status = None
        return False

    def run_apart(self, run: Callable[[], object]) -> None:
        """Run something in a process of its own, whose variables do not come back."""
        before = dict(self.variables)
        run()
        self.variables = before

    def run_command(self, command: Command) -> bool:
        self.count += 1
        if self.count > _MAX_COMMANDS:
            raise _too_much(f"this script runs more than {_MAX_COMMANDS} commands", self.source)
        is_ended = False
        match command:
            case Simple():
                is_ended = self.run_simple(command)
            case Branching():
                is_ended = self.run_if(command.arms, command.otherwise)
            case Case():
                is_ended = self.run_case(command)
            case For():
                is_ended = self.run_for(command)
            case While():
                is_ended = self.run_while(command)
            case Group(is_subshell=False):
                is_ended = self.run(command.body)
            case Group():
                self.run_apart(lambda: self.run(command.body))
            case Function():
                self.functions.add(command.name)
        return is_ended

    # -- conditions and loops ----------------------------------------------------------------------------------------

    def run_undecided(self, bodies: Sequence[Callable[[], bool]], begin: int, is_complete: bool = False) -> bool:
        """Run each of the bodies, at most one of which the script would run.

        What they change is unknown afterwards. begin: the index of the condition. is_complete: one of them does run.
        """
        place, names = self.source.place(begin), [name for unknown in self.doubted for name in unknown.names]
        before, count = (self.variables, self.documents), len(self.script.commands)
        states = [] if is_complete else [before]
        for body in bodies:
            self.variables, self.documents = dict(before[0]), dict(before[1])
            if not body():  # a script that goes on has not ended in this body
                states.append((self.variables, self.documents))
        for number in range(count, len(self.script.commands)):
            self.script.conditions.setdefault(number, place)
        if not states:
            return True
        self.variables, self.documents = dict(states[0][0]), dict(states[0][1])
        for name in dict.fromkeys(name for variables, _ in states for name in variables):
            values = [variables.get(name) for variables, _ in states]
            if any(value is None or _texts(value) != _texts(values[0] or []) for value in values):
                self.variables[name] = [[(Unknown.of(f"${name}", names=names, where=place), begin)]]
        for name in dict.fromkeys(name for _, documents in states for name in documents):
            if any(documents.get(name) != self.documents.get(name) for _, documents in states):
                self.documents[name] = None
        self.status = None
        return False

    def run_undecided_loop(self, body: Callable[[], bool], begin: int) -> bool:
        """Run a loop whose number of passes is unknown: what it changes is unknown in it and after."""
        script, self.script = self.script, Script()
        self.run_undecided([body], begin)
        self.script = script
        self.run_undecided([body], begin)
        return False

    def run_if(self, arms: Sequence[tuple[Commands, Commands]], otherwise: Commands) -> bool:
        if not arms:
            return self.run(otherwise)
        (test, body), *rest = arms
        self.doubted, self.is_assumed = [], False
        if self.run(test):
            return True
        if self.status is None and test:
            bodies = [lambda: self.run(body), lambda: self.run_if(rest, otherwise)]
            return self.run_undecided(bodies, test[-1].begin, is_complete=True)
        if self.status is False:
            return self.run_if(rest, otherwise)
        before, is_assumed = dict(self.variables), self.is_assumed
        is_ended = self.run(body)
        if is_ended and is_assumed:  # `if [ -z "$1" ]; then echo usage; exit; fi`: it is to be given
            self.variables = before
            return self.run_if(rest, otherwise)
        return is_ended

    def run_case(self, case: Case) -> bool:
        subject = self.joined(case.subject)
        arms = [([text_of(self.joined(each)) for each in patterns], body) for patterns, body in case.arms]
        self.doubted = [*unknowns_of(subject)]
        if self.doubted:
            bodies = [lambda body=body: self.run(body) for _, body in arms]
            return self.run_undecided(bodies, case.begin, any("*" in patterns for patterns, _ in arms))
        body = next((body for patterns, body in arms if any(fnmatchcase(text_of(subject), p) for p in patterns)), [])
        return self.run(body)

    def run_for(self, loop: For) -> bool:
        words = [field for each in loop.words for field in self.fields(each)]
        self.doubted = [unknown for chars in words for unknown in unknowns_of(chars)]

        def run_pass(value: Chars) -> bool:
            self.store(loop.name, [value])
            return self.run(loop.body)

        if self.doubted or len(words) > _MAX_PASSES:
            unknown = Unknown.of(f"${loop.name}", where=self.source.place(loop.begin), because=self.doubted)
            return self.run_undecided_loop(lambda: run_pass([(unknown, loop.begin)]), loop.begin)
        return any(map(run_pass, words))

    def run_while(self, loop: While) -> bool:
        if "$#" in loop.written:
            return False  # a loop over the script's arguments, which it is run without
        self.doubted = []
        self.run(loop.condition)
        return self.status is not False and self.run_undecided_loop(lambda: self.run(loop.body), loop.begin)

    # -- simple commands ---------------------------------------------------------------------------------------------

    def run_simple(self, command: Simple) -> bool:
        self.used = set()
        first = command.words[0] if command.words else ()
        is_export = not isinstance(first, Assignment) and text_of(self.joined(first)) in ("export", "readonly")
        if is_export or all(isinstance(word, Assignment) for word in command.words):
            self.assign([word for word in command.words if isinstance(word, Assignment)], command.begin)
            self.write_documents(command)
            self.status = True
            return False
        words = [field for word in command.words
                 for field in self.fields(word.written if isinstance(word, Assignment) else word)]  # fmt: skip
        self.write_documents(command)
        return bool(words) and self.run_words(words, command.begin)

    def assign(self, assignments: Sequence[Assignment], index: int) -> None:
        for each in assignments:
            before: Value = (self.lookup(each.name) or []) if each.appends else []
            if each.items is not None:
                value: Value = [*before, *(field for word in each.items for field in self.fields(word))]
                if any(re.match(r"\[[^]]*\]=", text_of(chars)) for chars in value):
                    raise self.unreadable(f"{each.name}=([...]=...)", index)
            else:
                first, *others = before or [[]]
                value = [[*first, *self.joined(each.value)], *others]
            self.store(each.name, value, index)

    def unreadable(self, text: str, index: int) -> Problems:
        what = f"`{' '.join(text.split())[:60]}` is not understood without running the script"
        return Problems([Problem(what, self.source.place(index), RUN_IT, id="migrate-not-readable")])

    def store(self, name: str, value: Value, index: int = 0) -> None:
        super().store(name, value)
        if name in self.given and name not in self.used:
            self.script.overwritten.setdefault(name, self.source.place(index))

    def write_documents(self, command: Simple) -> None:
        """Keep the here-documents that a command writes to a file."""
        for here in command.here:
            into, body = text_of(self.joined(command.target)), text_of(self.joined(here.body))
            self.documents[into] = Text(self.source.name, "\n" * (self.source.place(here.begin).line - 1) + body)

    def run_words(self, words: Sequence[Chars], index: int) -> bool:
        texts = [text_of(word) for word in words]
        name = texts[0]
        if name == "exit":
            return True
        if name == "!" and len(words) > 1:
            is_ended = self.run_words(words[1:], index)
            self.status = None if self.status is None else not self.status
            return is_ended
        if name in self.functions or _NOT_READ.fullmatch(" ".join(texts)):
            raise self.unreadable(" ".join(texts), index)
        if name in ("[", "[[", "test"):
            self.run_condition([word for word in words if text_of(word) not in ("[", "]", "[[", "]]", "test")])
            return False
        self.status = True if name in _SUCCEED else False if name == "false" else None
        if name == "eval":
            return self.run_inner([pair for word in words[1:] for pair in [*word, (" ", index)]])
        if name in ("source", "."):
            is_programs = os.path.basename("".join(texts[1:2])) in _USERS_ENVIRONMENT
            self.sourced = self.sourced if is_programs else " ".join(texts)
        elif name == "unset":
            for each in texts[1:]:
                self.store(each, [[]], index)
        else:
            self.add_command(words, texts)
        return False

    def run_condition(self, words: Sequence[Chars]) -> None:
        self.status = conditions.evaluate(words)
        doubted = [unknown for word in words for unknown in unknowns_of(word)]
        self.is_assumed = self.status is not None and bool(doubted)
        self.doubted += doubted

    def run_inner(self, chars: Chars) -> bool:
        """Run a script that is the value of a word, as in `eval` and `bash -c`, unless it is nested too deep."""
        self.depth += 1
        is_ended = self.depth <= _MAX_DEPTH and self.run(parse(chars))
        self.depth -= 1
        return is_ended

    def add_command(self, words: Sequence[Chars], texts: Sequence[str]) -> None:
        command = [self.source.word(chars) for chars in words]
        if texts[0] in ("echo", "printf"):
            self.script.printed.append(command)
        if texts[0] in ("echo", "printf", "true", "false"):
            return
        self.script.commands.append(command)
        if self.depth == 0 and texts[0].startswith("--"):
            self.script.flag_lines.append(command)
        for number, inner in enumerate(words[1:], 1):
            if _is_command(texts, number):
                self.run_apart(lambda inner=inner: self.run_inner(inner))  # type: ignore[misc]

    def variable_flags(self) -> list[Chars]:
        """Return the words of variables that contain flags, except variables that are part of another one."""
        words = {name: [part for chars in value for part in split(chars) if part]
                 for name, value in self.variables.items()}  # fmt: skip
        flags = {name: {chars[0][1] for chars in of if text_of(chars[:2]) == "--"} for name, of in words.items()}
        outermost = [name for name in flags if flags[name] and not any(flags[name] < each for each in flags.values())]
        return [chars for name in outermost for chars in words[name]]


def _too_much(what: str, source: Source) -> Problems:
    hint = "migrate a file that contains only the training command and its variables"
    return Problems([Problem(what, source.place(0), hint, id="migrate-nested-too-deep")])


def _is_command(texts: Sequence[str], number: int) -> bool:
    """Return whether a word is a command: the argument of `bash -c`, or several flags in one quoted word."""
    is_of_shell = number > 1 and texts[number - 1] in ("-c", "-lc") and texts[number - 2].endswith("sh")
    return is_of_shell or len(_FLAG.findall(texts[number])) > 1


def _texts(value: Value) -> list[str]:
    return [text_of(chars) for chars in value]
