"""Mistakes planted in the shipped configurations and in GPT-NeoX's: `--fix` restores the values, or leaves an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import has_errors
from neoxargs.base.request import Request
from neoxargs.commands.check.fix import correct, find_in
from neoxargs.resolve import File, draft
from neoxargs.resolve.yaml.write import Setting, yaml_text
from tests.support.paths import CONFIGS, corpus_files
from tests.support.planted_mistakes import PLANTS

REQUEST = Request(["my.yml"], gpus=8)


def planted(files: list[Path], rounds: int) -> Iterator[tuple[str, str, str]]:
    """Yield a kind of mistake, a text, and the text with the mistake, which is an error that it did not have."""
    for number in range(rounds):
        for index, path in enumerate(files):
            text, kind = path.read_text(), [*PLANTS][(index + 7 * number) % len(PLANTS)]
            if kind in ("tab", "dotted", "outdented", "moved"):  # for which there must be blocks
                settings = {name: Setting(value.value) for name, value in draft([File("", text)]).values.items()}
                text = yaml_text(settings)
            new = PLANTS[kind](text, Random(f"{number} {path.name}"))
            if new and errors(new) - errors(text):
                yield kind, text, new


def errors(text: str) -> Counter[str]:
    return Counter(problem.what for problem in draft([File("my.yml", text)]).problems)


def values(text: str) -> dict[str, Any]:
    return {name: value.value for name, value in draft([File("my.yml", text)]).values.items()}


@pytest.mark.slow
def test_a_planted_mistake_is_corrected_or_remains_an_error() -> None:
    outcomes: Counter[str] = Counter()
    for kind, text, new in planted([*sorted(CONFIGS.rglob("*.yml")), *corpus_files()], 3):
        find = find_in([REQUEST])
        [after] = correct([Text("my.yml", new)], find).after
        is_right = values(after.text) == values(text) and not errors(after.text) - errors(text)
        outcomes["right" if is_right else "left"] += 1
        assert is_right or has_errors(find([after])[0].problems), f"{kind}:\n{after.text}"
    assert outcomes["right"] > 100 and outcomes["right"] > 0.8 * outcomes.total(), outcomes
