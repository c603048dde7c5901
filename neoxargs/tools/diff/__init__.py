"""`deepy diff A B`: the resolved values of two runs side by side, ranked by what their difference can do."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from neoxargs.options import gpu_count
from neoxargs.tools.diff import text
from neoxargs.tools.diff.differences import Difference, differences
from neoxargs.tools.diff.operands import read_sides
from neoxargs.tools.diff.side import Side

DESCRIPTION = (
    "Compare two runs: the resolved values that differ, each with its source, ranked by what the difference can do. "
    "A and B are YAML files (a.yml+b.yml merges files), run folders or checkpoints, also those of GPT-NeoX. "
    "Exit code: 0 if no difference can change a number in training, 1 if one can, 2 if A or B cannot be read."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `deepy diff`, except --json."""
    add = parser.add_argument
    add("a", metavar="A", help="a YAML file, several joined with +, a run folder or a checkpoint")
    add("b", metavar="B", help="what to compare it with")
    add("-d", "--conf_dir", "--conf-dir", metavar="DIR", help="look for files in DIR first")
    add("--gpus", metavar="N", type=gpu_count, help="resolve files for N GPUs")
    add("--allow-rounding", action="store_true", help="exit with 0 also if differences can change rounding")


def run(options: Namespace) -> int:
    """Print the comparison and return the exit code; raises Problems if A or B cannot be read."""
    a, b = read_sides((options.a, options.b), options.conf_dir, options.gpus)
    found = differences(a, b)
    code = exit_code(found, options.allow_rounding)
    print(_as_json(a, b, found, code) if options.json else "\n".join(text.lines(a, b, found)))
    return code


def exit_code(found: Sequence[Difference], allow_rounding: bool) -> int:
    """Return 1 if a difference can change a number in training."""
    matter = {"result"} if allow_rounding else {"result", "rounding"}
    return int(any(each.rank in matter for each in found))


def _as_json(a: Side, b: Side, found: Sequence[Difference], code: int) -> str:
    sides = {letter: _side_to_json(side) for letter, side in (("a", a), ("b", b))}
    verdict = next((rank for rank in ("result", "rounding", "nothing") if any(each.rank == rank for each in found)), "")
    answer = {"ok": not code, "verdict": verdict or "same", **sides, "differences": [each.to_json() for each in found]}
    return json.dumps({**answer, "problems": []}, indent=2, default=str)


def _side_to_json(side: Side) -> dict[str, object]:
    return {"name": side.name, "kind": side.kind, "ranks": side.ranks, "not_recorded": text.not_compared(side)}
