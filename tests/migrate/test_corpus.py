"""Published configurations resolve to the same after migrating in both directions; migrating twice changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoxargs.base.files import Text
from neoxargs.config.dialect import NAMES
from neoxargs.migrate.neox.migrate import migrate
from neoxargs.migrate.neox.verify import changed
from neoxargs.resolve import File, draft, read_files
from neoxargs.runs.lenient import resolved
from tests.support.paths import CORPUS, NEOX_2021, NEOX_HEAD, corpus_files, needs_corpus
from tests.support.reference import read
from tests.support.refused import refused
from tests.support.selection import mostly_slow

#: Files with a mistyped number, or with names that GPT-NeoX never had.
REFUSED = ("gmlp_small.yml", "llemma")


def cases() -> dict[str, list[Path]]:
    """Return every file alone, and the combinations that belong to one run."""
    found = {str(path.relative_to(CORPUS)): [path] for path in corpus_files()}
    for name, case in read("neox_head_translations.json").items():
        if len(case["files"]) > 1:
            found[name] = [NEOX_HEAD / file.removeprefix("configs/") for file in case["files"]]
    for setup in ("local_setup.yml", "eleutherai_cluster.yml"):
        found[f"2021 with {setup}"] = [NEOX_2021 / "ds_pretrain_gpt2.yml", NEOX_2021 / setup]
    return found


CASES = cases()


@needs_corpus
@pytest.mark.parametrize("to", NAMES)
@pytest.mark.parametrize(
    "name", mostly_slow(name for name in CASES if not any(word in str(CASES[name]) for word in REFUSED))
)
def test_the_same_configuration(name: str, to: str) -> None:
    texts = read_files(CASES[name])
    once = migrate(texts, to).texts
    drafted = draft([File(*text) for text in texts])
    is_part = "dialect" not in draft([File(*text) for text in once]).values
    fixed = [f"dialect={drafted.dialect.name}"] if is_part else []  # a partial configuration gets no dialect
    before, after = (resolved(draft([File(*text) for text in each], fixed), 8) for each in (texts, once))
    assert list(changed(before[0], after[0])) == []
    assert [problem.what for problem in after[1]] == [problem.what for problem in before[1]]
    assert migrate(once, to).texts == once
    other = next(dialect for dialect in NAMES if dialect != to)
    back = migrate(once, other).texts
    assert list(changed(before[0], resolved(draft([File(*text) for text in back], fixed), 8)[0])) == []
    assert comments(back) >= comments(texts)


def comments(texts: list[Text]) -> set[str]:
    """Return the texts of comment lines."""
    lines = [line for text in texts for line in text.text.splitlines()]
    return {line.partition("# ")[2].strip() for line in lines if line.lstrip().startswith("# ")}


@needs_corpus
@pytest.mark.parametrize("name", [name for name in CASES if any(word in str(CASES[name]) for word in REFUSED)])
def test_every_error_has_a_place(name: str) -> None:
    assert all(
        problem.where and problem.where.line
        for problem in refused(lambda: migrate(read_files(CASES[name]), "neox-2026"))
    )
