"""Whatever a file has become, the answer is a configuration or problems in words, never a traceback."""

from __future__ import annotations

import random

import pytest

from neoxargs.base.problems import Problems
from neoxargs.registry import REGISTRY
from neoxargs.resolve import File, complete, draft
from tests.support.bad_inputs import GOOD

NAMES = [name for name in REGISTRY.parameters if "." not in name]
NESTED = sorted(set(REGISTRY.parameters) - set(NAMES))
CHARACTERS = "{}[]:,#&*!|>'\"%@`-?~\t \n\\0123.eE_<=\x00\x85\u2028é\ufeff"
VALUES = (
    "null", "true", "auto", "1e400", ".nan", "[]", "{}", '"x"', "-1", "0", "5e8", "[[1]]", "{a: 1}", "*a", "!!str",
    "0123", "'", "99999999999999999999", "all", "[a, null]", '[[["global"], 3]]',
)  # fmt: skip


def mangled(chance: random.Random) -> tuple[str, list[str]]:
    lines = GOOD.splitlines()
    for _ in range(chance.randrange(4)):
        lines.insert(chance.randrange(len(lines)), f"{chance.choice(NAMES)}: {chance.choice(VALUES)}")
    text = "\n".join(lines)
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(CHARACTERS) + text[at + chance.randrange(2) :]
    return text, [f"{chance.choice(NESTED)}={chance.choice(VALUES)}" for _ in range(chance.randrange(3))]


@pytest.mark.parametrize("seed", range(20))
def test_no_traceback(seed: int) -> None:
    chance = random.Random(seed)
    told = 0
    for _ in range(25):
        text, sets = mangled(chance)
        try:
            complete(draft([File("my.yml", text)], sets), gpus=8)
        except Problems as bad:
            told += 1
            assert all(problem.what for problem in bad.problems)
            assert "\x00" not in str(bad)
    assert told
