"""What the options of `deepy check` select: a run, a lock file or the runs of a repository; once or again and again."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from neoxargs.base.options import add_files, add_json, add_versions, version_number
from neoxargs.base.problems import Problems
from neoxargs.base.record import replace
from neoxargs.base.request import LOCK_FILE, RUN_TABLES, Request, is_lock

if TYPE_CHECKING:
    from neoxargs.commands.check.repository import Chosen

#: The exit code if no table says what is to be checked, as for other wrong command lines.
NO_RUNS = 2
Refuse = Callable[[str], NoReturn]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `deepy check`, except those of GPT-NeoX."""
    what = "YAML files to merge, one folder, or one file of another program: a DeepSpeed JSON, an Accelerate YAML, "
    add_files(parser, "*", what + "TrainingArguments, a Megatron-LM script (default: the runs of this repository)")
    add_json(parser)
    add_versions(parser)
    add = parser.add_argument
    for package, example in (("megatron", "0.16.0"), ("transformers", "4.57.6"), ("accelerate", "1.12.0")):
        what = f"of a file of another program: the version of {package} that reads it, for example {example}"
        add(f"--{package}", metavar="VERSION", type=version_number, help=what)
    names = ("text", "json", "concise", "github", "gitlab", "sarif", "junit")
    what = f"print problems for another program: {', '.join(names[1:])}"
    add("--output-format", metavar="FORMAT", choices=names, default="", help=what)
    add("--fix", action="store_true", help="correct the mistakes in the files that can mean only one thing")
    add("--unsafe-fixes", action="store_true", help="with --fix or --diff: also those that could be meant differently")
    add("--diff", action="store_true", help="print what would be corrected as a diff, and exit with 1 if there is any")
    add("--changed", action="store_true", help="check the runs of the repository's table that contain one of the files")
    add("--strict", action="store_true", help="exit with 1 for warnings as well")
    add("--watch", action="store_true", help="check again whenever a file changes, until Ctrl-C")


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


def _check(options: Namespace, request: Request, output: str, chosen: Chosen | None = None) -> int:
    """Check a run, or the chosen runs of a repository; correct their files before, or only show the corrections."""
    from neoxargs.commands.check import command

    fixed = None
    if options.fix or options.diff:
        from neoxargs.commands.check import fix

        make = fix.fixes if options.diff else fix.write
        if chosen is None:
            done = make([request], options.unsafe_fixes)
        else:
            done = chosen.corrected(make, request, options.unsafe_fixes)
        if options.diff:
            return fix.show_diff(done)
        fixed = done.fixed
        if output == "text":
            fix.report_fixes(done)
    if chosen is None:
        return command.run(request, fixed, output, options.strict)
    from neoxargs.commands.check import repository

    return repository.run(chosen, request, output, fixed, options.strict)


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
        again = lambda: (runs := chosen()) and _check(options, request, output, runs)  # noqa: E731
        return watch(again, lambda: watched(request.files, options.changed))
    return _check(options, request, output, first)
