"""The parser of every command: it says what to write instead of an unknown option, and loads plugins.

The registry is imported when it is needed: `--help` and `--version` answer without it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable
from typing import NoReturn

from neoxargs.base.problems import Problem, Problems, did_you_mean, listed


def make_parser(command: str, description: str) -> argparse.ArgumentParser:
    return Parser(prog=f"deepy {command}", description=description, allow_abbrev=False)


class Parser(argparse.ArgumentParser):
    """An argument parser that says what to write instead of an unknown option."""

    def error(self, message: str) -> NoReturn:
        _, found, words = message.partition("unrecognized arguments: ")
        given = re.search(r"(?:^|\s)(-[^\s=]*)(?:=|\s+(?!-))?(\S*)", words) if found else None
        hint = self._instead_of(given[1], given[2] or "VALUE") if given else ""
        super().error(f"{message}; {hint}" if hint else message)

    def _instead_of(self, option: str, value: str) -> str:
        """Return a hint for an option that is a parameter, or similar to an option of the command."""
        from neoxargs.registry import REGISTRY, normal

        dashed = option.replace("_", "-")
        if dashed in self._option_string_actions:
            return f"write {dashed}"
        name = normal(option.lstrip("-"))
        if REGISTRY.find(name) and "--set" in self._option_string_actions:
            return f"write --set {shlex.quote(f'{name}={value}')}"
        return did_you_mean(dashed, self._option_string_actions)


#: In place of the words of a command: asks for its parser. No command line contains a NUL.
_ASKS_FOR_PARSER = "\0"


class _Made(Exception):
    """Brings the parser of a command to `parser_of`."""


def parser_of(command: Callable[[list[str]], int], name: str) -> argparse.ArgumentParser:
    """Return the parser that a command makes before it parses its words."""
    try:
        command([name, _ASKS_FOR_PARSER])
    except _Made as made:
        parser: argparse.ArgumentParser = made.args[0]
        return parser
    raise AssertionError(f"{name} does not parse its words with `parse`")


def parse(parser: argparse.ArgumentParser, words: list[str], installed: bool = True) -> argparse.Namespace:
    """Parse the options of a command and load plugins, so that the registry contains their parameters afterwards."""
    parser.add_argument(
        "--plugin", metavar="MODULE", action="append", default=[], help="import a plugin module (repeatable)"
    )
    if words[1:] == [_ASKS_FOR_PARSER]:
        raise _Made(parser)
    # intermixed: GPT-NeoX accepts options between files, as in `small -d configs local_setup`
    options = parser.parse_intermixed_args(words[1:])
    from neoxargs.registry import plugins

    plugins.load([*(plugins.installed() if installed else ()), *options.plugin])
    if "set" in options:
        _refuse_stray_values(options.files)
    return options


def _refuse_stray_values(files: list[str]) -> None:
    """Raise Problems for `--set a=1 b=2`, where argparse takes `b=2` for a file."""
    values = [word for word in files if "=" in word and not os.path.exists(word)]
    if not values:
        return
    from neoxargs.registry import REGISTRY, normal

    if any(REGISTRY.find(normal(word.partition("=")[0])) for word in values):
        are = "is not a file" if len(values) == 1 else "are not files"
        what = f"{listed(values, 'and')} {are}; each --set takes one KEY=VALUE"
        hint = f"write {' '.join(f'--set {shlex.quote(word)}' for word in values)}"
        raise Problems([Problem(what, hint=hint, id="set-takes-one-value")])


def strip_key_dashes(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Return the words with the leading dashes of the key removed: `explain --num-layers` is `explain num-layers`."""
    key, *rest = words[1:] or [""]
    # From the help text, because argparse has no public list of options.
    is_option = key.partition("=")[0] in re.findall(r"--?[\w-]+", f"{parser.format_help()} --plugin")
    return words if is_option or not key else [words[0], key.lstrip("-").partition("=")[0], *rest]
