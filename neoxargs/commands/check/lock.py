"""`deepy check run.lock.yml`: what has changed since the run was launched."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from neoxargs.base.problems import SET, Place, Problem, Problems, has_errors, listed, report
from neoxargs.base.request import Request
from neoxargs.commands.diff.differences import RankedDifference, contents, ranked
from neoxargs.commands.diff.side import Side, of_lock, short_json, short_pair
from neoxargs.config.config import Config
from neoxargs.resolve import before_ranks, read_draft
from neoxargs.runs.epochs import samples_per_epoch
from neoxargs.runs.fingerprints import environment
from neoxargs.runs.lockfile import Lock, read_lock

#: Section -> what it is called in a message, and the id of a difference.
SECTIONS = {
    "code": ("code", "lock-code-differs"), "packages": ("package", "lock-package-differs"),
    "hardware": ("hardware", "lock-hardware-differs"),
}  # fmt: skip


#: What the difference of a value can do, for a warning.
WARNINGS: dict[str, str] = {
    "unshown": "no test shows that the difference keeps the result",
    "rounding": "the difference can change only rounding", "nothing": "the difference cannot change training",
    "unread": "the value is not used in training",
}  # fmt: skip


def run(request: Request) -> int:
    """Print the differences and return the exit code: 1 if a value or the content of a file is different."""
    if ignored := list(_ignored_options(request)):
        raise Problems(ignored)
    (name,) = request.files
    lock, side = read_lock(name), of_lock(name)
    places = [value.source.where for value in side.config.values.values() if value.source.where]
    files = list(dict.fromkeys(place.file for place in places if place.file != SET))
    overrides = list(dict.fromkeys(place.text for place in places if place.file == SET))
    missing = [file for file in files if not os.path.isfile(file)]
    problems = [_missing_sources(name, missing)] if missing else _settings(lock, side, files, overrides)
    same = "the values and the data are those of the launch"
    if problems:
        same = "the data is that of the launch; no value that differs is known to change the result"
    if missing:
        same = "the data is that of the launch; the values were not compared"
    problems += _environment(lock, side.config)
    failed = has_errors(problems)
    if request.as_json:
        print(json.dumps({"ok": not failed, "problems": [problem.to_json() for problem in problems]}, indent=2))
        return int(failed)
    report(problems)
    if not failed:
        print(f"ok\n  {same}")
        recorded = itertools.chain.from_iterable(lock.sections["files"].values())
        if sampled := [file["path"] for file in recorded if file.get("sampled")]:
            compare = "deepy data --verify compares token files completely"
            print(f"  {listed(sampled, 'and', most=3)}: compared by size and samples only; {compare}")
    return int(failed)


def _ignored_options(request: Request) -> Iterator[Problem]:
    """Yield a problem for each given option that does not apply to a lock file."""
    options = {
        "--gpus": request.gpus and "the number of ranks", "--set": request.overrides and "the --set arguments",
        "-d": request.directory and "the paths of the configuration files",
    }  # fmt: skip
    for option, recorded in options.items():
        if recorded:
            what = f"{option} does not apply to a lock file, because the file records {recorded} of its run"
            yield Problem(what, hint=f"remove {option}", id="lock-option-not-applicable")


def _missing_sources(name: str, missing: Sequence[str]) -> Problem:
    what = "the values are not compared, because these configuration files of the run do not exist here: "
    what += listed(missing, "and")
    hint = "run this command from the folder where the run was launched" if not all(map(os.path.isabs, missing)) else ""
    return Problem(what, Place(name, 0, 0), hint, severity="warning", id="lock-configuration-missing")


def _settings(lock: Lock, side: Side, files: Sequence[str], overrides: Sequence[str]) -> list[Problem]:
    """Return a problem for each value that the configuration files now give."""
    try:
        partial = before_ranks(read_draft(files, overrides=overrides))
        config = partial.complete(side.ranks, samples_per_epoch(partial))
    except Problems as stop:
        return stop.problems
    now = Side("now", "files", config, side.ranks)
    return [_other_value(lock, each) for each in ranked(side, now)]


def _other_value(lock: Lock, found: RankedDifference) -> Problem:
    then, now = short_pair(*found.values)
    what = f"{found.name} was {then} when the run was launched; with the current configuration files, it is {now}"
    place, source = lock.places.get(("values", found.name)), found.sources[1]
    hint = "; ".join(filter(None, [f"source of the new value: {source}" if source else "", WARNINGS.get(found.impact)]))
    severity: Any = "error" if found.impact == "result" else "warning"
    return Problem(what, place, hint, severity=severity, id="lock-value-differs", about=(found.name,))


def _environment(lock: Lock, config: Config) -> Iterator[Problem]:
    rates = lock.sections["hardware"].get("rates") or {}
    now = environment(config, lock.script, rates.get("path", ""))
    for section, (noun, problem_id) in SECTIONS.items():
        for name in {**lock.sections[section], **now[section]}:
            then, here = lock.sections[section].get(name), now[section].get(name)
            if then != here:
                what = (
                    f"{noun}: {name} was {short_json(then)} when the run was launched; here, it is {short_json(here)}"
                )
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
        hint = f"the file had {then['bytes']:,} bytes and SHA-256 {then['sha256'][:16]}…; it now has "
        hint += f"{here['bytes']:,} bytes and SHA-256 {here['sha256'][:16]}…"
    else:
        return None
    return Problem(what, lock.places.get(("files", name)), hint, id="lock-file-differs", about=(name,))
