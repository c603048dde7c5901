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

from neoxargs.launch.cluster.hosts import MPI, Resources
from neoxargs.launch.environment import lines_of_files
from neoxargs.launch.launchers import meeting_point
from neoxargs.problems import Problem
from neoxargs.resolve.config import Config

#: Launcher -> the program without which nothing starts.
PROGRAMS = {"pdsh": "pdsh", "openmpi": "ompi_info", "mpich": "mpirun", "impi": "mpirun", "mvapich": "mpiname",
            "slurm": "sinfo", "srun": "srun", "ssh": "ssh", "torchrun": "ssh"}  # fmt: skip
#: Of DeepSpeed's own launcher.
THROUGH_DEEPSPEED = ("pdsh", "slurm", *MPI)
#: Bytes of one word of a command line, on Linux (MAX_ARG_STRLEN); to ssh, pdsh hands all in one.
LONGEST_WORD = 128 * 1024 - 1
#: What neither a shell nor pdsh takes for something else.
PLAIN = re.compile(r"[\w@+=:,./-]+")


def problems(
    config: Config, resources: Resources, script: str, words: Sequence[str], environ: Mapping[str, str]
) -> Iterator[Problem]:
    """Why these words cannot be started; script: the user's, as one of them."""
    launcher = config.runner.launcher
    if resources.remote or (config.runner.force_multi and launcher in THROUGH_DEEPSPEED):
        yield from _program(config, launcher, environ)
        if launcher in THROUGH_DEEPSPEED:
            yield from _no_variables(environ)
        if launcher == "pdsh":
            yield from _unquoted(script)
        yield from _no_meeting(config, resources)
    size = sum(len(word) + 1 for word in words) if launcher == "pdsh" and resources.remote else max(map(len, words))
    if size > LONGEST_WORD:
        longest = max(config.values, key=lambda name: len(json.dumps(config.get(name), default=str)))
        what = f"the configuration takes {size:,} bytes on a command line, and the system takes {LONGEST_WORD:,}"
        yield Problem(what, config.place(longest), f"the longest value is that of {longest}")


def _program(config: Config, launcher: str, environ: Mapping[str, str]) -> Iterator[Problem]:
    program = PROGRAMS.get(launcher)
    if program and not shutil.which(program, path=environ.get("PATH")):
        what = f"launcher {launcher} needs {program}, which is not installed on this machine"
        hint = "" if program == "ssh" else "launcher: ssh needs ssh alone"
        yield Problem(what, config.place("launcher"), hint)


def _no_meeting(config: Config, resources: Resources) -> Iterator[Problem]:
    """Each machine takes the first one's name for itself. DeepSpeed's launcher asks the first one for its address."""
    address = meeting_point(config, resources)
    asks = config.runner.launcher in THROUGH_DEEPSPEED and address == next(iter(resources.hosts))
    several = len(resources.hosts) > 1 and not all(map(_is_here, resources.hosts))
    if several and _is_here(address) and not asks:
        what = f"the ranks would meet at {address}, by which every machine means itself"
        hint = "write master_addr: the first machine's address as the others reach it"
        yield Problem(what, config.place("master_addr") or config.place("hostfile"), hint)


def _is_here(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _no_variables(environ: Mapping[str, str]) -> Iterator[Problem]:
    for line, place in lines_of_files(environ, os.getcwd()):
        if "=" not in line:
            hint = "DeepSpeed's launcher needs NAME=VALUE on every line: no remarks, no empty ones"
            yield Problem("this line sets no variable", place, hint)


def _unquoted(script: str) -> Iterator[Problem]:
    for kind, path in (("the working directory", os.getcwd()), ("Python", sys.executable), ("the script", script)):
        if not PLAIN.fullmatch(path):
            what = f"launcher pdsh cannot go to {kind} ({path}), which DeepSpeed does not quote"
            yield Problem(what, hint="write launcher: ssh, which does, or give it a name without spaces and signs")
