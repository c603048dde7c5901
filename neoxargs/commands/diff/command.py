"""`deepy diff A B`: the resolved values of two runs side by side, ranked by what their difference can do."""

from __future__ import annotations

import json
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence

from neoxargs.base.charts.html_page import BEGINNING
from neoxargs.base.files import Text
from neoxargs.base.options import gpu_count, version_number
from neoxargs.base.problems import Problem, Problems, listed, report
from neoxargs.base.write_files import require_replaceable, write_all
from neoxargs.commands.diff import at_step, text, upgrade
from neoxargs.commands.diff.differences import RankedDifference, ranked
from neoxargs.commands.diff.launches import earlier_to_json, same_before
from neoxargs.commands.diff.losses import read_losses
from neoxargs.commands.diff.operands import read_sides
from neoxargs.commands.diff.page import page
from neoxargs.commands.diff.side import Side
from neoxargs.commands.diff.weights import compare

DESCRIPTION = (
    "Compare two runs and list the resolved values that differ, each with its source. Values that can change the "
    "result of training come first. A and B can be YAML files (a.yml+b.yml merges two files), run folders, "
    "run.lock.yml files or checkpoints, including GPT-NeoX checkpoints. Of two checkpoints, the weights and optimizer "
    "states are compared too. Exit code: 0 if the differences cannot "
    "change any number in training, as tests show for the engine of both runs, 1 otherwise or if weights differ, 2 if "
    "A or B cannot be read."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `deepy diff`, except --json."""
    add = parser.add_argument
    add("a", metavar="A", help="a YAML file (or several, joined with +), a run folder, a run.lock.yml or a checkpoint")
    add("b", metavar="B", nargs="?", help="the run to compare with A, as a file or folder of any of these kinds")
    add("more", nargs="*", default=[], help=SUPPRESS)  # so that the message can say how files are merged
    add("-d", "--conf_dir", "--conf-dir", metavar="DIR", help="look for the files in DIR first")
    add("--gpus", metavar="N", type=gpu_count, help="assume N GPUs for a run that is given as YAML files")
    add("--at", metavar="STEP", type=_step, help="also show learning rate, tokens, batch and data mixture at STEP")
    add("--html", metavar="FILE", help="also write an HTML page, with the losses if A and B are run folders")
    add("--deepspeed", metavar="A..B", type=_versions, help="show what another version of DeepSpeed changes for file A")
    add("--allow-rounding", action="store_true", help="exit with code 0 if the differences can change only rounding")


def run(options: Namespace) -> int:
    """Print the comparison and return the exit code; raises Problems if A or B cannot be read."""
    if options.deepspeed:
        return upgrade.run(options)
    names = [name for name in (options.a, options.b, *options.more) if name]
    if len(names) != 2:
        raise Problems(_not_two(names))
    require_replaceable(options.html, BEGINNING)
    a, b = read_sides((options.a, options.b), options.conf_dir, options.gpus)
    found, losses = ranked(a, b), read_losses(a, b)
    weights, uncompared = compare(a, b)
    matter = {"result", "unshown", *(() if options.allow_rounding else ("rounding",))}
    differs = any(each.impact in matter for each in found) or (weights is not None and not weights.same)
    code = int(differs or not same_before(a.launches, b.launches))
    at = at_step.rows(a, b, options.at) if options.at else []
    if options.html:
        write_all([Text(options.html, page(a, b, found, losses, at, options.at, weights))])
    warnings = [*(losses.warnings if losses else ()), *uncompared]
    if options.json:
        more: dict[str, object] = {"at": {label: {"a": one, "b": other} for label, one, other in at}} if at else {}
        more |= {"losses": losses.to_json()} if losses else {}
        more |= {"weights": weights.to_json()} if weights else {}
        more["problems"] = [problem.to_json() for problem in warnings]
        print(_as_json(a, b, found, code, more))
        return code
    print("\n".join(text.lines(a, b, found, weights)))
    if at:
        print("\n".join(text.section(f"at step {options.at}", [("", "A", "B"), *at])))
    if weights:
        print("\n".join(text.section("weights and optimizer state", list(weights.lines()))))
        print("\n".join(text.rows_of(list(weights.table()))), end="\n" * bool(weights.differences))
    if losses:
        print("\n".join(text.section("losses", [[line] for line in losses.lines()])))
    report(warnings)
    return code


def _not_two(names: Sequence[str]) -> Problem:
    were = "was" if len(names) == 1 else "were"
    what = f"deepy diff compares two runs, but {len(names)} {were} given: {listed(names, 'and')}"
    if len(names) == 1:
        return Problem(what, hint="name the other run too, or add --deepspeed A..B", id="diff-of-two-runs")
    half = len(names) // 2
    hint = f"join the YAML files of each run with +, for example {'+'.join(names[:half])} {'+'.join(names[half:])}"
    return Problem(what, hint=hint, id="diff-of-two-runs")


def _versions(word: str) -> tuple[str, str]:
    a, dots, b = word.partition("..")
    if not dots:
        raise ArgumentTypeError(f"{word!r} is not a pair of versions; write for example 0.19.6..0.19.8")
    return version_number(a), version_number(b)


def _step(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise ArgumentTypeError(f"{word!r} is not a step number; write a whole number of at least 1")
    return int(word)


def _as_json(a: Side, b: Side, found: Sequence[RankedDifference], code: int, more: Mapping[str, object]) -> str:
    sides = {
        letter: {
            "name": side.name,
            "kind": side.kind,
            "ranks": side.ranks,
            "not_recorded": text.not_compared(side),
            "launches": len(side.launches),
            "earlier": earlier_to_json(side.launches),
        }
        for letter, side in (("a", a), ("b", b))
    }
    impacts = {each.impact for each in found}
    verdict = next((impact for impact in text.VERDICTS if impact in impacts), "")
    answer = {
        "ok": not code,
        "verdict": verdict or (("weights" if "weights" in more else "launches") if code else "same"),
        **sides,
        "differences": [each.to_json() for each in found],
    }
    return json.dumps({**answer, **more}, indent=2, default=str)
