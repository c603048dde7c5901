"""`deepy --completion SHELL`: a script that completes commands, options, their values, files and names of parameters.

The words stand in the script, so that completing starts no Python. bash and zsh share a function that chooses among
them, and differ in how they are told; fish is told everything by itself.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from neoxargs.base.record import Record
from neoxargs.commands.explain.catalogue import catalogue
from neoxargs.commands.init.answers import models
from neoxargs.hosts.device_table import DEVICES, NETWORKS
from neoxargs.registry import REGISTRY
from neoxargs.registry.types import words_of

SHELLS = ("bash", "zsh", "fish")
#: What follows an option or a command instead of words that are known.
FILES, PARAMETERS, NAMES, OTHER = "<files>", "<parameters>", "<names>", "<other>"
#: Placeholders that stand for a file or a folder.
_OF_FILES = ("FILE", "FOLDER", "DIR", "PREFIX", "SOURCE", "TEMPLATE")
#: Option -> words that its help lists, and that its parser does not restrict.
_KNOWN: Mapping[str, Iterable[str]] = {"--device": DEVICES, "--network": NETWORKS, "--model": models()}


class Option(Record):
    """An option of a command; `takes` is what follows it: words, a placeholder, or nothing."""

    names: tuple[str, ...]
    help: str
    takes: str


def script(shell: str, parsers: Mapping[str, Sequence[argparse.ArgumentParser]]) -> str:
    """Return the script for a shell. parsers: those of each command."""
    commands = {name: _options(of_command) for name, of_command in parsers.items()}
    # In place of a command, too.
    commands |= {"--completion": [Option(("--completion",), "", " ".join(SHELLS))], "--help": [], "--version": []}
    words = list(commands)
    scripts = [commands.pop(name) for name in words if name.endswith(".py")]
    # Any script has the options of all.
    commands["script"] = list({option.names: option for options in scripts for option in options}.values())
    lines = _fish(words, commands) if shell == "fish" else _bash_and_zsh(words, commands)
    own = {"bash": [_BASH], "zsh": [_ZSH]}.get(shell, [""])
    return "\n".join([f"# Completion of deepy for {shell}: deepy --completion {shell}", *lines, *own])


def programs_with_parsers() -> dict[str, list[argparse.ArgumentParser]]:
    """Return the parsers of the commands that are programs of their own, as far as their packages are installed."""
    found = {}
    with suppress(ModuleNotFoundError):
        from neoxargs.data import command, token_file_commands
        from neoxargs.data.chat import command as chat

        which = argparse.ArgumentParser(add_help=False)
        which.add_argument("--chat", action="store_true", help="tokenise conversations with a chat template")
        found["data"] = [which, command.parser(), token_file_commands.parser(), chat.parser()]
    with suppress(ModuleNotFoundError):
        from neoxargs.commands import samples

        of_samples = argparse.ArgumentParser(add_help=False)
        samples.add_arguments(of_samples)
        found.setdefault("data", []).append(of_samples)
    with suppress(ModuleNotFoundError):
        from neoxargs.convert.huggingface import exporting, importing

        found |= {"export": [exporting.parser()], "import": [importing.parser()]}
    return found


def _options(parsers: Sequence[argparse.ArgumentParser]) -> list[Option]:
    found: dict[tuple[str, ...], Option] = {}
    for parser in parsers:
        for action in parser._actions:  # argparse has no public list of them
            names = tuple(action.option_strings)
            if names and action.help != argparse.SUPPRESS:
                help_text = parser._get_formatter()._expand_help(action) if action.help else ""
                found.setdefault(names, Option(names, help_text, _takes(action)))
    return list(found.values())


def _takes(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    known = next((_KNOWN[name] for name in action.option_strings if name in _KNOWN), ())
    in_metavar = action.metavar.split("|") if isinstance(action.metavar, str) and "|" in action.metavar else ()
    choices: Iterable[Any] = action.choices or known or in_metavar
    if words := " ".join(map(str, choices)):
        return words
    if "--set" in action.option_strings:
        return PARAMETERS
    return FILES if action.metavar in _OF_FILES else OTHER


def _settings() -> Iterator[str]:
    """Yield `KEY=` of every parameter, and `KEY=VALUE` for each value that its type names."""
    for parameter in REGISTRY.parameters.values():
        yield from (f"{parameter.name}={value}" for value in ("", *words_of(parameter.type)))


def _names() -> list[str]:
    return sorted({*REGISTRY.parameters, *catalogue()})


#: `line` is what was typed up to the cursor; the function sets `offered`, with `stem` before each word, and `word`.
_CHOOSE = """\
_deepy_choose() {
  local command=${1##*/} line=$2 rest before
  word=${line##*[[:space:]]} offered= stem=
  rest=${line%"$word"}
  rest=${rest%"${rest##*[![:space:]]}"}
  before=${rest##*[[:space:]]}
  case $word in --*=*) before=${word%%=*} stem=${word%%=*}= ;; esac
  case $command in *.py) command=script ;; esac
  case "$command $before" in
VALUES
  "explain explain") offered=$_deepy_names ;;
  *) case "$command $word" in
