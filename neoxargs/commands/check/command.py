"""`deepy check`: print all problems of a configuration, or `ok` and a summary of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import SET, Problem, Problems, has_errors, in_order, listed, report
from neoxargs.base.programs import Script
from neoxargs.base.regular_files import is_special
from neoxargs.base.request import HOLDER_FILE, Request
from neoxargs.base.shipped import SHIPPED
from neoxargs.base.text import format_bytes
from neoxargs.checks.all import HERE, Subject
from neoxargs.checks.data.files import READ_AT_MOST, unread
from neoxargs.checks.machine.packages import can_train_here
from neoxargs.hosts.launchers import launcher_named
from neoxargs.launch.stages import Incomplete, State, run_until
from neoxargs.resolve.suppressions import not_suppressed, unknown, unused, without_id
from neoxargs.resolve.yaml.read import read_texts
from neoxargs.runs import summary
from neoxargs.runs.run_spec import RunSpec

if TYPE_CHECKING:
    from neoxargs.migrate.as_is.files import Checked

#: Keys with errors that are named in a reason at most.
MOST_KEYS = 6
#: The script that configurations are checked for.
TRAIN = Script(str(SHIPPED / "train.py"), "train")
OF_ANOTHER_PROGRAM = "file-of-another-program"


def run(request: Request, fixed: Sequence[Problem] | None = None, output: str = "text", strict: bool = False) -> int:
    """Print the problems on stderr, or `ok` and a summary on stdout, and return the exit code.

    fixed: what `--fix` has corrected. output: a format of formats.py, in which only the problems are printed. strict:
    whether a warning makes the check fail as well.
    """
    spec, problems, not_checked, other = find(request)
    failed = has_errors(problems) or (strict and bool(problems))
    if request.as_json:
        table: dict[str, Any] = {"ok": not failed, "problems": [problem.to_json() for problem in problems]}
        table |= (summary.to_json(spec) if spec else {}) | {"unchecked": not_checked}
        table |= {"read_as": _read_as(other)} if other else {}
        table |= {} if fixed is None else {"fixed": [problem.to_json() for problem in fixed]}
        print(json.dumps(table, indent=2))
        return int(failed)
    if output != "text":
        from neoxargs.commands.check.formats import FORMATS

        print(FORMATS[output](in_order(problems), request.files), end="")
        return int(failed)
    report(problems)
    if other or (spec and not failed):
        print("\n".join([*(["ok"] if not failed else [""] if problems else []), *described(spec, other)]))
    if not_checked:
        line = f"{'unchecked'.ljust(summary.LABEL)}{', '.join(not_checked)}"
        print(f"\n{line}" if failed else line)
    if fixed is None and (can_be_fixed := fixable(problems)):
        print(f"{'fixable'.ljust(summary.LABEL)}{can_be_fixed}")
    return int(failed)


def fixable(problems: Sequence[Problem]) -> str:
    """Return how many problems `--fix` corrects, and how many more with `--unsafe-fixes`; "" if none."""
    in_files = [p.edits for p in problems if p.edits and all(edit.where.file != SET for edit in p.edits)]
    safe = sum(all(edit.safe for edit in edits) for edits in in_files)
    counts = {"deepy check --fix": safe, "with --unsafe-fixes": len(in_files) - safe}
    return ", ".join(f"{count} problem{'s' * (count > 1)} ({how})" for how, count in counts.items() if count)


class Answer(NamedTuple):
    """The resolved run (None if it cannot be resolved), all errors and warnings, and what is not checked."""

    spec: RunSpec | None
    problems: list[Problem]
    unchecked: list[str]
    other: Checked | None = None
    """What is found in the only file, if another program reads it."""


def described(spec: RunSpec | None, other: Checked | None) -> list[str]:
    """Return the summary of a run, or of the file of another program."""
    lines = summary.brief_lines(spec) if spec else []
    return lines + (summary.labelled({"read as": _read_as(other), **other.remarks}) if other else [])


def find(request: Request, of: Collection[Subject] = HERE) -> Answer:
    """Check the files as a configuration of ours or, if that fails, as the file of another program.

    of: what is checked of a configuration.
    """
    found = Answer(*find_problems(request, of))
    if not has_errors(found.problems):
        return found
    texts = _only_text(request)
    if other := other_program(texts, request):
        return Answer(None, _not_suppressed(other.problems, texts, request), [], other)
    if all(problem.id != OF_ANOTHER_PROGRAM for problem in found.problems):
        found.problems.extend(_migrate_suggestion(texts, request))
    return found


def other_program(texts: Sequence[Text], request: Request) -> Checked | None:
    """Return what is wrong with the only file, if another program reads it."""
    from neoxargs.migrate.as_is.files import checked  # imported late, to keep a check without errors fast

    return checked(texts[0], request.assumed, request.gpus) if len(texts) == 1 and not request.overrides else None


def _read_as(other: Checked) -> str:
    """Return the kind of another program's file, and the version for which it is judged."""
    program = other.program
    how = "" if program.given else f", the newest that deepy knows (--{program.package} VERSION names another)"
    return f"{other.called}, by {program}{how}"


