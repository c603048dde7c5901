"""`deepy migrate --run`: run a script with stubs in place of its launchers, and read the arguments that they got.

Nothing is simulated: the script runs in its own folder with the user's environment, and only the programs of stub.KINDS
are replaced.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.record import Record
from neoxargs.migrate import stub
from neoxargs.processes.process_tree import SessionGuard, kill_session, session_members

#: Seconds after which a script is stopped.
TIME_LIMIT = 60.0
_SHOWN_LINES = 15


class Run(Record):
    """What a script started. commands: a script of the recorded commands. documents: the JSON files that they name."""

    commands: Text
    documents: dict[str, Text | None]
    problems: Sequence[Problem]


def confirm(script: Text, can_ask: bool) -> None:
    """List what is stubbed and ask on the terminal; raise Problems if that is not possible, or if the answer is no."""
    what = f"--run would run {script.name} in {_folder(script)}"
    if not can_ask:
        hint = "read the script, then add --yes to run it without being asked for confirmation"
        raise Problems(Problem(what, hint=hint, id="migrate-run-needs-yes"))
    launchers = sorted(f"{stub.KINDS['record']} {stub.KINDS['wrap']}".split())
    lines = [
        f"{what}, with your environment, HOME and TMPDIR, for at most {TIME_LIMIT:.0f} s.",
        f"Only their arguments are recorded: {', '.join(launchers)}, and Python if it starts a training.",
        f"Not run: {', '.join(sorted(stub.KINDS['nothing'].split()))}, and `python -m pip`.",
        "All other commands run, also Python for anything else and programs called by a path such as /usr/bin/git;",
        "files that the script writes are written.",
    ]
    print("\n".join(lines), file=sys.stderr)
    if input("run it? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Problems(Problem("the script was not run, because the answer was not y", id="migrate-run-declined"))


def run_script(script: Text, variables: Mapping[str, str], time_limit: float = TIME_LIMIT) -> Run:
    """Run a script until it and the processes that it started have ended, and return the commands that it launched.

    variables: set in its environment; those named 1, 2, ... are its arguments. Raises Problems if it launches nothing.
    """
    bash = shutil.which("bash")
    if not bash:
        what, hint = "--run needs bash, which is not on this machine's PATH", "install bash, or migrate without --run"
        raise Problems(Problem(what, hint=hint, id="migrate-run-no-launcher"))
    with tempfile.TemporaryDirectory() as name:
        stubs, output, records = Path(name), Path(name, "output"), Path(name, "records")
        environ = {**os.environ, **variables, "PATH": f"{stubs}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
                   "BASH_ENV": str(_write_stubs(stubs, records))}  # fmt: skip
        arguments = [variables[each] for each in map(str, range(1, 100)) if each in variables]
        with output.open("wb") as file:
            process = subprocess.Popen(
                [bash, os.path.abspath(script.name), *arguments], cwd=_folder(script), env=environ,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        guard = SessionGuard(process.pid)
        try:
            is_late = not _ended(process, time.monotonic() + time_limit)
        finally:
            kill_session(process.pid)
            guard.end()
            code = process.wait()
        found = [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []
        printed = output.read_text(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
    end = f"was stopped after {time_limit:.0f} s" if is_late else f"ended with exit code {code}"
    place = Place(script.name, 0, 0)
    if not found:
        what = f"the script {end} without reaching a launcher; its last output:\n" + ("\n".join(printed) or "(none)")
        hint = "give the script what it needs to reach its training command (--var NAME=VALUE sets a variable)"
        raise Problems(Problem(what, place, hint, id="migrate-run-no-launcher"))
    late = f"the script {end}; only what it had launched by then is read"
    problems = [Problem(late, place, severity="warning", id="migrate-run-stopped")] if is_late else []
    commands = "\n".join(dict.fromkeys(_as_lines(each["words"]) for each in found))
    documents: dict[str, Text | None] = {}
    for word, text in (pair for each in found for pair in each["json"].items()):
        is_same = word not in documents or documents[word] == Text(word, text)
        documents[word] = Text(word, text) if is_same else None
    return Run(Text(f"{script.name} (as run)", commands + "\n"), documents, problems)


def _ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait until a script and the processes that it left in the background end; False if they take too long."""
    while process.poll() is None or session_members(process.pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _write_stubs(folder: Path, records: Path) -> Path:
    """Write a stub for each program, and return a file of functions, which precede a PATH that the script changes."""
    functions = folder / "functions"
    with functions.open("w") as file:
        for kind, names in stub.KINDS.items():
            for name in names.split():
                words = [sys.executable, "-I", "-S", stub.__file__, str(records), kind, name]
                (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
                (folder / name).chmod(0o700)
                file.write(f'{name}() {{ {shlex.quote(str(folder / name))} "$@"; }}\n')
    return functions


def _as_lines(words: Sequence[str]) -> str:
    """Return a command as a script has it, each flag in a line of its own."""
    lines = [(" \\\n    " if word.startswith("--") else " ") + shlex.quote(word) for word in words]
    return "".join(lines)[1:]


def _folder(script: Text) -> str:
    return os.path.dirname(os.path.abspath(script.name))
