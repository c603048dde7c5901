"""`deepy check run.lock.yml`: what has changed since the run was launched."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from neoxargs.launch.fingerprints import environment
from neoxargs.launch.lockfile import Lock, read_lock
from neoxargs.problems import SET, Problem, Problems, render
from neoxargs.resolve import draft, read_files
from neoxargs.resolve.config import Config
from neoxargs.resolve.derive import complete
from neoxargs.tools.diff.differences import Difference, contents, differences
from neoxargs.tools.diff.side import Side, of_lock, shown

#: Section -> what it is called in a message, and the id of a difference.
SECTIONS = {
    "code": ("code", "lock-code-differs"), "packages": ("package", "lock-package-differs"),
    "hardware": ("hardware", "lock-hardware-differs"),
}  # fmt: skip


def run(name: str, as_json: bool) -> int:
    """Print the differences and return the exit code: 1 if a value or the content of a file is different."""
    lock, side = read_lock(name), of_lock(name, name)
    sources, problems = _settings(lock, side)
    problems += _environment(lock, side.config)
    failed = any(problem.severity == "error" for problem in problems)
    if as_json:
        print(json.dumps({"ok": not failed, "problems": [problem.to_json() for problem in problems]}, indent=2))
        return int(failed)
    if problems:
        print(render(problems), file=sys.stderr)
    if not failed:
        same = "the same values and files" if sources else "the same files"
        unknown = "" if sources else "; the configuration files were not found, so the values were not compared"
        print(f"ok\n  {same} as when the run was launched{unknown}")
    return int(failed)


def _settings(lock: Lock, side: Side) -> tuple[list[str], list[Problem]]:
    """Return the configuration files that exist here, and a problem for each value that they now give."""
    sources = [value.source.where for value in side.config.values.values() if value.source.where]
    files = list(dict.fromkeys(place.file for place in sources if place.file != SET))
    overrides = list(dict.fromkeys(place.text for place in sources if place.file == SET))
    if not files or not all(map(os.path.isfile, files)):
        return [], []
    try:
        config = complete(draft(read_files(files), overrides), side.ranks)
    except Problems as stop:
        return files, stop.problems
    now = Side("now", "files", config, side.ranks)
    found = (each for each in differences(side, now) if each.rank in ("result", "rounding"))
    return files, [_other_value(lock, each) for each in found]


def _other_value(lock: Lock, found: Difference) -> Problem:
    then, now = map(shown, found.values)
    what = f"{found.name} was {then} when the run was launched; with the current configuration files, it is {now}"
    place, source = lock.places.get(("values", found.name)), found.sources[1]
    hint = f"its source is now: {source}" if source else ""
    severity: Any = "error" if found.rank == "result" else "warning"
    return Problem(what, place, hint, severity=severity, id="lock-value-differs", about=(found.name,))


def _environment(lock: Lock, config: Config) -> Iterator[Problem]:
    now = environment(config, lock.script)
    for section, (noun, problem_id) in SECTIONS.items():
        for name in {**lock.sections[section], **now[section]}:
            then, here = lock.sections[section].get(name), now[section].get(name)
            if then != here:
                what = f"{noun}: {name} was {shown(then)} when the run was launched; here, it is {shown(here)}"
                place = lock.places.get((section, name))
                yield Problem(what, place, severity="warning", id=problem_id)
    for name, files in lock.sections["files"].items():
        here = {file["path"]: file for file in now["files"].get(name, [])}
        for file in files:
            if problem := _other_file(lock, name, file, here.get(file["path"])):
                yield problem


def _other_file(lock: Lock, name: str, then: dict[str, Any], here: dict[str, Any] | None) -> Problem | None:
    if here is None:
        what, hint = f"{name}: {then['path']} does not exist here", "copy the file to this machine"
    elif contents([then]) != contents([here]):
        what = f"{name}: the content of {then['path']} has changed since the run was launched"
        hint = f"it had {then['bytes']:,} bytes and the SHA-256 {then['sha256'][:16]}…; it now has {here['bytes']:,} "
        hint += f"bytes and the SHA-256 {here['sha256'][:16]}…"
    else:
        return None
    return Problem(what, lock.places.get(("files", name)), hint, id="lock-file-differs", about=(name,))
