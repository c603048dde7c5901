"""Read what the command line names: configuration files, a run folder, or a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from neoxargs.base.problems import Place, Problem, Problems, did_you_mean
from neoxargs.base.record import replace
from neoxargs.base.request import is_lock
from neoxargs.commands.diff.side import Drafted, Side, is_record, of_checkpoint, of_lock, of_record
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.files.run_record import RECORD_FILE
from neoxargs.resolve import Draft, before_ranks, draft, read_files
from neoxargs.runs.epochs import samples_per_epoch
from neoxargs.runs.lenient import fitting_gpus, resolved

T = TypeVar("T")
R = TypeVar("R")

EXPECTED = "pass YAML files (a.yml, or a.yml+b.yml to merge them), a run folder, its run.lock.yml, or a checkpoint"


def read_sides(names: tuple[str, str], directory: str | None, gpus: int | None) -> tuple[Side, Side]:
    """Return both sides; raises Problems with everything that is wrong with either.

    gpus: the number of ranks of configuration files. By default, it is the number that either side determines, or the
    smallest number for which both can be resolved.
    """
    found = _call_on_each(lambda name: _read(name, directory), names)
    counted = list(zip(found, _ranks(found, gpus), strict=True))
    a, b = _call_on_each(lambda pair: _resolve(*pair), counted)
    return a, b


def _call_on_each(function: Callable[[T], R], arguments: Sequence[T]) -> list[R]:
    """Return the results of a function; raise the problems of all calls together."""
    results: list[R] = []
    problems: list[Problem] = []
    for argument in arguments:
        try:
            results.append(function(argument))
        except Problems as stop:
            problems += stop.problems
    if problems:
        raise Problems(dict.fromkeys(problems))
    return results


def _resolve(side: Side | Drafted, ranks: int) -> Side:
    if isinstance(side, Side):
        return side
    partial = before_ranks(side.draft)
    config = partial.complete(ranks, samples_per_epoch(partial))
    return Side(side.name, side.kind, config, ranks, checkpoint=side.checkpoint)


def _ranks(sides: Sequence[Side | Drafted], gpus: int | None) -> list[int]:
    """Return the number of ranks of each side."""
    fixed = [side.ranks if isinstance(side, Side) else gpus or side.ranks for side in sides]
    given = next((count for count in fixed if count), None)
    drafts = [side.draft for side in sides if isinstance(side, Drafted)]
    own = [count or (fitting_gpus(side.draft) if isinstance(side, Drafted) else 1)
           for count, side in zip(fixed, sides, strict=True)]  # fmt: skip
    # One number for both, if possible: otherwise everything that depends on it would differ, too.
    for common in [given] if given else sorted(own):
        if all(not resolved(each, common)[1] for each in drafts):
            return [count or common for count in fixed]
    return own


def _read(name: str, directory: str | None) -> Side | Drafted:
    if os.path.isdir(name):
        return _folder(name, Path(name))
    if os.path.basename(name) in (RECORD_FILE, checkpoint_folder.CONFIG) and os.path.isfile(name):
        return _folder(name, Path(name).parent)
    if is_lock(name) and os.path.exists(name):
        return of_lock(name)
    paths = [name] if os.path.exists(name) else name.split("+")
    if not all(paths):
        raise Problems(Problem(f'"{name}" contains an empty file name', hint=EXPECTED, id="diff-without-file"))
    try:
        files = read_files(paths, directory)
    except Problems as stop:
        raise Problems(map(_with_near_names, stop.problems)) from None
    drafted = draft(files)
    return Drafted(name, "files" if len(paths) > 1 else "file", drafted, _declared_ranks(drafted))


def _with_near_names(problem: Problem) -> Problem:
    """Add a hint to a missing path: similar names in its folder, such as those of run folders."""
    if problem.id != "file-missing" or problem.where is None:
        return problem
    folder, wanted = os.path.split(os.path.normpath(problem.where.file))
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return problem
    return replace(problem, hint=did_you_mean(wanted, names) or EXPECTED)


def _declared_ranks(drafted: Draft) -> int | None:
    """Return the number of ranks that the files set."""
    values = {name: value.value for name, value in drafted.values.items()}
    if values.get("global_num_gpus"):
        return int(values["global_num_gpus"])
    machines, per_machine = values.get("num_nodes", 1), values.get("num_gpus", -1)
    return int(per_machine) * max(int(machines), 1) if per_machine > 0 else None


def _folder(name: str, folder: Path) -> Side | Drafted:
    """Return the side of a run folder, of a checkpoint, or of the newest checkpoint in a folder."""
    found = next(_in_folder(name, folder), None)
    if found is None:
        what = "this folder contains neither the record of a run (config.json) nor a checkpoint with a configuration"
        raise Problems(Problem(what, Place(name, 0, 0), EXPECTED, id="diff-folder-unknown"))
    return found


def _in_folder(name: str, folder: Path) -> Iterator[Side | Drafted]:
    values = _json(folder / RECORD_FILE)
    if is_record(values):
        yield of_record(name, values, folder)
    newest = checkpoint_folder.newest(folder)
    for checkpoint in (folder, *([newest] if newest else [])):
        values = checkpoint_folder.configuration(checkpoint)
        if values and "num_layers" in values:  # Hugging Face's config.json does not have this name
            number = checkpoint.resolve().name.removeprefix(checkpoint_folder.PREFIX)
            yield of_checkpoint(name, values, int(number) if number.isdigit() else 0, checkpoint)
    contents = Contents.at(folder, None)
    if contents and contents.configurations:
        kind = f"GPT-NeoX checkpoint of iteration {contents.iteration}"
        yield Drafted(name, kind, contents.draft, contents.files.ranks, contents.folder)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        what = f"this file cannot be read as JSON: {error}"
        raise Problems(Problem(what, Place(str(path), 0, 0), id="diff-record-unreadable")) from None
