"""`deepy migrate SOURCE ...`: a configuration from elsewhere, or from another year, as today's YAML.

GPT-NeoX's files are edited where they stand, and shown as a diff until `--write` is said. What comes from DeepSpeed
or Megatron-LM becomes a new file, on stdout or in `-o FILE`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from neoxargs.problems import Problem, Problems, listed, render
from neoxargs.resolve import Text, read_files
from neoxargs.resolve.dialect import NAMES
from neoxargs.tools.check import as_json as problem_as_json
from neoxargs.tools.migrate_neox import Change, migrate
from neoxargs.tools.migrate_write import changed, diff, write_all

DESCRIPTION = """Bring a configuration to today's YAML. GPT-NeoX's files are edited in place, comments and all, and
shown as a diff until --write is said; files that belong together are given together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line of this verb has besides --json."""
    add = parser.add_argument
    add("files", metavar="SOURCE", nargs="+", help="YAML files of GPT-NeoX that belong together")
    add("-d", "--conf_dir", "--conf-dir", metavar="DIR", help="folder in which SOURCEs are looked for first")
    add("--to", metavar="|".join(NAMES), type=_dialect, default="neox-2026", help="the dialect to write")
    add("--write", action="store_true", help="write the files, all of them or none")


def _dialect(text: str) -> str:
    if text.lower() not in NAMES:
        raise argparse.ArgumentTypeError(f"{text} is not {listed(NAMES)}")
    return text.lower()


def report(wish: argparse.Namespace) -> int:
    """Migrate, show and perhaps write; returns the exit code."""
    try:
        return _neox(wish, read_files(wish.files, wish.conf_dir))
    except Problems as stop:
        if not wish.json:
            raise
        _print({"ok": False, "problems": [problem_as_json(problem) for problem in stop.problems]})
        return 1


def _neox(wish: argparse.Namespace, texts: list[Text]) -> int:
    migrated = migrate(texts, wish.to)
    files = list(changed(texts, migrated.texts))
    if wish.write:
        write_all([new for _, new in files])
    if wish.json:
        facts = {"files": [{"file": new.name, "diff": diff(old, new), "text": new.text} for old, new in files]}
        changes = [_as_json(change) for change in migrated.changes]
        _print({**_told(migrated.problems), **facts, "changes": changes, "written": wish.write and bool(files)})
        return 0
    print("".join(diff(old, new) for old, new in files), end="")
    lines = [_line(change) for change in migrated.changes] or [f"nothing to change for {wish.to}"]
    if files:
        lines.append("written" if wish.write else "nothing is written yet: add --write")
    if migrated.problems:
        lines.append(render(migrated.problems))
    print("\n".join(lines), file=sys.stderr)
    return 0


def _line(change: Change) -> str:
    since = f", {change.since}" if change.since else ""
    if not change.before:
        return f"{change.where.file}: added {change.after} ({change.why}{since})"
    return f"{change.where}: {change.before} → {change.after or 'left out'} ({change.why}{since})"


def _as_json(change: Change) -> dict[str, Any]:
    return {
        "file": change.where.file,
        "line": change.where.line,
        "column": change.where.column,
        "before": change.before,
        "after": change.after,
        "why": change.why,
        "since": change.since.isoformat() if change.since else None,
    }


def _told(problems: Sequence[Problem]) -> dict[str, Any]:
    return {"ok": True, "problems": [problem_as_json(problem) for problem in problems]}


def _print(facts: dict[str, Any]) -> None:
    print(json.dumps(facts, indent=2, ensure_ascii=False))
