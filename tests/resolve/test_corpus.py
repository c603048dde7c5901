"""Published configurations load: alone, each value checked, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.base.problems import Problems
from neoxargs.resolve import draft, read_files
from tests.support.paths import CORPUS, corpus_files, needs_corpus

#: What is wrong with published files, and stays wrong: a mistyped number, names that no GPT-NeoX has.
KNOWN = {
    "gmlp_small.yml": ['optimizer.params.eps ("1.0e_8") must be a number, at least 0'],
    "34B.yml": ["attention_type is not a parameter"],
    "7B.yml": ["decay_lr_to is not a parameter", "warmup_iters is not a parameter"],
}


@needs_corpus
@pytest.mark.parametrize("path", corpus_files(), ids=lambda path: str(path.relative_to(CORPUS)))
def test_a_published_configuration(path: Path) -> None:
    try:
        drafted = draft(read_files([path]))
    except Problems as bad:  # not a configuration at all
        assert [problem.what for problem in bad.problems] == []
        return
    known = KNOWN.get(path.name, [])
    assert {problem.what for problem in drafted.problems} <= set(known)
    assert drafted.values
