"""Checks for launch commands on which launchers fail with a traceback, or which they run incorrectly.

DeepSpeed's launcher does not quote paths in the command that pdsh passes to remote shells, and it reads every line of
`.deepspeed_env` as NAME=VALUE.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

from neoxargs.base.problems import Problem
from neoxargs.config.config import Config
from neoxargs.hosts.environment import NAME, lines_of_files, variables_of_files
from neoxargs.hosts.hostfile import is_host
from neoxargs.hosts.hosts import Resources
from neoxargs.hosts.launchers import Launcher, launcher_named
from neoxargs.hosts.launchers.rows import SSH
from neoxargs.hosts.rendezvous import rendezvous_address

#: Maximum bytes of one command line argument on Linux (MAX_ARG_STRLEN).
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
#: Paths without characters that are special to a shell or to pdsh.
SAFE_PATH = re.compile(r"[\w@+=:,./-]+")
#: Parameters that DeepSpeed's runner puts into the command of a remote shell as they are.
UNQUOTED = ("master_addr", "venv_script", "enable_each_rank_log")
#: Characters with a meaning in double quotes, which DeepSpeed's runner puts around the values of `.deepspeed_env`.
IN_DOUBLE_QUOTES = re.compile(r'["$`\\]')


def problems(
    config: Config, resources: Resources, script: str, words: Sequence[str], environ: Mapping[str, str]
) -> Iterator[Problem]:
    """Return why a launch command cannot be started. words: the command; script: the path of the script in it."""
    launcher = launcher_named(config.runner.launcher)
    yield from config.found(lambda: _missing_hostfile(config, resources, launcher, environ))
    # With force_multi, DeepSpeed's runner uses the launcher for a single host too.
    if resources.remote or (config.runner.force_multi and launcher.through_deepspeed):
        yield from _program(config, launcher, environ)
        if launcher.reads_env_files:
            yield from _invalid_environment_lines(launcher, environ)
        if not launcher.quotes:
            yield from _unquoted_paths(launcher, script)
            yield from config.found(lambda: _unquoted_values(config, launcher, environ))
        yield from config.found(lambda: _odd_rendezvous(config, resources))
        yield from config.found(lambda: _local_rendezvous(config, resources, launcher))
    if words:  # none of a configuration with errors
        yield from _too_long(config, words, launcher.one_word and resources.remote)


def _missing_hostfile(
    config: Config, resources: Resources, launcher: Launcher, environ: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield an error if the hostfile of a launcher that reaches other machines is missing.

    Otherwise this is a warning: GPT-NeoX's own configurations name a hostfile that no machine has.
    """
    runner = config.runner
    reaches_others = (launcher.needs_every_slot or launcher.always_remote or runner.force_multi) and not runner.no_ssh
    absent = any(problem.id == "hostfile-missing" and "hostfile" in problem.about for problem in resources.warnings)
    if reaches_others and absent:
        path = environ.get("DLTS_HOSTFILE") or runner.hostfile
        what = f"launcher {launcher.name} starts ranks on other machines, but the hostfile {path} does not exist"
        hint = "create it with one line per machine, such as: node1 slots=8, or remove hostfile to use only this "
        hint += "machine"
        yield Problem(what, config.place("hostfile"), hint, id="hostfile-missing", about=("hostfile", "launcher"))


def _too_long(config: Config, words: Sequence[str], one_word: bool) -> Iterator[Problem]:
    # pdsh passes the whole command on as one argument.
    size = sum(len(word) + 1 for word in words) if one_word else max(map(len, words))
    if size > MAX_ARGUMENT_BYTES:
        longest = max(config.values, key=lambda name: len(json.dumps(config.get(name), default=str)))
        what = f"the configuration needs {size:,} bytes on the command line, but the system allows at most"
        what += f" {MAX_ARGUMENT_BYTES:,}"
        hint = f"shorten {longest}, which has the longest value"
        yield Problem(what, config.place(longest), hint, id="configuration-too-long", about=(longest,))


