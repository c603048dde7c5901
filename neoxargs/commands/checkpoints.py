"""`deepy checkpoints FOLDER`: list the checkpoints of a run, verify their checksums, and remove old ones."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Place, Problem, Problems, report, similar_folders
from neoxargs.base.text import aligned, format_bytes, format_duration
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.folder import Written
from neoxargs.files.neox_checkpoint import pickles
from neoxargs.files.neox_checkpoint.consistency import findings
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.files.neox_checkpoint.files import Files, files_of, neox_checkpoints
from neoxargs.processes.run_lock import lock_folder
from neoxargs.registry import REGISTRY

DESCRIPTION = "List the checkpoints of a run, verify their checksums, or remove old ones."
#: What a checkpoint's layout is made of.
SIZES = {"tp": "model_parallel_size", "pp": "pipe_parallel_size", "cp": "context_parallel_size"}
#: Letters of a run's id that are shown.
RUN_LETTERS = 8

#: Returns what is wrong with a checkpoint.
Examine = Callable[[Path], str]


@dataclass(frozen=True)
class Listed:
    """A checkpoint in the list."""

    folder: Path
    iteration: int
    written: float
    size: int
    layout: str
    content: str
    """Adapters or a soft prompt, and the model that they belong to; empty for a full model."""
    damage: str
    latest: bool
    recorded: str
    """What files.json records for each file: `checksum`, `size`, or `nothing` if it has no record."""
    verified: bool
    """Whether checksums were compared."""
    by: Written
    """The run that wrote it."""

    @property
    def state(self) -> str:
        known = {"checksum": "verified" if self.verified else "complete", "size": "complete", "nothing": "not recorded"}
        state = f"damaged: {self.damage}" if self.damage else known[self.recorded]
        loss = "" if self.by.validation_loss is None else f"; validation loss {self.by.validation_loss:.4f}"
        content = f"; {self.content}" if self.content else ""
        return state + (", latest" if self.latest else "") + loss + content

    def to_json(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration, "folder": str(self.folder), "written": round(self.written), "bytes": self.size,
            "layout": self.layout, "content": self.content, "damage": self.damage, "latest": self.latest,
            "recorded": self.recorded, "verified": self.verified, "run": self.by.run, "format": self.by.format,
            "validation_loss": self.by.validation_loss,
        }  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="the folder with the checkpoints: the value of `save`")
    add("--verify", action="store_true", help="read all files and verify their checksums")
    add("--prune", metavar="KEEP", type=int, help="remove all but the KEEP newest undamaged checkpoints")
    add("--yes", action="store_true", help="do not ask for confirmation before --prune removes checkpoints")


def run(options: Namespace) -> int:
    """Print the list and return the exit code: 1 if a checkpoint is damaged."""
    root = Path(options.folder)
    folders = checkpoint_folder.checkpoints(root) or neox_checkpoints(root)
    if not folders:
        raise Problems(_none_in(root))
    if options.prune is not None:
        if options.prune < 1:
            what = f"--prune ({options.prune}) would remove every checkpoint"
            hint = "write --prune 1 to keep the newest undamaged checkpoint"
            raise Problems(Problem(what, hint=hint, id="prune-all"))
        # A run that saves would remove, as leftovers, what is being removed here.
        with lock_folder(root, os.environ):
            return _prune(root, options)
    with _progress(folders if options.verify else []) as verify:
        listed = [examine(folder, verify if options.verify else checkpoint_folder.damage) for folder in folders]
    damaged = any(row.damage for row in listed)
    if options.json:
        rows = [row.to_json() for row in listed]
        for row, folder in zip(rows, folders, strict=True):
            if contents := _contents(folder):
                row["tensors"] = contents
        _print_json(root, not damaged, checkpoints=rows)
    else:
        print("\n".join([*table(listed, time.time()), *_leftovers(root), *_tensors(folders)]))
        report(_warnings(root))
    return int(damaged)


def _none_in(root: Path) -> Problem:
    """Return the problem of a path without checkpoints: it does not exist, is a file, or has none."""
    hint = "pass the folder that the run saves to: the value of `save` in the run's configuration"
    if os.path.isdir(root):
        what = "there is no checkpoint in this folder"
        if root in checkpoint_folder.checkpoints(root.parent):
            what, hint = "this is one checkpoint, not the folder that contains the checkpoints", f"pass {root.parent}"
    elif os.path.exists(root):
        what = "this is a file, not a folder with checkpoints"
    else:
        what, hint = "there is no such folder", similar_folders(str(root)) or hint
    return Problem(f"{root}: {what}", hint=hint, id="checkpoint-missing")


def _print_json(root: Path, ok: bool, **found: object) -> None:
    problems = [problem.to_json() for problem in _warnings(root)]
    print(json.dumps({"ok": ok, "problems": problems, **found}, indent=2))


def _warnings(root: Path) -> list[Problem]:
    wrong = checkpoint_folder.wrong_latest(root)
    if not wrong:
        return []
    place = Place(str(root / checkpoint_folder.LATEST), 0, 0)
    found = checkpoint_folder.newest(root)
    hint = f"a run that loads from this folder continues from {found.name}" if found else ""
    return [Problem(f"this file {wrong}", place, hint, severity="warning", id="latest-checkpoint-missing")]


def examine(folder: Path, find_damage: Examine) -> Listed:
    """Return the row of a checkpoint."""
    files, neox = [file for file in folder.rglob("*") if file.is_file()], _neox_files(folder)
    recorded = "checksum" if neox else _recorded(folder)  # torch.save's, in each file of GPT-NeoX's
    return Listed(
        folder=folder,
        # GPT-NeoX's published folders have other names.
        iteration=(neox.iteration or 0) if neox else checkpoint_folder.iteration_of(folder),
        # The time of the folder changes when a file is removed.
        written=(record if (record := folder / checkpoint_folder.FILES).exists() else folder).stat().st_mtime,
        size=sum(file.stat().st_size for file in files),
        layout=_neox_layout(neox) if neox else _layout(folder),
        content=_content(folder),
        damage=find_damage(folder) or (_inconsistency(neox) if neox else ""),
        latest=checkpoint_folder.latest(folder.parent) == folder.name,
        recorded=recorded,
        verified=recorded == "checksum" and find_damage is not checkpoint_folder.damage,
        by=checkpoint_folder.written_by(folder),
    )


def table(listed: Sequence[Listed], now: float) -> list[str]:
    """Return the lines of the list."""
    rows: list[tuple[str, ...]] = [("iteration", "age", "size", "layout", "run", "state")]
    rows += [
        (str(row.iteration), format_duration(max(0, now - row.written)), format_bytes(row.size), row.layout,
         row.by.run[:RUN_LETTERS] or "-", row.state)
        for row in listed
    ]  # fmt: skip
    if not any(row.by.run for row in listed):  # of other programs, or older
        rows = [(*row[:4], row[5]) for row in rows]
    width = max(len(row[0]) for row in rows)
    return aligned([(row[0].rjust(width), *row[1:]) for row in rows])


@dataclass
class Choice:
    """The checkpoints to keep and to remove; damage: what is wrong with some of them. line: what led to the newest."""

    kept: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    damage: dict[Path, str] = field(default_factory=dict)
    line: list[Path] = field(default_factory=list)

    def reason(self, folder: Path) -> str:
        """Return why a checkpoint is removed."""
        if folder in self.damage:
            return f"damaged: {self.damage[folder]}"
        latest = self.kept[0]  # unless `latest` names no checkpoint: then no iteration is higher
        if checkpoint_folder.iteration_of(folder) > checkpoint_folder.iteration_of(latest):
            return f"later than {latest.name}, which `latest` names"
        why = "older" if folder in self.line else f"of a run that {latest.name} does not continue"
        return why + ", but its validation loss is the lowest" * (folder == self.best)

    @cached_property
    def best(self) -> Path | None:
        """The checkpoint with the lowest validation loss; None if none has one."""
        losses = ((checkpoint_folder.written_by(each).validation_loss, each) for each in (*self.kept, *self.removed))
        return min(((loss, each) for loss, each in losses if loss is not None), default=(None, None))[1]

    def kept_line(self) -> str:
        """Return the names of the checkpoints to keep."""
        return ", ".join(
            folder.name + (f" (latest, damaged: {self.damage[folder]})" if folder in self.damage else "")
            for folder in self.kept
        )


def choose(root: Path, keep: int, verify: Examine) -> Choice:
    """Choose the `keep` newest undamaged checkpoints to keep, and also the one that `latest` names.

    Checkpoints are verified, the newest first, until there are enough to keep.
    """
    found, undamaged = checkpoint_folder.newest_first(root), 0
    choice = Choice(line=checkpoint_folder.line(found[0]))
    for folder in found:
        is_needed = undamaged < keep
        if is_needed and (damage := verify(folder)):
            choice.damage[folder] = damage
        elif is_needed:
            undamaged += 1
        stays = checkpoint_folder.is_in_latest(folder) or (is_needed and folder not in choice.damage)
        (choice.kept if stays else choice.removed).append(folder)
    return choice


def _prune(root: Path, options: Namespace) -> int:
    with _progress(checkpoint_folder.checkpoints(root)) as verify:
        choice = choose(root, options.prune, verify)
    if all(folder in choice.damage for folder in choice.kept):
        what = f"{root}: every checkpoint is damaged, so --prune removes none of them"
        raise Problems(Problem(what, hint="use --verify to see what is damaged", id="checkpoint-all-damaged"))
    sizes = {folder: examine(folder, checkpoint_folder.damage).size for folder in choice.removed}
    if not options.json:
        for folder, size in sizes.items():
            only_link = f"; only this link to {folder.readlink()} is removed" if folder.is_symlink() else ""
            print(f"{folder}  {format_bytes(size)}  {choice.reason(folder)}{only_link}")
        print(f"to keep: {choice.kept_line()}")
        report(_warnings(root))
    if choice.removed and not options.yes:
        total = len(choice.removed) + len(choice.kept)
        what = f"remove {len(choice.removed)} of {total} checkpoints ({format_bytes(sum(sizes.values()))})"
        _confirm(what, can_ask=sys.stdin.isatty() and not options.json)
    for folder in choice.removed:
        try:
            checkpoint_folder.remove(folder)
        except OSError as error:
            hint = "run this command as a user that can write to this folder"
            problem = Problem(f"{folder} cannot be removed: {error}", hint=hint, id="folder-not-writable")
            raise Problems(problem) from error
    if options.json:
        gone = [{"folder": str(folder), "reason": choice.reason(folder)} for folder in choice.removed]
        _print_json(root, True, removed=gone, kept=[str(folder) for folder in choice.kept])
    else:
        print(f"removed: {len(choice.removed)}; kept: {len(choice.kept)}")
    return 0


def _confirm(what: str, can_ask: bool) -> None:
    """Ask on the terminal; raise Problems if that is not possible, or if the answer is not yes."""
    if not can_ask:
        hint = "add --yes to remove them without being asked for confirmation"
        raise Problems(Problem(f"--prune would {what}", hint=hint, id="prune-needs-yes"))
    if input(f"{what}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Problems(Problem("--prune removed nothing, because the answer was not y", id="prune-declined"))


@contextmanager
def _progress(folders: Sequence[Path]) -> Iterator[Examine]:
    """Yield a function that verifies a checkpoint and advances a progress bar, if standard error is a terminal."""
    if not folders or not sys.stderr.isatty():
        yield checkpoint_folder.verify
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(
            "verifying", total=sum(examine(folder, checkpoint_folder.damage).size for folder in folders)
        )

        def verify(folder: Path) -> str:
            bar.update(task, description=folder.name)
            return checkpoint_folder.verify(folder, advance=lambda size: bar.advance(task, size))

        yield verify


def _neox_layout(files: Files) -> str:
    partitioned = f", optimizer state on {_ranks(files.data_ranks)}" if files.data_ranks else ""
    return f"GPT-NeoX, tp{files.tensor_ranks} pp{files.stages if files.by_layer else 0}{partitioned}"


def _layout(folder: Path) -> str:
    values = checkpoint_folder.configuration(folder)
    if values is None:
        return "not recorded"
    numbers = {word: values.get(name, REGISTRY.parameters[name].default) for word, name in SIZES.items()}
    sizes = [f"{word}{number}" for word, number in numbers.items() if word != "cp" or number > 1]
    stage = values.get("zero_optimization", {}).get("stage")
    ranks = values.get("world_size")
    return ", ".join([" ".join(sizes), *([f"ZeRO-{stage}"] if stage else []), *([_ranks(ranks)] if ranks else [])])


def _neox_files(folder: Path) -> Files | None:
    """Return the files of a GPT-NeoX checkpoint; None for deepy's and other programs'."""
    files = files_of(folder)
    try:
        # Other programs' files have the same names, but other weights.
        return files if files and (files.by_layer or Contents(files).layers) else None
    except Problems:
        return None


def _inconsistency(files: Files) -> str:
    """Return what is wrong with the files of a GPT-NeoX checkpoint."""
    if missing := list(files.missing()):
        return f"{missing[0]} is missing"
    for file in files.all():
        try:
            pickles.read(file)
        except Problems:
            return f"{file.name} cannot be read, or was saved under another name"
    try:
        return "; ".join(findings(Contents(files)))
    except Problems:
        return "its files do not belong together"


def _contents(folder: Path) -> list[dict[str, Any]]:
    """Return the tensors of a GPT-NeoX checkpoint, of the first tensor parallel rank; empty for deepy's, or damage."""
    files = files_of(folder)
    try:
        layers = Contents(files).layers if files and not [*files.missing()] else {}
    except Problems:
        return []
    return [
        {"layer": number, "name": name, "shape": list(refs[0].shape), "dtype": refs[0].dtype, "ranks": len(refs)}
        for number, names in layers.items()
        for name, refs in names.items()
    ]


