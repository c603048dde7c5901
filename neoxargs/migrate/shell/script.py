"""Read the commands that a shell script would start, and the here-documents it writes, without running it.

Where a condition is unknown, each of its branches is read. A variable that they set differently is unknown after them,
as is one that a loop changes whose number of passes is unknown. So nothing that is known afterwards is a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.migrate.shell import conditions
from neoxargs.migrate.shell.arithmetic import assigned, evaluate
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
    Parts,
    Pipeline,
    Simple,
    Sum,
    While,
    parse,
)
from neoxargs.migrate.shell.values import (
    Chars,
    Source,
    Unknown,
    Value,
    Word,
    merged,
    split,
    text_of,
    unknowns_of,
)

_FLAG = re.compile(r"(?:^|\s)--[a-zA-Z]")
#: Commands before an assignment, which can have options such as `declare -a`.
_DECLARATIONS = ("export", "local", "declare", "typeset", "readonly")
#: Commands that set the variables that they name, in a way that is not read.
_SETTERS = ("read", "mapfile", "readarray", "getopts")
#: Commands that practically never fail, so what follows after `&&` is executed.
_SUCCEED = {":", "cd", "pushd", "mkdir", "echo", "printf", "source", ".", "export", "module", "eval", "set"}
_ENDS = ("exit", "return", "break", "continue")
#: Files that are sourced for the programs that they provide, rather than for settings of the run.
_USERS_ENVIRONMENT = ("activate", "conda.sh", "profile", ".profile", ".bashrc", ".bash_profile")
#: Nesting depth of `bash -c`, `eval` and functions.
_MAX_DEPTH = 8
#: Passes of a loop and commands of a script that are read.
_MAX_PASSES, _MAX_COMMANDS = 200, 20_000


@dataclass
class Script:
    """The parts of a script that can be read without running it."""

    commands: list[list[Word]] = field(default_factory=list)
    printed: list[list[Word]] = field(default_factory=list)
    """`echo` and `printf` commands; some scripts print the command that they submit elsewhere."""
    flag_lines: list[list[Word]] = field(default_factory=list)
    """Commands that begin with a flag, usually because the line above does not end with a `\\`."""
    documents: dict[str, Text | None] = field(default_factory=dict)
    """Here-documents by the file they are written to, padded with empty lines to keep their line numbers; None for one
    that differs between the branches of a condition."""
    unset: set[str] = field(default_factory=set)
    """Variables that the script uses but does not set."""
    overwritten: dict[str, Place] = field(default_factory=dict)
    """Variables that were set before the script starts, but that it sets to a value of its own, and where."""
    variable_flags: list[Word] = field(default_factory=list)
    """Flags in the values of the script's variables; used if another script is meant to source this one."""


def read_script(text: Text, given: Mapping[str, str] | None = None) -> Script:
    """Read a script. given: variables that are set before it starts. Raises Problems if it is nested too deep."""
    source = Source(text)
    reader = _Reader(source, given or {})
    end = reader.run(parse([*((character, i) for i, character in enumerate(source.text))], source))
    script = reader.script
    if not any(_has_flags(command) for command in [*script.commands, *script.printed]):
        # functions for another script to call
        for function in [function for name, function in reader.functions.items() if name not in reader.called]:
            reader.run_command(function.body)
    script.variable_flags = [source.word(chars) for chars in reader.variable_flags()] if end != "exit" else []
    script.unset, script.documents = reader.unset, reader.documents
    return script


class _Condition(NamedTuple):
    """A condition whose outcome is unknown. names: the variables that would make it known."""

    text: str
    begin: int
    names: Sequence[str]


