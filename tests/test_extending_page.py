"""The six steps of "A built-in parameter" in docs/extending.md, followed in a copy, end with tests that pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.checkout import copied, insert, run
from tests.support.paths import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: What the steps change: file -> the text before which lines are added, and these lines.
ADDED = {
    "neoxargs/registry/model.py": (
        "    attention_config: list[Any] = param(",
        '    attention_gain: Positive = param(1.0, ours=True)\n    """Factor of the attention\'s output."""\n\n',
    ),
    "neoxargs/resolve/rules/model.py": (
        '@derives("attention_config")',
        "@check\n"
        "def attention_gain_below_two(attention_gain: float) -> Findings:\n"
        '    """A larger gain lets the residual stream overflow.\n\n        attention_gain: 3\n    """\n'
        "    if attention_gain >= 2:\n"
        '        yield refuse(f"attention_gain ({attention_gain:g}) must be below 2", "set attention_gain to 1")\n\n\n',
    ),
    "neoxargs/train/model/attention.py": (
        "        return self.dense(self.recompute(_by_token, context_BNSH))",
        "        context_BNSH = context_BNSH * self.gain\n",
    ),
}
TEST = '''"""The gain scales what attention adds."""

from __future__ import annotations

import pytest
import torch

from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.small_gpt import VOCABULARY, batch, small


@pytest.mark.shows("attention_gain")
def test_the_gain_changes_the_logits() -> None:
    tokens, _ = batch(1)
    plain, louder = (GPT(small(attention_gain=gain), VOCABULARY, Weights(1), Shared())(tokens) for gain in (1.0, 1.5))
    assert not torch.equal(plain, louder)
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository with the changes of steps 1 to 5."""
    folder = copied(tmp_path / "checkout")
    for name, (before, lines) in ADDED.items():
        insert(folder / name, before, lines, "")
    gain = "        self.gain = config.attention.attention_gain\n"
    insert(folder / "neoxargs/train/model/attention.py", "        self.dense = weights.row(", gain, "")
    (folder / "tests/train/model/test_gain.py").write_text(TEST)
    return folder


def test_the_steps_for_a_parameter_end_with_tests_that_pass(checkout: Path) -> None:
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    wording = re.search(r"UPDATE=1 python (-m pytest .+)", page)
    effects = re.search(r"`UPDATE=1 python (-m pytest .+)`", page)
    assert wording and effects
    run(checkout, "deepy.py", "docs")
    run(checkout, *wording[1].split(), UPDATE="1")
    run(checkout, *effects[1].split(), "-n", "0", UPDATE="1")  # each process would collect all tests
    tests = ["tests/train/model/test_gain.py", "tests/registry/test_declarations.py", "tests/registry/test_effects.py"]
    run(
        checkout, "-m", "pytest", "-n", "2", *tests, "tests/commands/docs", "tests/test_shows.py", "tests/resolve/rules"
    )
    assert "test_gain.py" in (checkout / "docs/effects.md").read_text(encoding="utf-8")
    assert "attention-gain-below-two" in run(checkout, "deepy.py", "explain", "attention_gain_below_two")
