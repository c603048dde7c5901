"""`deepy checkpoints FOLDER`: list the checkpoints of a run, verify their checksums, and remove old ones."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neoxargs import checkpoint_folder
from neoxargs.problems import Problem, Problems
from neoxargs.registry import REGISTRY
from neoxargs.text import format_bytes, format_duration

DESCRIPTION = "List the checkpoints of a run, verify their checksums, or remove old ones."
#: What a checkpoint's layout is made of.
SIZES = {"tp": "model_parallel_size", "pp": "pipe_parallel_size"}

#: Returns what is wrong with a checkpoint.
Examine = Callable[[Path], str]


@dataclass(frozen=True)
class Listed:
    """A checkpoint in the list."""

    folder: Path
    written: float
    size: int
    layout: str
    damage: str
    latest: bool
    recorded: str
    """What its files.json records of each file: checksum, size, or nothing, as other programs do."""
    verified: bool
    """Whether checksums were compared."""

    @property
    def iteration(self) -> int:
        return checkpoint_folder.iteration_of(self.folder)

    @property
    def state(self) -> str:
        if self.damage:
            return f"damaged: {self.damage}"
        known = {"checksum": "verified" if self.verified else "complete", "size": "complete", "nothing": "not recorded"}
        return known[self.recorded] + (", latest" if self.latest else "")

    def to_json(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration, "folder": str(self.folder), "written": round(self.written), "bytes": self.size,
            "layout": self.layout, "damage": self.damage, "latest": self.latest, "recorded": self.recorded,
            "verified": self.verified,
        }  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the checkpoints: save")
    parser.add_argument("--verify", action="store_true", help="read all files and verify their checksums")
    parser.add_argument(
        "--prune", metavar="KEEP", type=int, help="remove all but the KEEP undamaged checkpoints written last"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before --prune removes checkpoints")


def run(options: Namespace) -> int:
    """Print the list and return the exit code: 1 if --verify finds damage."""
    root = Path(options.folder)
    folders = checkpoint_folder.checkpoints(root)
    if not folders:
        hint = "pass the folder that the run sets as save"
        raise Problems(Problem(f"{root}: there is no checkpoint in this folder", hint=hint, id="checkpoint-missing"))
    if options.prune is not None:
        return _prune(root, folders, options)
    with _progress(folders if options.verify else []) as verify:
        listed = [examine(folder, verify if options.verify else checkpoint_folder.damage) for folder in folders]
    failed = options.verify and any(row.damage for row in listed)
    if options.json:
        found = {"checkpoints": [row.to_json() for row in listed]}
        print(json.dumps({"ok": not failed, "problems": [], **found}, indent=2))
    else:
        print("\n".join([*table(listed, time.time()), *_leftovers(root)]))
    return int(failed)


def examine(folder: Path, find_damage: Examine) -> Listed:
    """Return the row of a checkpoint."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return Listed(
        folder=folder,
        written=checkpoint_folder.written(folder) / 1e9,
        size=sum(file.stat().st_size for file in files),
        layout=_layout(folder),
        damage=find_damage(folder),
        latest=checkpoint_folder.latest(folder.parent) == folder.name,
        recorded=(recorded := _recorded(folder)),
        verified=recorded == "checksum" and find_damage is not checkpoint_folder.damage,
    )


def table(listed: Sequence[Listed], now: float) -> list[str]:
    """Return the lines of the list."""
    rows = [("iteration", "age", "size", "layout", "state")]
    rows += [
        (str(row.iteration), format_duration(max(0, now - row.written)), format_bytes(row.size), row.layout, row.state)
        for row in listed
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].rjust(widths[0]), *map(str.ljust, row[1:], widths[1:])]).rstrip() for row in rows
    ]  # fmt: skip


def to_remove(folders: Sequence[Path], keep: int, verify: Examine) -> list[tuple[Path, str]]:
    """Return the checkpoints to remove and why: all but the `keep` undamaged ones written last.

    Checkpoints are verified, the newest first, until there are enough to keep.
    """
    kept, removed = 0, []
    for folder in sorted(folders, key=checkpoint_folder.written, reverse=True):
        damage = verify(folder) if kept < keep else ""
        if damage or kept == keep:
            removed.append((folder, f"damaged: {damage}" if damage else "older"))
        else:
            kept += 1
    return removed


def _prune(root: Path, folders: Sequence[Path], options: Namespace) -> int:
    if options.prune < 1:
        hint = "write --prune 1 to keep the newest undamaged checkpoint"
        raise Problems(Problem(f"--prune ({options.prune}) would remove every checkpoint", hint=hint, id="prune-all"))
    with _progress(folders) as verify:
        removed = to_remove(folders, options.prune, verify)
    if len(removed) == len(folders):
        what = f"{root}: every checkpoint is damaged, so --prune removes none of them"
        raise Problems(Problem(what, hint="--verify shows what is damaged", id="checkpoint-all-damaged"))
    sizes = {folder: examine(folder, checkpoint_folder.damage).size for folder, _ in removed}
    if not options.json:
        for folder, reason in removed:
            print(f"{folder}  {format_bytes(sizes[folder])}  {reason}")
    if removed and not options.yes:
        what = f"remove {len(removed)} of {len(folders)} checkpoints ({format_bytes(sum(sizes.values()))})"
        _confirm(what, can_ask=sys.stdin.isatty() and not options.json)
    for folder, _ in removed:
        checkpoint_folder.remove(folder)
    if checkpoint_folder.latest(root) in {folder.name for folder, _ in removed}:
        newest = checkpoint_folder.newest(root)
        assert newest
        checkpoint_folder.point_latest_at(newest)
    if options.json:
        gone = [{"folder": str(folder), "reason": reason} for folder, reason in removed]
        print(json.dumps({"ok": True, "problems": [], "removed": gone}, indent=2))
    else:
        print(f"removed: {len(removed)}; kept: {len(folders) - len(removed)}")
    return 0


def _confirm(what: str, can_ask: bool) -> None:
    """Ask on the terminal; raise Problems if that is not possible, or if the answer is not yes."""
    if not can_ask:
        hint = "add --yes to remove them without being asked"
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


def _layout(folder: Path) -> str:
    values = checkpoint_folder.configuration(folder)
    if values is None:
        return "not recorded"
    sizes = [f"{word}{values.get(name, REGISTRY.parameters[name].default)}" for word, name in SIZES.items()]
    stage = values.get("zero_optimization", {}).get("stage")
    ranks = values.get("world_size")
    return ", ".join([" ".join(sizes), *([f"ZeRO-{stage}"] if stage else []), *([f"{ranks} ranks"] if ranks else [])])


def _recorded(folder: Path) -> str:
    try:
        found = checkpoint_folder.digests(folder).values()
    except ValueError:
        return "nothing"
    return "nothing" if not found else "size" if any(digest.crc32 is None for digest in found) else "checksum"


def _leftovers(root: Path) -> list[str]:
    """Return a line for each checkpoint that is being written or removed, or that a killed run left."""
    return [
        f"{path.name}: {'written' if path.name.startswith(checkpoint_folder.WRITING) else 'removed'} now, or left by "
        "a killed run"
        for path in sorted([*root.glob(f"{checkpoint_folder.WRITING}*"), *root.glob(f"{checkpoint_folder.REMOVING}*")])
    ]