def _only_text(request: Request) -> list[Text]:
    """Return the text of the only file; nothing if there are several, or if it can be read only once."""
    if len(request.files) != 1 or any(map(is_special, request.files)):
        return []
    try:
        return read_texts(request.files, request.directory)
    except Problems:
        return []


def _migrate_suggestion(texts: Sequence[Text], request: Request) -> list[Problem]:
    """Return a warning if the only file is one that `deepy migrate` converts."""
    from neoxargs.migrate.sources import source_of

    if not texts or not texts[0].text.strip() or (source := source_of(texts[0])).edits_in_place:
        return []
    what = f"{request.files[0]} looks like {source.describes}"
    hint = f"run `deepy migrate {texts[0].name}` to convert it"
    return [Problem(what, hint=hint, severity="warning", id=OF_ANOTHER_PROGRAM)]


def find_problems(request: Request, of: Collection[Subject] = HERE) -> tuple[RunSpec | None, list[Problem], list[str]]:
    """Return the resolved run (None if it cannot be resolved), all errors and warnings, and what is not checked.

    With `--gpus`, the run is for another machine, so missing files and programs are only warnings. of: what is checked.
    """
    subjects: set[Subject] = {*of}
    lenient: set[Subject] = {"program"}  # the script may become one that a plugin's values are for
    if request.gpus is not None:
        subjects -= {"trainer", "folders"}
        lenient |= {"files", "machine", "command"}
    elif not can_train_here():
        subjects -= {"trainer"}
    try:
        state = run_until("problems", State(TRAIN, request, os.environ, subjects, lenient))
    except Problems as stop:
        texts = stop.texts if isinstance(stop, Incomplete) else ()
        left_out = [*_affected(stop), *_left_out(request, can_train_here())]
        return None, _not_suppressed(stop.problems, texts, request), left_out
    problems, texts = [*state.spec.warnings, *state.problems], state.spec.texts
    kept = _not_suppressed(problems, texts, request)
    if not has_errors(problems):
        kept += unused(problems, texts)
    return state.spec, kept, list(unchecked(state.spec, request, problems))


def _not_suppressed(problems: Sequence[Problem], texts: Sequence[Text], request: Request) -> list[Problem]:
    kept = [each for each in not_suppressed(problems, texts) if not request.ignores(each)]
    return [*kept, *unknown(texts, _known_ids), *without_id(problems, texts)]


def _known_ids() -> Collection[str]:
    from neoxargs.commands.explain.catalogue import known_ids  # read from files, which few checks need

    return known_ids()


def _affected(stop: Problems) -> Iterator[str]:
    """Yield what could not be checked because of errors."""
    if not isinstance(stop, Incomplete):
        yield f"everything else (because of {listed(dict.fromkeys(problem.id for problem in stop.problems), 'and')})"
        return
    kinds: dict[frozenset[str], list[str]] = {}
    for kind, keys in stop.affected.items():
        kinds.setdefault(frozenset(keys), []).append(kind)
    for keys, of_keys in kinds.items():
        about = listed(sorted(keys), "and", most=MOST_KEYS)
        yield f"some checks of {listed(of_keys, 'and')} (correct {about} first)"
    yield "memory and the launch command (correct all errors first)"


def _left_out(request: Request, trains_here: bool) -> Iterator[str]:
    """Yield what is not checked of any run, with errors or without."""
    if request.gpus is not None:
        yield "folders that the run writes to"
    elif not trains_here:
        yield "packages of the trainer (torch is not installed)"


def unchecked(spec: RunSpec, request: Request, problems: Iterable[Problem]) -> Iterator[str]:
    """Yield what a launch of this run checks and this command does not, each with how to check it."""
    config, resources = spec.config, spec.resources
    if resources.device == "cuda":
        yield "memory (deepy plan)"
    if resources.remote and launcher_named(config.runner.launcher).by_ssh and not config.runner.no_ssh_check:
        yield "other hosts (deepy train.py ... --check-hosts)"
    yield from _left_out(request, resources.remote or can_train_here())
    if any(problem.id == "trainer-missing" for problem in problems):
        yield "this machine (because of trainer-missing)"
    left = unread(config)
    if sum(left.values()) > READ_AT_MOST:
        size, names = format_bytes(sum(left.values())), listed(list(left), "and", most=3)
        how = "train.py compares them while it trains; deepy data --verify"
        yield f"the contents of {size} of token files, {names} ({how})"
    locks = (Path(folder, HOLDER_FILE) for folder in (config.logging.run_dir, config.checkpoint.save) if folder)
    if lock := next(filter(Path.exists, locks), None):
        yield f"whether the run that wrote {lock} has ended"
