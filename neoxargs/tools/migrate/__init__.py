"""`deepy migrate SOURCE ...`: a configuration from elsewhere, or from another year, as today's YAML.

GPT-NeoX's files are edited where they stand, and shown as a diff until `--write` is said. What comes from DeepSpeed
or Megatron-LM becomes a new file, on stdout or in `-o FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from neoxargs.problems import Place, Problem, Problems, listed, render
from neoxargs.resolve import Text, read_files
from neoxargs.resolve.dialect import NAMES
from neoxargs.tools.migrate.deepspeed.convert import Written, chosen, is_deepspeeds, versions
from neoxargs.tools.migrate.deepspeed.convert import converted as deepspeed
from neoxargs.tools.migrate.deepspeed.lenient_json import blocks
from neoxargs.tools.migrate.launchable import not_launchable
from neoxargs.tools.migrate.megatron.convert import converted as megatron
from neoxargs.tools.migrate.megatron.convert import is_megatrons
from neoxargs.tools.migrate.neox.migrate import Change, migrate
from neoxargs.tools.write import changed, diff, write_all

DESCRIPTION = """Bring a configuration to today's YAML. GPT-NeoX's files are edited in place, comments and all, and
shown as a diff until --write is said; files that belong together are given together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line of this verb has besides --json."""
    add = parser.add_argument
    add("files", metavar="SOURCE", nargs="+", help="YAML of GPT-NeoX, or one file of DeepSpeed or Megatron-LM")
    add("-d", "--conf_dir", "--conf-dir", metavar="DIR", help="folder in which SOURCEs are looked for first")
    add("--to", metavar="|".join(NAMES), type=_dialect, default="neox-2026", help="the dialect to write")
    add("--from", dest="source", choices=SOURCES, help="what SOURCE is, if it is taken for something else")
    add("--var", metavar="NAME=VALUE", action="append", default=[], type=_variable, help="a variable of the script")
    add("--choose", metavar="N", type=int, help="of several configurations in one file, the N-th")
    add("-o", "--output", metavar="FILE", help="where the new YAML goes, instead of stdout")
    add("--write", action="store_true", help="write the files, all of them or none")


#: How a new file that goes to stdout is called where a line of it is meant.
NEW = "new YAML"
#: What a SOURCE can be.
SOURCES = ("neox", "deepspeed", "megatron")
#: How a script is called that is not YAML, whatever stands in it.
SHELLS = (".sh", ".bash", ".slurm", ".sbatch")


def _dialect(text: str) -> str:
    if text.lower() not in NAMES:
        raise argparse.ArgumentTypeError(f"{text} is not {listed(NAMES)}")
    return text.lower()


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


def report(wish: argparse.Namespace) -> int:
    """Migrate, show and perhaps write; returns the exit code."""
    try:
        texts = read_files(wish.files, wish.conf_dir)
        source = wish.source or guessed(texts[0])
        if source == "neox" and texts[0].name.endswith(SHELLS):
            raise Problems([_no_configuration(texts[0])])
        _refuse_what_has_no_meaning(wish, source)
        if source == "neox":
            return _neox(wish, texts)
        return _new_file(wish, texts, source)
    except Problems as stop:
        if not wish.json:
            raise
        _print({"ok": False, "problems": [problem.to_json() for problem in stop.problems]})
        return 1


def _refuse_what_has_no_meaning(wish: argparse.Namespace, source: str) -> None:
    """Options that would be ignored for this kind of file."""
    if source == "neox" and (wish.output or wish.choose is not None):
        option, hint = ("-o", "use --write") if wish.output else ("--choose", "leave it out")
        raise Problems([Problem(f"{option} has no meaning for GPT-NeoX's YAML, which is edited in place", hint=hint)])
    if source != "neox" and wish.write and not wish.output:
        raise Problems([Problem("--write needs -o FILE: what this becomes is a new file", hint="add -o my.yml")])
    if source != "megatron" and wish.var:
        raise Problems([Problem("--var is for a script that starts Megatron-LM", hint="leave it out")])
    if source != "neox" and wish.to != "neox-2026":
        what = f"--to {wish.to} is for GPT-NeoX's YAML; other files become neox-2026"
        raise Problems([Problem(what, hint="migrate the new file in a second step")])


def guessed(text: Text) -> str:
    """What a file is: YAML by its name, or else by what stands in it."""
    if text.name.endswith((".yml", ".yaml")):
        return "neox"
    if is_megatrons(text):
        return "megatron"
    try:
        found = blocks(text)
    except Problems:
        return "deepspeed"
    return "deepspeed" if found and all(is_deepspeeds(block.tree) for block in found) else "neox"


def _no_configuration(text: Text) -> Problem:
    """Told of a script that starts something else, such as a Trainer of Hugging Face."""
    match = re.search(r"--deepspeed(?:[-_]config)?[= ]+(\S+\.json)\b", text.text)
    hint = f"deepy migrate {match[1]}, which is DeepSpeed's" if match else "flags such as --num-layers are looked for"
    return Problem("nothing in this script starts Megatron-LM", Place(text.name, 0, 0), hint)


def _deepspeed(wish: argparse.Namespace, text: Text) -> Written:
    found = versions(blocks(text))
    if not found:
        hint = "a configuration is `{ ... }`, beginning on a line of its own"
        raise Problems([Problem("there is no configuration in this file", Place(text.name, 0, 0), hint)])
    return deepspeed(chosen(found, wish.choose, text.name), text.name)


def _new_file(wish: argparse.Namespace, texts: list[Text], source: str) -> int:
    """From a file that is not ours to YAML on stdout or in a new file."""
    if len(texts) > 1:
        what = "one file at a time becomes YAML, unless it is GPT-NeoX's"
        raise Problems([Problem(what, Place(texts[1].name, 0, 0))])
    (text,) = texts
    result = megatron(text, dict(wish.var), os.environ, wish.choose) if source == "megatron" else _deepspeed(wish, text)
    result.problems += not_launchable(Text(wish.output or NEW, result.text))
    if wish.output:
        write_all([Text(wish.output, result.text)], replace=wish.write)
    if wish.json:
        facts = {"text": result.text, "changes": [_as_json(change) for change in result.changes]}
        _print({**_told(result.problems), **facts, "written": bool(wish.output)})
        return 0
    if not wish.output:
        print(result.text, end="")
    lines = [_line(change) for change in result.changes] + [render(result.problems)] * bool(result.problems)
    print("\n".join([*lines, *([f"{wish.output} written"] if wish.output else [])]), file=sys.stderr)
    return 0


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
    return {"ok": True, "problems": [problem.to_json() for problem in problems]}


def _print(facts: dict[str, Any]) -> None:
    print(json.dumps(facts, indent=2, ensure_ascii=False))
