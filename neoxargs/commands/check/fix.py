"""`deepy check --fix`: make the edits that problems carry, in rounds, and keep only what a new check accepts.

A round makes the edits of as many problems as do not touch each other's lines, and the files are checked again. If a
problem is still there, or another has appeared, each problem's edits are tried alone, and those that cause this are
left out. The files are written when nothing more can be corrected, all of them or none.

Several runs can share files: a correction is made only if the check of each run accepts it.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import SET, Place, Problem, Problems, has_errors, printable, sentence
from neoxargs.base.record import Record
from neoxargs.base.regular_files import is_special
from neoxargs.base.request import Request
from neoxargs.base.write_files import changed_files, diff, write_all
from neoxargs.commands.check.command import other_program
from neoxargs.commands.explain.catalogue import known_ids
from neoxargs.resolve import draft
from neoxargs.resolve.suppressions import not_suppressed, unknown, unused, used_nowhere, without_id
from neoxargs.resolve.yaml.edit import NotEditable, corrected
from neoxargs.resolve.yaml.read import File, readable_texts
from neoxargs.runs.run_spec import complete_run

#: Rounds at most; a syntax error takes one, because the parser finds only the first.
MAX_ROUNDS = 500


class Found(NamedTuple):
    """The problems of one run.

    of_reading: those of syntax, keys and types. readable: False if a syntax error hides what else is wrong in its file.
    """

    problems: Sequence[Problem]
    of_reading: Sequence[Problem] = ()
    readable: bool = True


#: Returns what is found in each run if its files have these texts.
Find = Callable[[Sequence[Text]], Sequence[Found]]


class Fixes(Record):
    """The files of a run before and after the corrections."""

    before: Sequence[Text]
    after: Sequence[Text]
    fixed: Sequence[Problem] = ()
    refused: Sequence[tuple[Problem, Problem]] = ()
    """Problems whose correction would cause another problem, with that problem."""
    in_command: Sequence[Problem] = ()
    """Problems of `--set`s, which only the user can correct."""


class Hunk(NamedTuple):
    """Lines [start, end) of a text, from 0, and what replaces them."""

    start: int
    end: int
    lines: Sequence[str]


def fixes(requests: Sequence[Request], unsafe: bool = False, sharing: Sequence[Request] = ()) -> Fixes:
    """Return the corrected files of some runs; raises Problems if a file cannot be written.

    sharing: other runs with some of these files, which a correction must not make worse.
    """
    for name in dict.fromkeys(name for request in requests for name in request.files):
        if is_special(name):  # it could be read only once, and not be written
            what = "this file cannot be corrected: it is a pipe or a device"
            raise Problems(Problem(what, Place(name, 0, 0), id="output-file-unwritable"))
    return correct(_texts(requests), find_in([*requests, *sharing]), unsafe)


def _texts(requests: Sequence[Request]) -> list[Text]:
    texts = [text for request in requests for text in readable_texts(request.files, request.directory)[0]]
    return list(dict.fromkeys(texts))


def write(requests: Sequence[Request], unsafe: bool = False, sharing: Sequence[Request] = ()) -> Fixes:
    """Correct the files of some runs; raises Problems if one cannot be written, and then none is."""
    done = fixes(requests, unsafe, sharing)
    changed = list(changed_files(done.before, done.after))
    now = _texts(requests)
    for old, _ in changed:
        if old not in now:
            what, hint = "this file has changed while it was corrected", "run the command again"
            raise Problems(Problem(what, Place(old.name, 0, 0), hint, id="output-file-changed"))
    write_all([new for _, new in changed])
    return done


def show_diff(done: Fixes) -> int:
    """Print the corrections as a diff that `patch` accepts; return 1 if there are any."""
    changed = list(changed_files(done.before, done.after))
    print("".join(diff(old, new) for old, new in changed), end="")
    report_fixes(done)
    return int(bool(changed))


def report_fixes(done: Fixes) -> None:
    """Print a line on stderr for each correction, and for each that was not made, with the reason."""
    by_place = sorted(done.fixed, key=lambda problem: problem.where[:2] if problem.where else ())
    lines = [f"corrected      {_line(problem)}" for problem in by_place]
    lines += [f"not corrected  {_line(problem)}, because then: {_line(why)}" for problem, why in done.refused]
    lines += [f"not corrected  {_line(problem)}, because it is not in a file" for problem in done.in_command]
    print("".join(f"{line}\n" for line in lines), end="", file=sys.stderr, flush=True)


def _line(problem: Problem) -> str:
    place = f"{printable(str(problem.where))}: " if problem.where else ""
    return f"{place}{sentence(problem).partition(chr(10))[0]} [{problem.id}]"


def find_in(requests: Sequence[Request]) -> Find:
    """Return a function that finds the problems of each run in other texts of its files.

    The texts are all files of one run; of several runs, some of their files.
    """
    parsed: dict[Text, File] = {}
    known: dict[tuple[int, tuple[Text, ...]], Found] = {}
    read = {text.name: text for text in _texts(requests)} if len(requests) > 1 else {}
    names = [[name for name in request.files if name in read] for request in requests]

    def find(texts: Sequence[Text]) -> list[Found]:
        if len(requests) == 1:
            return [find_of(0, tuple(texts))]
        now = read | {text.name: text for text in texts}
        found = [find_of(number, tuple(now[name] for name in of_run)) for number, of_run in enumerate(names)]
        kept = used_nowhere([each.problems for each in found], names)
        return [each._replace(problems=problems) for each, problems in zip(found, kept, strict=True)]

    def find_of(number: int, texts: tuple[Text, ...]) -> Found:
        if (number, texts) not in known:
            files = [parsed.setdefault(text, File(*text)) if text not in parsed else parsed[text] for text in texts]
            known[number, texts] = _found(requests[number], files)
        return known[number, texts]

    return find


def _found(request: Request, files: Sequence[File]) -> Found:
    drafted = draft(files, request.overrides)
    try:
        problems = complete_run(drafted, os.environ, request.gpus).warnings
        problems += unused(problems, files)
    except Problems as stop:
        problems = stop.problems
    of_reading, readable = drafted.problems, drafted.readable
    if has_errors(problems) and (other := other_program(files, request)):
        problems, of_reading, readable = [*other.problems], [*other.problems], True
    problems = [*problems, *unknown(files, known_ids), *without_id(problems, files)]
    kept = [each for each in not_suppressed(problems, files) if not request.ignores(each)]
    return Found(kept, of_reading, readable)


def correct(texts: Sequence[Text], find: Find, unsafe: bool = False) -> Fixes:
    """Correct the problems that carry edits. unsafe: also those that could be meant differently."""
    work = _Work(texts, find, unsafe)
    in_command = [each for each in work.problems() if any(edit.where.file == SET for edit in each.edits)]
    for _ in range(MAX_ROUNDS):
        if not work.round():
            break
    return Fixes(texts, work.texts, work.fixed, list(work.refused.values()), in_command)


Made = tuple[Problem, dict[str, list[Hunk]]]


class _Work:
    """The files while they are corrected.

    refused: problems whose edits are not made, with the problem that they would cause. impossible: those whose edits
    cannot be made.
    """

    def __init__(self, texts: Sequence[Text], find: Find, unsafe: bool) -> None:
        self.texts, self.find, self.unsafe = texts, find, unsafe
        self.found = find(texts)
        self.fixed: list[Problem] = []
        self.refused: dict[object, tuple[Problem, Problem]] = {}
        self.impossible: set[object] = set()

    def problems(self) -> list[Problem]:
        """Return the problems of all runs, each once."""
        return list(dict.fromkeys(problem for found in self.found for problem in found.problems))

    def round(self) -> bool:
        """Correct as many problems as possible at once; return whether there was anything left to try."""
        batch = list(_apart(self.made()))
        if not batch:
            return False
        new = _with_hunks(self.texts, batch)
        after = self.find(new)
        if self.why_not(batch, after):
            batch = [each for each in batch if not self.refuse(each)][:1]
            new = _with_hunks(self.texts, batch)
            after = self.find(new)
        self.texts, self.found = new, after
        self.fixed += [problem for problem, _ in batch]
        self.impossible.clear()  # what cannot be edited in a text that is not YAML can be edited in the next one
        return True

    def made(self) -> Iterator[Made]:
        """Yield each problem that can be corrected, with the lines that this changes."""
        names = {text.name for text in self.texts}
        for problem in self.problems():
            is_wanted = problem.edits and all(edit.where.file in names for edit in problem.edits)
            mark = _mark(problem)
            if is_wanted and self.is_allowed(problem) and mark not in self.refused and mark not in self.impossible:
                if hunks := _hunks(self.texts, problem):
                    yield problem, hunks
                else:
                    self.impossible.add(mark)

    def is_allowed(self, problem: Problem) -> bool:
        return self.unsafe or all(edit.safe for edit in problem.edits)

    def refuse(self, made: Made) -> bool:
        """Return whether the correction of one problem is refused, and note why."""
        why = self.why_not([made], self.find(_with_hunks(self.texts, [made])))
        if why:
            self.refused[_mark(made[0])] = made[0], why
        return why is not None

    def why_not(self, batch: Sequence[Made], after: Sequence[Found]) -> Problem | None:
        """Return a problem because of which corrections are not kept, or None."""
        whys = (self._why_not_in(old, new, batch) for old, new in zip(self.found, after, strict=True))
        return next(filter(None, whys), None)

    def _why_not_in(self, before: Found, after: Found, batch: Sequence[Made]) -> Problem | None:
        """Return the problem of one run."""
        if not before.readable:  # what else is wrong in the file was not known
            wrong = (each for each in after.of_reading if _is_of_edits(each, batch, after.readable))
            return next((each for each in wrong if not (each.edits and self.is_allowed(each))), None)
        fixed = [problem for problem, _ in batch if problem in before.problems]
        times = Counter(map(_kind, after.problems))
        times.subtract(map(_kind, before.problems))
        for problem in fixed:
            if times[_kind(problem)] >= 0:
                return problem
        new = [problem for problem in after.problems if times[_kind(problem)] > 0]
        if self.unsafe:  # of values that were not known, the rules can say what they could not before
            new = [problem for problem in new if problem in after.of_reading]
        may_warn = any(problem.severity == "error" for problem in fixed)
        return next((problem for problem in new if problem.severity == "error" or not may_warn), None)


def _mark(problem: Problem) -> object:
    """Return what a problem is recognised by in the next round, when its line may have another number."""
    return problem.id, sentence(problem), problem.where and (problem.where.file, problem.where.text)


def _kind(problem: Problem) -> tuple[object, ...]:
    return problem.id, sentence(problem), problem.about


# -- lines ------------------------------------------------------------------------------------------------------------


def _hunks(texts: Sequence[Text], problem: Problem) -> dict[str, list[Hunk]]:
    """Return the lines that the edits of one problem change, by file; nothing if they cannot be made."""
    hunks = {}
    for text in texts:
        edits = [edit for edit in problem.edits if edit.where.file == text.name]
        try:
            new = corrected(text, edits) if edits else text
        except NotEditable:
            return {}
        if _is_json(text.text) and not _is_json(new.text):
            return {}
        if new != text:
            hunks[text.name] = list(_different(text.text, new.text))
    return hunks


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _different(old: str, new: str) -> Iterator[Hunk]:
    a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    same = next((n for n, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
    for tag, start, end, begin, stop in SequenceMatcher(None, a[same:], b[same:], autojunk=False).get_opcodes():
        if tag != "equal":
            yield Hunk(same + start, same + end, b[same + begin : same + stop])


def _apart(made: Iterable[Made]) -> Iterator[Made]:
    """Yield the corrections whose lines do not touch those of an earlier one."""
    taken: dict[str, list[Hunk]] = {}
    for problem, hunks in made:
        if not any(_touch(a, b) for file, of_file in hunks.items() for a in of_file for b in taken.get(file, ())):
            for file, of_file in hunks.items():
                taken.setdefault(file, []).extend(of_file)
            yield problem, hunks


def _touch(a: Hunk, b: Hunk) -> bool:
    # Lines that are inserted between two others must not move with them.
    apart = a.end < b.start or b.end < a.start
    return not apart and ((a.end > b.start and b.end > a.start) or a.start == a.end or b.start == b.end)


def _with_hunks(texts: Sequence[Text], batch: Sequence[Made]) -> list[Text]:
    new = []
    for text in texts:
        lines = text.text.splitlines(keepends=True)
        for hunk in sorted((hunk for _, hunks in batch for hunk in hunks.get(text.name, ())), reverse=True):
            lines[hunk.start : hunk.end] = hunk.lines
        new.append(Text(text.name, "".join(lines)))
    return new


def _is_of_edits(problem: Problem, batch: Sequence[Made], is_readable: bool) -> bool:
    """Return whether an error is in a line that the edits have written, or a syntax error above all of these lines."""
    where = problem.where
    hunks = sorted(hunk for _, hunks in batch for hunk in hunks.get(where.file if where else "", ()))
    if not where or not hunks or problem.severity != "error":
        return False
    moved = 0
    for hunk in hunks:
        first = hunk.start + moved + 1
        if first <= where.line < first + len(hunk.lines):
            return True
        moved += len(hunk.lines) - (hunk.end - hunk.start)
    return not is_readable and where.line <= hunks[0].start