def _tensors(folders: Sequence[Path]) -> list[str]:
    """Return the lines that list the tensors of the newest of GPT-NeoX's checkpoints; equal layers share a line."""
    last = next((folder for folder in reversed(folders) if files_of(folder)), None)
    by_layer: dict[int, list[str]] = {}
    for each in _contents(last) if last else []:
        ranks = f" on each of {each['ranks']} ranks" if each["ranks"] > 1 else ""
        shape = " x ".join(map(str, each["shape"]))
        by_layer.setdefault(each["layer"], []).append(f"{each['name']}  {shape} {each['dtype']}{ranks}")
    lines, shown = [f"tensors in {last.name}:"] if last and by_layer else [], list(by_layer.items())
    for position, (number, tensors) in enumerate(shown):
        if position and shown[position - 1][1] == tensors:
            continue
        end = next((other for other, more in reversed(shown) if more == tensors), number)
        lines.append(f"  layer {number}" if end == number else f"  layers {number} to {end}, each")
        lines += [f"    {line}" for line in tensors]
    return lines


def _ranks(count: int) -> str:
    return f"{count} rank" + "s" * (count != 1)


def _content(folder: Path) -> str:
    """Return what a checkpoint contains if that is not a full model."""
    base = checkpoint_folder.recorded_base(folder)
    if base is None:
        return ""
    lora = (checkpoint_folder.configuration(folder) or {}).get("lora", {})
    kind = f"adapters of rank {lora['rank']}" if lora.get("rank") else "a soft prompt"
    return f"{kind} for {base.folder or 'a model with random weights'}"


def _recorded(folder: Path) -> str:
    try:
        found = checkpoint_folder.digests(folder).values()
    except ValueError:
        return "nothing"
    return "nothing" if not found else "size" if any(digest.crc32 is None for digest in found) else "checksum"


def _leftovers(root: Path) -> list[str]:
    """Return a line for each checkpoint that is being written or removed, or that a killed run left."""
    return [
        f"{path.name}: being {'written' if path.name.startswith(checkpoint_folder.WRITING) else 'removed'} now, or "
        "left over from a killed run"
        for path in sorted([*root.glob(f"{checkpoint_folder.WRITING}*"), *root.glob(f"{checkpoint_folder.REMOVING}*")])
    ]
