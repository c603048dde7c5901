"""Published configurations load: alone, each value checked, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.problems import Problems
from neoxargs.resolve import draft, read_files

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
FILES = sorted(path for path in CORPUS.rglob("*") if path.suffix in (".yml", ".yaml", ".json"))

#: What is wrong with published files, and stays wrong: a mistyped number, names that no GPT-NeoX has.
KNOWN = {
    "gmlp_small.yml": ['optimizer.params.eps ("1.0e_8") must be a number, at least 0'],
    "34B.yml": ["attention_type is not a parameter"],
    "7B.yml": ["decay_lr_to is not a parameter", "warmup_iters is not a parameter"],
}


@pytest.mark.skipif(not FILES, reason=f"no published configurations in {CORPUS}")
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_a_published_configuration(path: Path) -> None:
    try:
        drafted = draft(read_files([path]))
    except Problems as bad:  # not a configuration at all
        assert [problem.what for problem in bad.problems] == []
        return
    known = KNOWN.get(path.name, [])
    assert {problem.what for problem in drafted.problems} <= set(known)
    assert drafted.values
