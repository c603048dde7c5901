"""What the options of `deepy check` select: a run, a lock file or the runs of a repository; once or again and again."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from neoxargs.base.problems import Problems
from neoxargs.base.record import replace
from neoxargs.base.request import LOCK_FILE, RUN_TABLES, Request, is_lock

if TYPE_CHECKING:
    from neoxargs.commands.check.repository import Chosen

#: The exit code if no table says what is to be checked, as for other wrong command lines.
NO_RUNS = 2
Refuse = Callable[[str], NoReturn]


def answer(options: Namespace, request: Request, refuse: Refuse) -> int:
    """Run `deepy check` and return its exit code. refuse: ends the program because of the command line."""
    output = _output_format(options, refuse)
    request = replace(request, as_json=output == "json")
    if options.changed or not request.files or _is_repository(request.files):
        return _repository(options, request, output, refuse)
    if list(map(is_lock, request.files)) == [True]:  # among other files, it is an error
        from neoxargs.commands.check import lock

        if options.fix or options.diff or options.watch or options.strict or output not in ("text", "json"):
            refuse("of a lock file, leave out --fix, --diff, --watch, --strict and every --output-format but json")
        return lock.run(request)
    if options.watch:
        from neoxargs.commands.check.watch import watch

        return watch(lambda: _check(options, request, output), lambda: _files_of(request))
    return _check(options, request, output)


def _check(options: Namespace, request: Request, output: str) -> int:
    fixed = None
    if options.fix or options.diff:
        from neoxargs.commands.check import fix

        if options.diff:
            return fix.show_diff(fix.fixes([request], options.unsafe_fixes))
        done = fix.write([request], options.unsafe_fixes)
        fixed = done.fixed
        if output == "text":
            fix.report_fixes(done)
    from neoxargs.commands.check.command import run

    return run(request, fixed, output, options.strict)


def _output_format(options: Namespace, refuse: Refuse) -> str:
    output: str = options.output_format or ("json" if options.json else "text")
    if options.json and output != "json":
        refuse("--json is --output-format json: leave out one of the two")
    if options.unsafe_fixes and not (options.fix or options.diff):
        refuse("--unsafe-fixes requires --fix or --diff")
    if options.diff and (options.fix or output != "text"):
        refuse("--diff writes nothing and prints a diff: leave out --fix, --json and --output-format")
    if options.watch and (options.fix or options.diff or output not in ("text", "concise")):
        refuse("--watch prints for people and writes nothing: leave out --fix, --diff, --json and --output-format")
    return output


def _is_repository(files: Sequence[str]) -> bool:
    """Return whether one table of runs is given, or one folder that is not that of a run."""
    [name] = files if len(files) == 1 else [""]
    is_table = os.path.basename(name) in RUN_TABLES
    return is_table or (os.path.isdir(name) and not os.path.exists(os.path.join(name, LOCK_FILE)))


def _files_of(request: Request) -> Iterable[str]:
    from neoxargs.resolve.yaml.read import find_file

    for name in request.files:
        try:
            yield find_file(name, request.directory)
        except Problems:
            yield name


# -- the runs of a repository -----------------------------------------------------------------------------------------


def _repository(options: Namespace, request: Request, output: str, refuse: Refuse) -> int:
    from neoxargs.commands.check.repository import choose, watched

    if request.gpus or request.directory:
        refuse("--gpus and -d are for the files of one run; of a repository, its table says which GPUs and files")
    if options.changed and not request.files:
        refuse("--changed requires the files that have changed")
    if _is_repository(request.files) and not options.changed and not os.path.isdir(request.files[0]):
        request = replace(request, files=[os.path.dirname(request.files[0]) or os.curdir])

    def chosen() -> Chosen | None:
        return choose(request.files, options.changed)

    first = chosen()
    if first is None:
        return NO_RUNS
    if options.watch:
        from neoxargs.commands.check.watch import watch

        # The table may have changed, or be gone.
        again = lambda: (runs := chosen()) and _check_runs(options, request, output, runs)  # noqa: E731
        return watch(again, lambda: watched(request.files, options.changed))
    return _check_runs(options, request, output, first)


def _check_runs(options: Namespace, request: Request, output: str, chosen: Chosen) -> int:
    from neoxargs.commands.check.repository import run, seen_from_here, working_in

    fixed = None
    if options.fix or options.diff:
        from neoxargs.commands.check import fix

        make = fix.fixes if options.diff else fix.write
        with working_in(chosen.folder):
            done = make(chosen.requests(request), options.unsafe_fixes, chosen.sharing(request))
        done = seen_from_here(done, chosen.folder)
        if options.diff:
            return fix.show_diff(done)
        fixed = done.fixed
        if output == "text":
            fix.report_fixes(done)
    return run(chosen, request, output, fixed, options.strict)
