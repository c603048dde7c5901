"""The catalogue of problems that `deepy explain ID` prints: for each id, what it protects from and an example.

Rules explain themselves (`neoxargs/resolve/rules/`). All other problems are explained in `problems/*.md`, a section per
id: a paragraph and, if `check` can show the problem, its example as a code block. Words after `yaml` are options of the
example: `without=PARAMETER` removes it from the smallest model, `"set=KEY=VALUE"` is an argument of `--set`. A block
`text file=NAME` is another file in the same folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from neoxargs.base.record import Record
from neoxargs.registry import REGISTRY
from neoxargs.resolve.rules import CHECKS, DERIVATIONS

FOLDER = Path(__file__).with_name("problems")
#: A code block; more than three backticks surround an example that contains three.
BLOCK = re.compile(r"^(?P<fence>`{3,})(?P<language>\w+)(?P<options>.*)\n(?P<text>(?s:.*?))(?P=fence)$", re.M)


class Example(Record):
    """A configuration with the problem, checked together with the smallest model.

    overrides: arguments of `--set`.
    files: other files in the same folder, as name -> content. They are hostfiles, which determine the number of GPUs.
    without: parameters to remove from the smallest model.
    """

    config: str
    overrides: tuple[str, ...] = ()
    files: Mapping[str, str] = {}
    without: tuple[str, ...] = ()


class Entry(Record):
    """What the catalogue holds for one id.

    protects_from: what would go wrong, on the GPUs or for the user, if this problem were not reported.
    example: None for a problem that `check` cannot show because it involves another machine, program or file.
    reads: the parameters that a rule reads; empty for problems that are not reported by a rule.
    """

    protects_from: str
    example: Example | None = None
    reads: tuple[str, ...] = ()


@cache
def catalogue() -> dict[str, Entry]:
    """Return every problem id with its entry."""
    rules = {
        rule.id: Entry(rule.protects_from, Example(rule.example), tuple(filter(REGISTRY.parameters.get, rule.inputs)))
        for rule in (*DERIVATIONS, *CHECKS)
        if rule.protects_from
    }
    return rules | dict(section for file in sorted(FOLDER.glob("*.md")) for section in _sections(file))


def known_ids() -> Collection[str]:
    """Return the ids of all problems, those of the rules of plugins included."""
    return {*catalogue(), *(rule.id for rule in (*DERIVATIONS, *CHECKS))}


def _sections(file: Path) -> Iterator[tuple[str, Entry]]:
    _, *parts = re.split(r"^## (\S+)\n", file.read_text(encoding="utf-8"), flags=re.M)
    for problem_id, body in zip(parts[::2], parts[1::2], strict=True):
        paragraph = body.partition("\n\n")[0]
        yield problem_id, Entry(" ".join(paragraph.split()), _example(list(BLOCK.finditer(body))))


def _example(blocks: Sequence[re.Match[str]]) -> Example | None:
    if not blocks:
        return None
    options = {block: [word.partition("=")[::2] for word in shlex.split(block["options"])] for block in blocks}
    configuration, *others = blocks
    return Example(
        configuration["text"],
        overrides=tuple(value for key, value in options[configuration] if key == "set"),
        files={dict(options[block])["file"]: block["text"] for block in others},
        without=tuple(value for key, value in options[configuration] if key == "without"),
    )