OPTIONS
    *) offered="<files>" ;;
    esac ;;
  esac
}"""
_BASH = """\
_deepy() {
  local word offered stem
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "$_deepy_commands" -- "$2") $(compgen -f -X '!*.py' -- "$2"))
    return
  fi
  _deepy_choose "${COMP_WORDS[1]}" "${COMP_LINE:0:COMP_POINT}"
  case $offered in
  "<files>") return ;;  # as readline completes them
  "<other>") compopt +o default 2> /dev/null; return ;;
  "<parameters>") offered=$_deepy_parameters; compopt -o nospace 2> /dev/null ;;
  esac
  COMPREPLY=($(compgen -P "$stem" -W "$offered" -- "${word#"$stem"}"))
  # Readline divides the line at "=", and replaces only what follows it.
  case $COMP_WORDBREAKS in *=*) COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*=}"}"}") ;; esac
}
complete -o default -F _deepy deepy deepy.py
"""
_ZSH = """\
_deepy() {
  local word offered stem
  if (( CURRENT == 2 )); then
    compadd -- ${=_deepy_commands}
    _files -g '*.py'
    return
  fi
  _deepy_choose "${words[2]}" "${(j: :)words[1,CURRENT-1]} $PREFIX"
  case $offered in
  "<files>") [ -n "$stem" ] && compset -P '*='; _files ;;
  "<other>") ;;
  "<parameters>") compadd -S '' -- ${=_deepy_parameters} ;;
  *) compadd -P "$stem" -- ${=offered} ;;
  esac
}
compdef _deepy deepy deepy.py
"""


def _bash_and_zsh(words: Sequence[str], commands: Mapping[str, list[Option]]) -> Iterator[str]:
    patterns: dict[str, list[str]] = {}
    for name, options in commands.items():
        for option in options:
            if option.takes:
                patterns.setdefault(option.takes, []).extend(f'"{name} {each}"' for each in option.names)
    values = [f"  {'|'.join(names)}) offered={shlex.quote(takes)} ;;" for takes, names in patterns.items()]
    lists = [
        f'    "{name} -"*) offered={shlex.quote(" ".join(name for option in options for name in option.names))} ;;'
        for name, options in commands.items()
    ]
    yield f"_deepy_commands={shlex.quote(' '.join(words))}"
    yield f"_deepy_names={shlex.quote(' '.join(_names()))}"
    yield f"_deepy_parameters={shlex.quote(' '.join(_settings()))}"
    yield _CHOOSE.replace("VALUES", "\n".join(values)).replace("OPTIONS", "\n".join(lists))


def _fish(words: Sequence[str], commands: Mapping[str, list[Option]]) -> Iterator[str]:
    yield f"set -g __deepy_names {' '.join(_names())}"
    yield f"set -g __deepy_parameters {' '.join(map(shlex.quote, _settings()))}"
    named = [word for word in words if not word.startswith("-")]
    first = shlex.quote(" ".join([*named, "(__fish_complete_suffix .py)"]))
    yield f"complete -c deepy -n __fish_use_subcommand -f -a {first}"
    yield "complete -c deepy -n '__fish_seen_subcommand_from explain' -a '$__deepy_names'"
    for command, options in commands.items():
        within = f"__fish_seen_subcommand_from {command}"
        if command.startswith("-"):
            within = "__fish_use_subcommand"
        if command == "script":
            within = 'string match -q "*.py" -- (commandline -opc)'
        for option in options:
            names = " ".join(_fish_name(name) for name in option.names)
            takes = {"": "-f", FILES: "-r -F", OTHER: "-x", PARAMETERS: "-x -a '$__deepy_parameters'"}
            what = takes.get(option.takes, f"-x -a {shlex.quote(option.takes)}")
            text = " ".join(option.help.split()).replace("\\", "\\\\").replace("'", "\\'")
            yield f"complete -c deepy -n '{within}' {names} {what} -d '{text}'"


def _fish_name(name: str) -> str:
    return f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"
