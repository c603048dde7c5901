"""Can the command be started at all? Asked before: launchers tell it by a traceback, or do something else.

DeepSpeed's launcher writes the line that pdsh gives to the shells of other machines without quoting paths, and reads
every line of `.deepspeed_env` as NAME=VALUE.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.launch.cluster.rendezvous import rendezvous_address
from neoxargs.launch.environment import lines_of_files
from neoxargs.launch.launchers import Launcher, launcher_named
from neoxargs.launch.launchers.ssh import SSH
from neoxargs.problems import Problem
from neoxargs.resolve.config import Config

#: Bytes of one word of a command line, on Linux (MAX_ARG_STRLEN).
LONGEST_WORD = 128 * 1024 - 1
#: What neither a shell nor pdsh takes for something else.
PLAIN = re.compile(r"[\w@+=:,./-]+")


def problems(
    config: Config, resources: Resources, script: str, words: Sequence[str], environ: Mapping[str, str]
) -> Iterator[Problem]:
    """Why these words cannot be started; script: the user's, as one of them."""
    launcher = launcher_named(config.runner.launcher)
    if resources.remote or (config.runner.force_multi and launcher.through_deepspeed):
        yield from _program(config, launcher, environ)
        if launcher.through_deepspeed:
            yield from _no_variables(environ)
        if not launcher.quotes:
            yield from _unquoted(launcher, script)
        yield from _no_rendezvous(config, resources, launcher)
    yield from _too_long(config, words, launcher.one_word and resources.remote)


def _too_long(config: Config, words: Sequence[str], one_word: bool) -> Iterator[Problem]:
    size = sum(len(word) + 1 for word in words) if one_word else max(map(len, words))
    if size > LONGEST_WORD:
        longest = max(config.values, key=lambda name: len(json.dumps(config.get(name), default=str)))
        what = f"the configuration takes {size:,} bytes on a command line, and the system takes {LONGEST_WORD:,}"
        hint = f"the longest value is that of {longest}"
        yield Problem(what, config.place(longest), hint, id="configuration-too-long", about=(longest,))


def _program(config: Config, launcher: Launcher, environ: Mapping[str, str]) -> Iterator[Problem]:
    program = launcher.program
    if program and not shutil.which(program, path=environ.get("PATH")):
        what = f"launcher {launcher.name} needs {program}, which is not installed on this machine"
        hint = "" if program == SSH.program else "launcher: ssh needs ssh alone"
        yield Problem(what, config.place("launcher"), hint, id="launcher-program-missing", about=("launcher",))


def _no_rendezvous(config: Config, resources: Resources, launcher: Launcher) -> Iterator[Problem]:
    """Each machine takes the first one's name for itself. DeepSpeed's runner asks the first one for its address."""
    address = rendezvous_address(config, resources)
    asks = launcher.through_deepspeed and address == next(iter(resources.hosts))
    several = len(resources.hosts) > 1 and not all(map(_is_here, resources.hosts))
    if several and _is_here(address) and not asks:
        what = f"the ranks would meet at {address}, by which every machine means itself"
        hint = "write master_addr: the first machine's address as the others reach it"
        where = config.place("master_addr") or config.place("hostfile")
        yield Problem(what, where, hint, id="rendezvous-address-is-local", about=("master_addr", "hostfile"))


def _is_here(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _no_variables(environ: Mapping[str, str]) -> Iterator[Problem]:
    for line, place in lines_of_files(environ, os.getcwd()):
        if "=" not in line:
            hint = "DeepSpeed's launcher needs NAME=VALUE on every line: no remarks, no empty ones"
            yield Problem("this line sets no variable", place, hint, id="environment-file-bad-line")


def _unquoted(launcher: Launcher, script: str) -> Iterator[Problem]:
    for kind, path in (("the working directory", os.getcwd()), ("Python", sys.executable), ("the script", script)):
        if not PLAIN.fullmatch(path):
            what = f"launcher {launcher.name} cannot go to {kind} ({path}), which DeepSpeed does not quote"
            hint = "write launcher: ssh, which does, or give it a name without spaces and signs"
            yield Problem(what, hint=hint, id="path-not-quoted", about=("launcher",))
