"""Checks for secrets that would appear on command lines: from the configuration, or from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.launch.environment import EXPORTED, SECRET, variables_of_files
from neoxargs.launch.launchers import launcher_named
from neoxargs.problems import Place, Problem
from neoxargs.resolve.config import Config

#: Names of parameters whose values are secrets.
SECRET_NAME = re.compile(r"(api_key|password|secret)$")


def problems(config: Config, resources: Resources, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Return a problem for each secret that every user of the machines could read in the list of processes."""
    yield from in_configuration(config)
    launcher = launcher_named(config.runner.launcher)
    if not resources.remote or not launcher.argv_visible:
        return
    handed_over: list[tuple[str, Place | None]] = [(name, None) for name in environ if name.startswith(EXPORTED)]
    handed_over += [(name, place) for name, _, place in variables_of_files(environ, os.getcwd())]
    for name, where in handed_over:
        if SECRET.search(name):
            what = f"launcher {launcher.name} would put {name} on command lines, which every user on the hosts can read"
            hint = "set launcher: ssh, which passes the variable through ssh's standard input"
            if where:
                hint = f"remove this line, export {name} in this shell and set launcher: ssh"
            yield Problem(what, where, hint, id="secret-on-command-line", about=("launcher",))


def secret_values(config: Config) -> list[str]:
    """Return the names of the parameters that are set to a secret."""
    return [name for name, value in config.values.items() if value.value and SECRET_NAME.search(name)]


def in_configuration(config: Config) -> Iterator[Problem]:
    """Return a problem for each secret in the configuration, which every rank gets on its command line."""
    for name in secret_values(config):
        what = f"{name} would appear on every rank's command line, which every user on the hosts can read"
        variable, place = name.replace(".", "_").upper(), config.place(name)
        where = place and place._replace(text="")  # the excerpt of the line would show the secret
        hint = f"remove {name} and set {variable} in the environment"
        yield Problem(what, where, hint, id="secret-in-configuration", about=(name,))
