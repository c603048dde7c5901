"""A file that is far longer than any configuration is one problem, found without reading all of it.

The tests count steps, not seconds.
"""

from __future__ import annotations

import pytest

from neoxargs.base.problems import render
from neoxargs.migrate.deepspeed import lenient_json
from neoxargs.migrate.source import Options
from neoxargs.migrate.sources import source_of
from neoxargs.resolve import File
from neoxargs.resolve.merge import entries
from neoxargs.resolve.merge.judge import MAX_SUGGESTIONS
from neoxargs.resolve.yaml import compose as reader
from neoxargs.resolve.yaml.compose import MAX_KEYS, MAX_VALUES
from tests.support.snapshots import pinned

LONG = MAX_VALUES + MAX_VALUES // 2
KEYS, VALUES, LINES = f"{MAX_KEYS:,} keys", f"{MAX_VALUES:,} values", f"{MAX_VALUES:,} lines"
JSON = "{" + ", ".join(f'"k{number}": 1' for number in range(4 * MAX_KEYS)) + "}"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("".join(f"k{number}: 1\n" for number in range(2 * MAX_KEYS)), KEYS),
        ("num_layers: 2\n" * 2 * MAX_KEYS, KEYS),
        ("".join(f"{number}: 1\n" for number in range(2 * MAX_KEYS)), KEYS),
        ("comms_logger:\n" + "".join(f" k{number}: 1\n" for number in range(2 * MAX_KEYS)), KEYS),
        ("a: [" + "{b: 1}, " * 2 * MAX_KEYS + "]", KEYS),
        (JSON, KEYS),
        (f"data_path: [{'a, ' * LONG}]", VALUES),
        ("k: 1\n" * LONG, LINES),
        ("# a comment\n" * LONG + "a: {", LINES),
        ("\n" * LONG + "\t{", LINES),
    ],
    ids=["keys", "twice", "numbers", "section", "list of sections", "json", "list", "lines", "comments", "empty"],
)
def test_a_file_that_is_too_long_is_one_problem(monkeypatch: pytest.MonkeyPatch, text: str, limit: str) -> None:
    nodes = []
    read = reader._Composer.node
    monkeypatch.setattr(reader._Composer, "node", lambda self, *given: nodes.append(1) or read(self, *given))
    (problem,) = entries.read_files([File("my.yml", text)]).problems
    pinned(problem)
    assert "data_path" in problem.hint and "vocab_file" in problem.hint
    assert len(nodes) <= (MAX_VALUES if limit == VALUES else 3 * MAX_KEYS) + 10


def test_a_long_list_of_datasets_is_read() -> None:
    names = [f"shard_{number}" for number in range(MAX_VALUES // 2)]
    found = entries.read_files([File("my.yml", "data_path:\n" + "".join(f"- {name}\n" for name in names))])
    assert not found.problems
    assert found.parameters["data_path"].value.to_python() == names


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ('{"train_batch_size": 8, "zero_optimization": ' + JSON + "}", KEYS),
        pytest.param(f'{{"zero_optimization": {{"stage": [{"1, " * LONG}]}}}}', VALUES, marks=pytest.mark.slow),
    ],
    ids=["keys", "values"],
)
def test_a_json_that_is_too_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch, text: str, limit: str) -> None:
    values = []
    read = lenient_json._Reader.value
    monkeypatch.setattr(lenient_json._Reader, "value", lambda self, depth: values.append(1) or read(self, depth))
    long = File("ds.json", text)
    with pytest.raises(reader.Problems, match=limit):
        lenient_json.blocks(long)
    source = source_of(long)
    assert source.edits_in_place, "it looks like no other program's configuration"
    with pytest.raises(reader.Problems, match="no configuration needs that many"):
        source.converts([long], Options())
    assert len(values) <= 2 * (MAX_VALUES if limit == VALUES else MAX_KEYS) + 10


def test_the_line_of_many_problems_is_searched_for_secrets_once() -> None:
    from neoxargs.base.problems import without_secrets

    text = "{" + ", ".join(f"k{number}: 1" for number in range(MAX_SUGGESTIONS)) + "}"
    problems = [
        reader.Problem("wrong", reader.Place("my.yml", 1, 2 + 8 * number, text), id="wrong") for number in range(100)
    ]
    without_secrets.cache_clear()
    render(problems)
    assert without_secrets.cache_info().misses == 2, "the line, and the sentence that all problems share"