def _program(config: Config, launcher: Launcher, environ: Mapping[str, str]) -> Iterator[Problem]:
    program = launcher.program
    if program and not shutil.which(program, path=environ.get("PATH")):
        what = f"launcher {launcher.name} needs {program}, which is not installed on this machine"
        hint = f"install {program}" + ("" if program == SSH.program else ", or set launcher: ssh, which needs only ssh")
        yield Problem(what, config.place("launcher"), hint, id="launcher-program-missing", about=("launcher",))


def _odd_rendezvous(config: Config, resources: Resources) -> Iterator[Problem]:
    """Yield an error for a rendezvous address that is none, or that a program would take for something else."""
    address = rendezvous_address(config, resources)
    if address and not is_host(address):  # empty if a scheduler chooses the hosts
        what, about = f"master_addr ({address}) is not the name or the address of a host", ("master_addr",)
        where, hint = config.place("master_addr"), "correct master_addr"
        yield Problem(what, where, hint, id="rendezvous-address-malformed", about=about)


def _local_rendezvous(config: Config, resources: Resources, launcher: Launcher) -> Iterator[Problem]:
    """A loopback address for the rendezvous of several hosts.

    DeepSpeed's runner is not affected by a first host named `localhost`: it asks that host for its address.
    """
    address = rendezvous_address(config, resources)
    is_resolved = launcher.through_deepspeed and address == next(iter(resources.hosts))
    several = len(resources.hosts) > 1 and not all(map(_is_loopback, resources.hosts))
    if several and _is_loopback(address) and not is_resolved:
        what = f"the rendezvous address {address} is a loopback address, which other hosts cannot reach"
        hint = "set master_addr to the network address of the first host"
        where = config.place("master_addr") or config.place("hostfile")
        yield Problem(what, where, hint, id="rendezvous-address-is-local", about=("master_addr", "hostfile"))


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _invalid_environment_lines(launcher: Launcher, environ: Mapping[str, str]) -> Iterator[Problem]:
    for line, place in lines_of_files(environ, os.getcwd()):
        name, equals, _ = line.partition("=")
        if not equals and launcher.through_deepspeed:
            what = "this line is not of the form NAME=VALUE, which DeepSpeed's launcher expects on every line"
            hint = "remove comments and empty lines from this file"
        elif equals and not NAME.fullmatch(name if launcher.through_deepspeed else name.strip()):
            what = "this line does not begin with the name of a variable, and a remote shell would interpret it"
            hint = "write NAME=VALUE, with letters, digits and underscores before the `=`"
        else:
            continue
        yield Problem(what, place, hint, id="environment-file-bad-line")


def _unquoted_paths(launcher: Launcher, script: str) -> Iterator[Problem]:
    for kind, path in (("the working directory", os.getcwd()), ("Python", sys.executable), ("the script", script)):
        if not SAFE_PATH.fullmatch(path):
            what = f"launcher {launcher.name}: the path to {kind} ({path}) contains special characters,"
            what += " which DeepSpeed does not quote for remote shells"
            hint = "set launcher: ssh, or use a path without spaces or special characters"
            yield Problem(what, hint=hint, id="path-not-quoted", about=("launcher",))


def _unquoted_values(config: Config, launcher: Launcher, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Yield an error for each value that a remote shell would interpret instead of passing it on."""
    for name in UNQUOTED:
        if (value := config.get(name)) and not SAFE_PATH.fullmatch(str(value)):
            what = f"{name} ({value}) contains special characters, which DeepSpeed does not quote for remote shells"
            hint = "set launcher: ssh, or use a value without spaces or special characters"
            yield Problem(what, config.place(name), hint, id="value-not-quoted", about=(name, "launcher"))
    for name, value, place in variables_of_files(environ, os.getcwd()):
        if IN_DOUBLE_QUOTES.search(value):
            what = f"the value of {name} contains special characters, which DeepSpeed does not quote for remote shells"
            hint = "set launcher: ssh, which passes the value on as it is"
            yield Problem(what, place, hint, id="value-not-quoted", about=("launcher",))