class _Reader(Environment):
    """Runs the commands on paper. Commands return "", or which of `_ENDS` the commands after them are skipped for."""

    def __init__(self, source: Source, given: Mapping[str, str]) -> None:
        super().__init__(source, given)
        self.script, self.given = Script(), frozenset(given)
        self.documents: dict[str, Text | None] = {}
        self.functions: dict[str, Function] = {}
        self.called: set[str] = set()
        self.stored: set[str] = set()
        """Variables that were set since the loop or function began."""
        self.locals: dict[str, Value | None] = {}
        """The values that the local variables of the function had before it."""
        self.depth = self.count = 0
        self.status: bool | None = True
        """Whether the last command succeeded; None if that is unknown."""
        self.doubted: list[Unknown] = []
        """What made the last conditions unknown."""
        self.is_assumed = False
        """Whether the last condition was answered by a variable being unset."""
        self.cut: _Condition | None = None
        """The condition on which a loop or function ends early."""

    # -- lists of commands -------------------------------------------------------------------------------------------

    def run(self, commands: Commands) -> str:
        for each in commands:
            if end := self.run_joined(each):
                return end
        return ""

    def run_joined(self, joined: AndOr) -> str:
        """Run pipelines joined by `&&` and `||`, of which the status of the ones before decides."""
        for number, (sign, pipeline) in enumerate(joined.pipelines):
            if sign and self.status is None:
                rest = AndOr([("", pipeline), *joined.pipelines[number + 1 :]])
                condition = self.condition(joined.pipelines[number - 1][1])
                return self.branch([lambda rest=rest: self.run_joined(rest), lambda: ""], condition)  # type: ignore[misc]
            if sign and self.status != (sign == "&&"):
                continue
            if end := self.run_pipeline(pipeline):
                return end
        return ""

    def run_pipeline(self, pipeline: Pipeline) -> str:
        if len(pipeline.commands) > 1:
            for command in pipeline.commands:
                self.run_apart(lambda command=command: self.run_command(command))  # type: ignore[misc]
            self.status = None
            return ""
        end = self.run_command(pipeline.commands[0])
        if pipeline.negated and self.status is not None:
            self.status = not self.status
        return end

    def run_apart(self, run: Callable[[], object]) -> None:
        """Run something in a process of its own, whose variables do not come back."""
        before = dict(self.variables)
        run()
        self.variables = before

    def run_command(self, command: Command) -> str:
        self.count += 1
        if self.count > _MAX_COMMANDS:
            what = f"this script runs more than {_MAX_COMMANDS} commands"
            hint = "migrate a file that contains only the training command and its variables"
            raise Problems([Problem(what, self.source.place(0), hint, id="migrate-nested-too-deep")])
        runs: dict[type, Callable[[Any], str]] = {
            Simple: self.run_simple, Sum: self.run_test, Branching: self.run_branching, Case: self.run_case,
            For: self.run_for, While: self.run_while, Group: self.run_group, Function: self.define,
        }  # fmt: skip
        return runs[type(command)](command)

    def run_group(self, group: Group) -> str:
        if not group.is_subshell:
            return self.run(group.body)
        self.run_apart(lambda: self.run(group.body))
        return ""

    def define(self, function: Function) -> str:
        self.functions[function.name] = function
        return ""

    def run_test(self, command: Sum) -> str:
        total = self.run_sum(command.text, command.begin)
        self.status = None if total is None else total != 0
        return ""

    def run_branching(self, command: Branching) -> str:
        return self.run_if(command.arms, command.otherwise)

    # -- branches ----------------------------------------------------------------------------------------------------

    def condition(self, pipeline: Pipeline) -> _Condition:
        """Describe the condition that was evaluated last, for messages."""
        doubted, self.doubted = self.doubted, []
        first = pipeline.commands[0]
        text, index = "the commands", 0
        if isinstance(first, Simple):
            text, index = " ".join(map(_text_of_word, first.words)), first.begin
        elif isinstance(first, Sum):
            text, index = f"(( {first.text.strip()} ))", first.begin
        return _Condition(text, index, [name for unknown in doubted for name in unknown.names])

    def branch(self, bodies: Sequence[Callable[[], str]], condition: _Condition) -> str:
        """Run each of the bodies, only one of which the script would run."""
        variables, documents = self.variables, self.documents
        after, ends = [], []
        for body in bodies:
            self.variables, self.documents = dict(variables), dict(documents)
            ends.append(body())
            if ends[-1] != "exit":  # a script that goes on has not taken this branch
                after.append((self.variables, self.documents))
            if ends[-1] in ("return", "break", "continue"):
                self.cut = condition
        if not after or all(ends):
            self.variables, self.documents = after[0] if after else (variables, documents)
            return next(filter(None, ends), "")
        self.merge(after, condition)
        self.status = None
        return ""

    def merge(self, states: Sequence[tuple[dict[str, Value], dict[str, Text | None]]], condition: _Condition) -> None:
        """Continue with what is the same in all of the states."""
        self.variables, self.documents = {}, {}
        why = f"it depends on `{condition.text}` in line {self.source.place(condition.begin).line}"
        for name in dict.fromkeys(name for variables, _ in states for name in variables):
            values = [variables.get(name) for variables, _ in states]
            first = values[0]
            texts = [None if value is None else [*map(text_of, value)] for value in values]
            if first is not None and all(text == texts[0] for text in texts):
                self.variables[name] = first
            else:
                self.variables[name] = merged(name, values, why, condition.names)
        for name in dict.fromkeys(name for _, documents in states for name in documents):
            found = [documents.get(name) for _, documents in states]
            self.documents[name] = found[0] if all(each == found[0] for each in found) else None

    def run_if(self, arms: Sequence[tuple[Commands, Commands]], otherwise: Commands) -> str:
        if not arms:
            return self.run(otherwise)
        (test, body), *rest = arms
        self.doubted, self.is_assumed = [], False
        if end := self.run(test):
            return end
        if self.status is None and test:
            condition = self.condition(test[-1].pipelines[0][1])
            return self.branch([lambda: self.run(body), lambda: self.run_if(rest, otherwise)], condition)
        if self.status is False:
            return self.run_if(rest, otherwise)
        before = dict(self.variables)
        end = self.run(body)
        if end == "exit" and self.is_assumed:  # `if [ -z "$1" ]; then echo usage; exit; fi`: it is to be given
            self.variables = before
            return self.run_if(rest, otherwise)
        return end

    def run_case(self, case: Case) -> str:
        subject = self.joined(case.subject)
        index = case.subject[0].chars[0][1] if case.subject and case.subject[0].chars else 0
        if unknowns := unknowns_of(subject):
            names = [name for unknown in unknowns for name in unknown.names]
            condition = _Condition(f"case {_text_of_word(case.subject)}", index, names)
            bodies = [lambda body=body: self.run(body) for _, body in case.arms]
            has_rest = any(text_of(self.joined(each)) == "*" for patterns, _ in case.arms for each in patterns)
            return self.branch([*bodies, *([] if has_rest else [lambda: ""])], condition)
        for patterns, body in case.arms:
            if any(fnmatchcase(text_of(subject), text_of(self.joined(each))) for each in patterns):
                return self.run(body)
        return ""

    # -- loops -------------------------------------------------------------------------------------------------------

    def run_for(self, loop: For) -> str:
        words = self.arguments or [] if loop.words is None else [field for each in loop.words
                                                                  for field in self.fields(each)]  # fmt: skip
        if any(map(unknowns_of, words)) or len(words) > _MAX_PASSES:
            where = next((chars[0][1] for chars in words if unknowns_of(chars)), 0)
            text = " ".join(map(text_of, words))[:60]
            names = [name for chars in words for unknown in unknowns_of(chars) for name in unknown.names]
            self.store(loop.name, [[(Unknown.of(f"${loop.name}", f"it takes each value of `{text}`", names), where)]])
            return self.run_unknown_loop(loop.body, _Condition(f"for {loop.name} in {text}", where, names))
        rest = iter(words)

        def goes_on() -> bool:
            word = next(rest, None)
            if word is not None:
                self.store(loop.name, [word])
            return word is not None

        return self.run_passes(loop.body, goes_on)

    def run_while(self, loop: While) -> str:
        if any("$#" in text or "getopts" in text for text in _written(loop.condition)):
            return ""  # a loop over the script's arguments, which it is run without

        def goes_on() -> bool | None:
            self.doubted = []
            self.run(loop.condition)
            return None if self.status is None else self.status != loop.until

        return self.run_passes(loop.body, goes_on, loop.begin)

    def run_passes(self, body: Commands, goes_on: Callable[[], bool | None], index: int = 0) -> str:
        """Run the body while its condition is known to hold; if that becomes unknown, as `run_unknown_loop` does."""
        before, self.stored = self.stored, set()
        end = ""
        for number in range(_MAX_PASSES + 1):
            holds = goes_on()
            if holds is False:
                break
            if holds is None or number == _MAX_PASSES:
                line = self.source.place(index)
                names = [name for unknown in self.doubted for name in unknown.names]
                end = self.run_unknown_loop(body, _Condition(line.text.strip(), index, names))
                break
            end = self.run(body)
            if self.cut:
                self.forget(self.cut)
            if end in ("exit", "return", "break"):
                break
        self.stored |= before
        return end if end in ("exit", "return") else ""

    def run_unknown_loop(self, body: Commands, condition: _Condition) -> str:
        """Run a loop whose number of passes is unknown: the variables that it changes are unknown in it and after."""
        before, state = self.stored, (dict(self.variables), dict(self.documents))
        self.stored = set()
        commands = len(self.script.commands), len(self.script.printed), len(self.script.flag_lines)
        self.run(body)
        self.variables, self.documents = dict(state[0]), dict(state[1])
        del self.script.commands[commands[0] :], self.script.printed[commands[1] :]
        del self.script.flag_lines[commands[2] :]
        self.forget(condition)
        end = self.run(body)
        self.forget(condition)
        self.documents = {name: text if state[1].get(name) == text else None for name, text in self.documents.items()}
        self.stored |= before
        return end if end == "exit" else ""

    def forget(self, condition: _Condition) -> None:
        """Make the variables unknown that were set since the loop or function began."""
        line = self.source.place(condition.begin).line
        for name in sorted(self.stored & self.variables.keys()):
            index = next((chars[0][1] for chars in self.variables[name] if chars), condition.begin)
            why = f"it changes in `{condition.text}` in line {line}"
            self.variables[name] = [[(Unknown.of(f"${name}", why, condition.names), index)]]
        self.cut = None

    # -- simple commands ---------------------------------------------------------------------------------------------

    def run_simple(self, command: Simple) -> str:
        self.used = set()
        first = command.words[0] if command.words else ()
        if all(isinstance(word, Assignment) for word in command.words):
            self.assign([word for word in command.words if isinstance(word, Assignment)], command.begin)
            self.write_documents(command, [])
            self.status = True
            return ""
        if not isinstance(first, Assignment) and text_of(self.joined(first)) in _DECLARATIONS:
            given = [word for word in command.words if isinstance(word, Assignment)]
            if text_of(self.joined(first)) == "local":
                for each in given:
                    self.locals.setdefault(each.name, self.variables.get(each.name))
            self.assign(given, command.begin)
            self.status = True
            return ""
        words = [field for word in command.words
                 for field in self.fields(word.written if isinstance(word, Assignment) else word)]  # fmt: skip
        self.write_documents(command, words)
        return self.run_words(words, command.begin) if words else ""

    def assign(self, assignments: Sequence[Assignment], index: int) -> None:
        for each in assignments:
            before: Value = (self.lookup(each.name) or []) if each.appends else []
            if each.items is not None:
                value: Value = [*before, *(field for word in each.items for field in self.fields(word))]
                if any(text_of(chars).startswith("[") and "]=" in text_of(chars) for chars in value):
                    value = [[(Unknown.of(f"${each.name}", "`migrate` does not read its subscripts"), index)]]
            elif each.subscript is not None:
                why = f"`migrate` does not read `{_text_of_word(each.written)}`"
                value = [[(Unknown.of(f"${each.name}", why), index)]]
            else:
                first, *others = before or [[]]
                value = [[*first, *self.joined(each.value)], *others]
            self.store(each.name, value, index)

    def store(self, name: str, value: Value, index: int = 0) -> None:
        super().store(name, value)
        self.stored.add(name)
        if name in self.given and name not in self.used:
            self.script.overwritten.setdefault(name, self.source.place(index))

    def write_documents(self, command: Simple, words: Sequence[Chars]) -> None:
        """Keep the here-documents that a command writes to a file, or that `read` sets a variable to."""
        texts = [text for text in map(text_of, words) if text != "IFS="]
        for here in command.here:
            body = self.joined(here.body)
            if texts[:1] == ["read"] and texts[-2] == "":  # `read -r -d '' NAME` reads a whole document
                self.store(texts[-1], [body])
            else:
                into = text_of(self.joined(command.target))
                self.documents[into] = Text(self.source.name, "\n" * (here.line - 1) + text_of(body))

    def run_words(self, words: Sequence[Chars], index: int) -> str:
        texts = [text_of(word) for word in words]
        name = texts[0]
        if name in _ENDS:
            return name
        if name in self.functions and self.depth < _MAX_DEPTH:
            return self.call(self.functions[name], words[1:])
        if name in ("[", "[[", "test"):
            inner = [word for word in words if text_of(word) not in ("[", "]", "[[", "]]", "test")]
            self.status = conditions.evaluate(inner)
            doubted = [unknown for word in inner for unknown in unknowns_of(word)]
            self.is_assumed = self.status is not None and bool(doubted)
            self.doubted += doubted
            return ""
        if name in ("true", "false"):
            self.status = name == "true"
            return ""
        if name in ("eval", "source", ".", "let", "unset", "shift", *_SETTERS):
            return self.run_builtin(name, words, index)
        self.status = True if name in _SUCCEED else None
        self.add_command(words, texts)
        return ""

    def run_builtin(self, name: str, words: Sequence[Chars], index: int) -> str:
        texts = [text_of(word) for word in words]
        self.status = True
        if name == "eval" and self.depth < _MAX_DEPTH:
            return self.run_inner([pair for word in words[1:] for pair in [*word, (" ", index)]])
        if name in ("source", ".") and words[1:] and os.path.basename(texts[1]) not in _USERS_ENVIRONMENT:
            self.sourced = " ".join(texts)
        elif name == "let":
            for expression in texts[1:]:
                self.run_sum(expression, index)
        elif name == "unset":
            for each in texts[1:]:
                self.store(each, [[]], index)
        elif name == "shift" and self.arguments is not None:
            self.arguments = self.arguments[1:]
        elif name in _SETTERS:
            self.run_setter(texts, index)
        return ""

    def run_setter(self, texts: Sequence[str], index: int) -> None:
        """Make the variables unknown that a command such as `read` sets, except from a here-document."""
        self.status = None
        if texts[0] == "read" and len(texts) > 1 and texts[-2] == "":
            return
        why = f"`{' '.join(texts)}` in line {self.source.place(index).line} is not run"
        for name in texts[1:]:
            if re.fullmatch(r"[A-Za-z_]\w*", name):
                self.store(name, [[(Unknown.of(f"${name}", why), index)]], index)

    def run_sum(self, expression: str, index: int) -> int | None:
        """Run `(( ))` or `let`; return its value, None if that is unknown."""
        changed = assigned(expression, self.text_of)
        for name, value in changed.items():
            if value is None:
                unknown = Unknown.of(f"$(({expression}))", names=self.unset_names(expression))
                self.store(name, [[(unknown, index)]], index)
            else:
                self.store(name, [[(character, index) for character in value]], index)
        total = 1 if changed else evaluate(expression, self.text_of)
        if total is None:
            self.doubted.append(Unknown.of(expression, names=self.unset_names(expression)))
        return total

    def call(self, function: Function, arguments: Sequence[Chars]) -> str:
        before, self.arguments = self.arguments, [*arguments]
        stored, self.stored = self.stored, set()
        kept, self.locals = self.locals, {}
        self.called.add(function.name)
        self.depth += 1
        end = self.run_command(function.body)
        if self.cut:
            self.forget(self.cut)
        self.depth -= 1
        for name, value in self.locals.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value
        self.arguments, self.locals, self.stored = before, kept, stored | self.stored
        return end if end == "exit" else ""

    def run_inner(self, chars: Chars) -> str:
        """Run a script that is the value of a word, as in `eval` and `bash -c`."""
        self.depth += 1
        end = self.run(parse(chars, self.source))
        self.depth -= 1
        return end

    def add_command(self, words: Sequence[Chars], texts: Sequence[str]) -> None:
        command = [self.source.word(chars) for chars in words]
        if texts[0] in ("echo", "printf"):
            self.script.printed.append(command)
            return
        self.script.commands.append(command)
        if self.depth == 0 and texts[0].startswith("--"):
            self.script.flag_lines.append(command)
        for number, inner in enumerate(words[1:], 1):
            if _is_command(texts, number) and self.depth < _MAX_DEPTH:
                self.run_apart(lambda inner=inner: self.run_inner(inner))  # type: ignore[misc]

    def variable_flags(self) -> list[Chars]:
        """Return the words of variables that contain flags, except variables that are part of another one."""
        words = {name: [part for chars in value for part in split(chars) if part]
                 for name, value in self.variables.items()}  # fmt: skip
        flags = {name: {chars[0][1] for chars in of if text_of(chars[:2]) == "--"} for name, of in words.items()}
        outermost = [name for name in flags if flags[name] and not any(flags[name] < each for each in flags.values())]
        return [chars for name in outermost for chars in words[name]]


def _has_flags(command: Sequence[Word]) -> bool:
    return any(word.text.startswith("--") for word in command)


def _is_command(texts: Sequence[str], number: int) -> bool:
    """Return whether a word is a command: the argument of `bash -c`, or several flags in one quoted word."""
    is_of_shell = number > 1 and texts[number - 1] in ("-c", "-lc") and texts[number - 2].endswith("sh")
    return is_of_shell or len(_FLAG.findall(texts[number])) > 1


def _text_of_word(word: Parts | Assignment) -> str:
    return "".join(text_of(part.chars) for part in (word.written if isinstance(word, Assignment) else word))


def _written(commands: Commands) -> list[str]:
    """Return the words of simple commands as the script has them."""
    simple = [command for each in commands for _, pipeline in each.pipelines for command in pipeline.commands]
    return [_text_of_word(word) for command in simple if isinstance(command, Simple) for word in command.words]
