"""The command line of `deepy migrate`: choose the source, convert, print or write the result."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems, listed, render, sentence
from neoxargs.base.record import replace
from neoxargs.base.write_files import changed_files, diff, write_all
from neoxargs.checks.trainer import trainer_problems
from neoxargs.config.dialect import NAMES
from neoxargs.migrate.deepspeed.defaults import ASSUMED, version_number
from neoxargs.migrate.result import NEW_FILE, Result
from neoxargs.migrate.run_script import confirm
from neoxargs.migrate.source import CURRENT_DIALECT, Options, Source
from neoxargs.migrate.sources import SOURCES, source_of
from neoxargs.resolve import Draft, File, draft
from neoxargs.resolve.yaml.read import read_texts
from neoxargs.runs.lenient import resolved

DESCRIPTION = (
    "Convert a configuration to a current YAML file. GPT-NeoX YAML keeps its comments; the changes are shown as a "
    "diff, or written to the files with --write. Pass all files of a run in one command."
)

_SOURCE_HELP = "GPT-NeoX YAML files, or one file: a DeepSpeed JSON, an Accelerate YAML or a Megatron-LM script"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `deepy migrate`, except --json."""
    add = parser.add_argument
    add("files", metavar="SOURCE", nargs="+", help=_SOURCE_HELP)
    add("-d", "--conf_dir", "--conf-dir", metavar="DIR", help="look for SOURCE in this folder first")
    add(
        "--to",
        metavar="|".join(NAMES),
        type=_dialect,
        default=CURRENT_DIALECT,
        help=f"write this dialect (default: {CURRENT_DIALECT})",
    )
    names = [source.name for source in SOURCES]
    add("--from", dest="source", choices=names, help="read SOURCE as this format")
    variable = "set a script variable (repeatable)"
    add("--var", metavar="NAME=VALUE", action="append", default=[], type=_variable, help=variable)
    add("--choose", metavar="N", type=int, help="convert the N-th of several configurations in SOURCE")
    run = "run a Megatron-LM script with stubs instead of launchers, and convert the command that it starts"
    add("--run", action="store_true", help=run)
    add("-y", "--yes", action="store_true", help="with --run, do not ask for confirmation")
    add(
        "--deepspeed",
        metavar="VERSION",
        type=_deepspeed_version,
        help=f"the DeepSpeed version in which a DeepSpeed JSON was used, whose defaults it keeps (default: {ASSUMED})",
    )
    add("-o", "--output", metavar="FILE", help="write the new YAML to FILE instead of stdout")
    add(
        "--write",
        action="store_true",
        help="edit the files in place (if any file has an error, none is changed); with -o FILE, overwrite FILE",
    )


def _dialect(text: str) -> str:
    if text.lower() not in NAMES:
        raise argparse.ArgumentTypeError(f"expected {listed(NAMES)}, got {text}")
    return text.lower()


def _deepspeed_version(text: str) -> str:
    try:
        version_number(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a version such as {ASSUMED}, got {text}") from None
    return text


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text}")
    return name, value


def run(arguments: argparse.Namespace) -> int:
    """Migrate the files, print the result or write it, and return the exit code."""
    try:
        texts = read_texts(arguments.files, arguments.conf_dir)
        source = next((source for source in SOURCES if source.name == arguments.source), None) or source_of(texts[0])
        if arguments.run and not arguments.source:  # the flags may be in other files
            source = next(source for source in SOURCES if "--run" in source.options)
        if inapplicable := list(_inapplicable_options(arguments, source)):
            raise Problems(inapplicable)
        if arguments.run and not arguments.yes:
            confirm(_only(texts, source), can_ask=sys.stdin.isatty() and not arguments.json)
        options = Options(
            arguments.to, dict(arguments.var), os.environ, arguments.choose, arguments.deepspeed, arguments.run
        )
        if source.edits_in_place and not arguments.output:
            return _show_edits(arguments, texts, source.converts(texts, options))
        result = source.converts([_only(texts, source)], options)
        if not source.edits_in_place:
            is_whole = source.is_whole_run and not result.to_do
            name = arguments.output or NEW_FILE
            found = _found_by_check(Text(name, result.text), is_whole)
            if found:
                _say_at_the_top(result, found)
                found = _found_by_check(Text(name, result.text), is_whole)  # its lines have moved
            result.problems += found
        return _show_new_file(arguments, result)
    except Problems as stop:
        if not arguments.json:
            raise
        _print_json({"ok": False, "problems": [problem.to_json() for problem in stop.problems]})
        return 1


def _say_at_the_top(result: Result, refused: Sequence[Problem]) -> None:
    """Add comments to a new file that say what `check` refuses."""
    to_do = [f"TODO: {' '.join(sentence(problem).split())}." for problem in refused]
    first, _, rest = result.text.partition("\n")
    result.texts[:] = [Text(result.texts[0].name, "\n".join([first, *(f"# {line}" for line in to_do), rest]))]
    result.to_do += to_do


# -- options that do not apply ---------------------------------------------------------------------------------------


