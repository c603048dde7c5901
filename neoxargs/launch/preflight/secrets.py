"""Secrets that would stand on command lines: in the configuration, or in what the launcher hands to other machines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from neoxargs.launch.cluster.hosts import Resources
from neoxargs.launch.environment import EXPORTED, SECRET, variables_of_files
from neoxargs.launch.launchers import launcher_named
from neoxargs.problems import Place, Problem
from neoxargs.resolve.config import Config


def problems(config: Config, resources: Resources, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Each secret that every user of the machines could read."""
    yield from _written(config)
    launcher = launcher_named(config.runner.launcher)
    if not resources.remote or not launcher.argv_visible:
        return
    handed_over: list[tuple[str, Place | None]] = [(name, None) for name in environ if name.startswith(EXPORTED)]
    handed_over += [(name, place) for name, _, place in variables_of_files(environ, os.getcwd())]
    for name, where in handed_over:
        if SECRET.search(name):
            what = f"{name}: {launcher.name} would put it on command lines, which every user of the machines can read"
            hint = "take it out and write launcher: ssh, which hands over this shell's; or log in on each machine"
            hint = hint if where else "write launcher: ssh, which hands it over unseen"
            yield Problem(what, where, hint, id="secret-on-command-line", about=("launcher",))


def _written(config: Config) -> Iterator[Problem]:
    for name, value in config.values.items():
        if value.value and re.search(r"(api_key|password|secret)$", name):
            what = f"{name} would stand on the command line of every rank, which every user of the machines can read"
            variable, place = name.replace(".", "_").upper(), config.place(name)
            where = place and place._replace(text="")  # the line itself would show it
            hint = f"leave it out and set {variable} in the environment"
            yield Problem(what, where, hint, id="secret-in-configuration", about=(name,))
