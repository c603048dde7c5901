"""The command line of `deepy migrate`: which source a file is, what is shown, what is written."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from neoxargs.problems import Place, Problem, Problems, listed, render
from neoxargs.resolve import Text, draft, read_files
from neoxargs.resolve.dialect import NAMES
from neoxargs.resolve.trainer_support.unsupported import unsupported
from neoxargs.tools.migrate import SOURCES, source_of
from neoxargs.tools.migrate.resolution import resolved
from neoxargs.tools.migrate.result import NEW_FILE, Result
from neoxargs.tools.migrate.source import TODAY, Options, Source
from neoxargs.tools.write import changed, diff, write_all

DESCRIPTION = """Bring a configuration to today's YAML. GPT-NeoX's files are edited in place, comments and all, and
shown as a diff until --write is said; files that belong together are given together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line of this verb has besides --json."""
    add = parser.add_argument
    add("files", metavar="SOURCE", nargs="+", help="YAML of GPT-NeoX, or one file of DeepSpeed or Megatron-LM")
    add("-d", "--conf_dir", "--conf-dir", metavar="DIR", help="folder in which SOURCEs are looked for first")
    add("--to", metavar="|".join(NAMES), type=_dialect, default=TODAY, help="the dialect to write")
    names = [source.name for source in SOURCES]
    add("--from", dest="source", choices=names, help="what SOURCE is, if it is taken for something else")
    add("--var", metavar="NAME=VALUE", action="append", default=[], type=_variable, help="a variable of the script")
    add("--choose", metavar="N", type=int, help="of several configurations in one file, the N-th")
    add("-o", "--output", metavar="FILE", help="where the new YAML goes, instead of stdout")
    add("--write", action="store_true", help="write the files, all of them or none")


def _dialect(text: str) -> str:
    if text.lower() not in NAMES:
        raise argparse.ArgumentTypeError(f"{text} is not {listed(NAMES)}")
    return text.lower()


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


def run(arguments: argparse.Namespace) -> int:
    """Migrate, show and perhaps write; returns the exit code."""
    try:
        texts = read_files(arguments.files, arguments.conf_dir)
        source = next((source for source in SOURCES if source.name == arguments.source), None) or source_of(texts[0])
        if refused := list(_options_without_meaning(arguments, source)):
            raise Problems(refused[:1])
        options = Options(arguments.to, dict(arguments.var), os.environ, arguments.choose)
        if source.edits_in_place:
            return _edit(arguments, texts, source.converts(texts, options))
        return _make(arguments, source.converts([_only(texts)], options))
    except Problems as stop:
        if not arguments.json:
            raise
        _print_json({"ok": False, "problems": [problem.to_json() for problem in stop.problems]})
        return 1


# -- what is refused before anything is read -------------------------------------------------------------------------


def _options_without_meaning(arguments: argparse.Namespace, source: Source) -> Iterator[Problem]:
    """Options that would be ignored for this source."""
    if source.edits_in_place and arguments.output:
        yield _without_meaning("-o", source, "use --write")
    if arguments.choose is not None and "--choose" not in source.options:
        yield _without_meaning("--choose", source)
    if not source.edits_in_place and arguments.write and not arguments.output:
        what = "--write needs -o FILE: what this becomes is a new file"
        yield Problem(what, hint="add -o my.yml", id="migrate-write-without-output")
    if arguments.var and "--var" not in source.options:
        readers = listed(other.describes for other in SOURCES if "--var" in other.options)
        yield Problem(f"--var is for {readers}", hint="leave it out", id="migrate-option-without-meaning")
    if arguments.to != TODAY and "--to" not in source.options:
        readers = listed(other.describes for other in SOURCES if "--to" in other.options)
        what = f"--to {arguments.to} is for {readers}; other files become {TODAY}"
        yield Problem(what, hint="migrate the new file in a second step", id="migrate-option-without-meaning")


def _without_meaning(option: str, source: Source, hint: str = "leave it out") -> Problem:
    edited = ", which is edited in place" if source.edits_in_place else ""
    what = f"{option} has no meaning for {source.describes}{edited}"
    return Problem(what, hint=hint, id="migrate-option-without-meaning")


def _only(texts: Sequence[Text]) -> Text:
    if len(texts) > 1:
        what = "one file at a time becomes YAML, unless it is GPT-NeoX's"
        raise Problems([Problem(what, Place(texts[1].name, 0, 0), id="migrate-several-files")])
    return texts[0]


# -- what is shown and written ---------------------------------------------------------------------------------------


def _make(arguments: argparse.Namespace, result: Result) -> int:
    """The new file on stdout, or where `-o` says."""
    new = Text(arguments.output or NEW_FILE, result.text)
    result.problems += _not_launchable(new)
    if arguments.output:
        write_all([new], replace=arguments.write)
    if arguments.json:
        _print_json(_to_json(result) | {"text": new.text, "written": bool(arguments.output)})
        return 0
    if not arguments.output:
        print(new.text, end="")
    lines = [*map(str, result.changes), *([render(result.problems)] if result.problems else [])]
    print("\n".join([*lines, *([f"{arguments.output} written"] if arguments.output else [])]), file=sys.stderr)
    return 0


def _not_launchable(new: Text) -> list[Problem]:
    """What `check` would refuse, as warnings: the file is right, and another script may run it."""
    try:
        config, _ = resolved(draft([new]), None)
    except Problems:
        return []
    refused = [problem for problem in unsupported(config) if problem.severity == "error"]
    return [replace(problem, severity="warning") for problem in refused]


def _edit(arguments: argparse.Namespace, texts: Sequence[Text], result: Result) -> int:
    """The files as a diff, or rewritten with `--write`."""
    files = list(changed(texts, result.texts))
    if arguments.write:
        write_all([new for _, new in files])
    if arguments.json:
        diffs = [{"file": new.name, "diff": diff(old, new), "text": new.text} for old, new in files]
        _print_json(_to_json(result) | {"files": diffs, "written": arguments.write and bool(files)})
        return 0
    print("".join(diff(old, new) for old, new in files), end="")
    lines = [*map(str, result.changes)] or [f"nothing to change for {arguments.to}"]
    if files:
        lines.append("written" if arguments.write else "nothing is written yet: add --write")
    if result.problems:
        lines.append(render(result.problems))
    print("\n".join(lines), file=sys.stderr)
    return 0


def _to_json(result: Result) -> dict[str, Any]:
    return {
        "ok": True,
        "problems": [problem.to_json() for problem in result.problems],
        "changes": [change.to_json() for change in result.changes],
    }


def _print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=False))