def _inapplicable_options(arguments: argparse.Namespace, source: Source) -> Iterator[Problem]:
    """Yield a problem for each given option that this source would ignore."""
    is_given = {
        "--choose": arguments.choose is not None,
        "--deepspeed": bool(arguments.deepspeed),
        "--run": arguments.run,
    }
    for option, given in is_given.items():
        if given and option not in source.options:
            what = f"{option} does not apply to {source.describes}"
            yield Problem(what, hint=f"remove {option}", id="migrate-option-not-applicable")
    if arguments.yes and not arguments.run:
        yield Problem("--yes applies only to --run", hint="remove --yes", id="migrate-option-not-applicable")
    if not source.edits_in_place and arguments.write and not arguments.output:
        what = f"--write requires -o FILE for {source.describes}, which is converted to a new file"
        yield Problem(what, hint="add -o my.yml", id="migrate-write-without-output")
    if arguments.var and "--var" not in source.options:
        readers = listed(other.describes for other in SOURCES if "--var" in other.options)
        what = f"--var applies only to {readers}"
        yield Problem(what, hint="remove --var", id="migrate-option-not-applicable")
    if arguments.to != CURRENT_DIALECT and "--to" not in source.options:
        readers = listed(other.describes for other in SOURCES if "--to" in other.options)
        what = f"--to {arguments.to} applies only to {readers}; other files are converted to {CURRENT_DIALECT}"
        hint = f"remove --to, then migrate the new file with --to {arguments.to}"
        yield Problem(what, hint=hint, id="migrate-option-not-applicable")


def _only(texts: Sequence[Text], source: Source) -> Text:
    if len(texts) > 1:
        what = f"expected one file, got {len(texts)}: only GPT-NeoX files can be migrated together"
        hint = "run `deepy migrate` once for each file"
        if source.edits_in_place:
            what, hint = f"-o FILE requires one source, got {len(texts)}", "use --write, which edits the files in place"
        raise Problems([Problem(what, Place(texts[1].name, 0, 0), hint, id="migrate-several-files")])
    return texts[0]


# -- output ----------------------------------------------------------------------------------------------------------


def _show_new_file(arguments: argparse.Namespace, result: Result) -> int:
    """Print the new file, or write it to the file that `-o` names; return 1 if something is left to the user."""
    new = Text(arguments.output or NEW_FILE, result.text)
    if arguments.output:
        write_all([new], replace=arguments.write)
    if arguments.json:
        _print_json(_to_json(result) | {"text": new.text, "written": bool(arguments.output)})
        return int(not _is_complete(result))
    if not arguments.output:
        print(new.text, end="")
    lines = [*map(str, result.changes), *([render(result.problems)] if result.problems else [])]
    if result.to_do:
        lines.append("the new file is not complete: the comments at its top say what to set or to compare")
    print("\n".join([*lines, *([f"{arguments.output} written"] if arguments.output else [])]), file=sys.stderr)
    return int(not _is_complete(result))


def _is_complete(result: Result) -> bool:
    """Return whether the new file describes the same run as the source, with nothing left to the user."""
    return not result.to_do and not any(problem.severity == "error" for problem in result.problems)


def _found_by_check(new: Text, is_whole: bool) -> list[Problem]:
    """Return what `deepy check` refuses in the new file.

    A file that describes a whole run has to pass; in a part of one, only the settings that train.py cannot run, alone
    or together, are reported, as warnings, because another training script may support them.
    """
    given = set[str]()
    try:
        drafted = draft([File(*new)])
        given = {*drafted.values}
        config, errors = resolved(drafted, _gpus(drafted))
    except Problems as stop:
        config, errors = None, stop.problems
    refused = [problem for problem in trainer_problems(config) if problem.severity == "error"] if config else []
    if is_whole:
        return [*errors, *refused]
    within = [error for error in errors if error.about and given.issuperset(error.about)]
    return [replace(problem, severity="warning") for problem in [*within, *refused]]


def _gpus(drafted: Draft) -> int | None:
    """Return the number of GPUs that the file names; None if it leaves that open."""
    each, nodes = (drafted.values[name].value if name in drafted.values else None for name in ("num_gpus", "num_nodes"))
    return each * (nodes if isinstance(nodes, int) else 1) if isinstance(each, int) else None


def _show_edits(arguments: argparse.Namespace, texts: Sequence[Text], result: Result) -> int:
    """Print the changes as a diff; with `--write`, also write them."""
    files = list(changed_files(texts, result.texts))
    if arguments.write:
        write_all([new for _, new in files])
    if arguments.json:
        diffs = [{"file": new.name, "diff": diff(old, new), "text": new.text} for old, new in files]
        _print_json(_to_json(result) | {"files": diffs, "written": arguments.write and bool(files)})
        return 0
    print("".join(diff(old, new) for old, new in files), end="")
    lines = [*map(str, result.changes)] or [f"no changes are needed for {arguments.to}"]
    if files:
        names = ", ".join(new.name for _, new in files)
        lines.append(f"{names} written" if arguments.write else "nothing written yet: add --write to apply the changes")
    if result.problems:
        lines.append(render(result.problems))
    print("\n".join(lines), file=sys.stderr)
    return 0


def _to_json(result: Result) -> dict[str, Any]:
    return {
        "ok": _is_complete(result),
        "to_do": result.to_do,
        "problems": [problem.to_json() for problem in result.problems],
        "changes": [change.to_json() for change in result.changes],
    }


def _print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=False))
