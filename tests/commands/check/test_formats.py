"""`deepy check --output-format`: what other programs read, against what their documentation requires."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import pytest

from neoxargs.base.problems import Place, Problem
from neoxargs.cli import main
from neoxargs.commands.check.formats import FORMATS
from tests.support.bad_inputs import GOOD
from tests.support.report_formats import REQUIRED
from tests.support.snapshots import pinned

#: Characters that a format has to escape, a file with a blank, secrets, several lines, and every kind of place.
PROBLEMS = (
    Problem('a, b: 100% <wrong> & "odd"\nreally', Place("my run.yml", 3, 2, "ü: é", 1), "write\tc", id="one"),
    Problem("both", Place("a.yml", 1, 1, "a: 1", 1), also=(Place("b.yml", 2, 1, "a: 2", 1),), id="two"),
    Problem("wandb_api_key: secret is set", Place("a.yml", 0, 0), severity="warning", id="one"),
    Problem("unknown", Place("--set", 1, 1, "x=1", 1), id="three"),
    Problem("nothing is set", severity="warning", id="four"),
)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format(name: str) -> None:
    text = FORMATS[name](PROBLEMS, ["a.yml"])
    assert "secret" not in text.replace("api_key: secret", "") and text.endswith("\n")
    pinned(text)
    pinned(FORMATS[name]([], ["a.yml"]))


def test_github_unescapes_what_was_written() -> None:
    first = FORMATS["github"](PROBLEMS, ["a.yml"]).splitlines()[0]
    found = re.fullmatch(r"::error title=deepy \(one\),file=my run.yml,line=3,col=2,endColumn=3::(.*)", first)
    assert found and unquote(found[1]).splitlines()[0] == 'a, b: 100% <wrong> & "odd"'


def test_gitlab_knows_a_problem_again_when_lines_are_added_above_it() -> None:
    def fingerprints(line: int) -> Sequence[str]:
        problems = [Problem("x", Place("a.yml", line + each, 1), id="one") for each in range(2)]
        return [issue["fingerprint"] for issue in json.loads(FORMATS["gitlab"](problems, ["a.yml"]))]

    assert fingerprints(1) == fingerprints(5) and len(set(fingerprints(1))) == 2


@pytest.mark.parametrize("name", REQUIRED)
def test_a_format_has_what_its_readers_require(name: str) -> None:
    for problems in (PROBLEMS, ()):
        REQUIRED[name](FORMATS[name](problems, ["a.yml"]))


def test_json_is_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yml").write_text(GOOD + "weight_decy: 0.1\n")
    printed = []
    for words in (["--json"], ["--output-format", "json"], ["--output-format=sarif"], ["--output-format=text"]):
        assert main(["check", "my.yml", "--gpus", "8", *words]) == 1
        printed.append(capsys.readouterr())
    assert printed[0] == printed[1]
    [fix] = [result["fixes"] for result in json.loads(printed[2].out)["runs"][0]["results"] if "fixes" in result]
    assert fix[0]["artifactChanges"][0]["replacements"][0] == {
        "deletedRegion": {"startLine": 8, "startColumn": 1, "endColumn": 12},
        "insertedContent": {"text": "weight_decay"},
    }
    assert [each.err == "" for each in printed] == [True, True, True, False]
    for name in ("absent.yml", "my.yml"):
        assert main(["check", name, "--output-format", "json", "--plugin", "no_such"]) == 1
        assert not json.loads(capsys.readouterr().out)["ok"]
    with pytest.raises(SystemExit):
        main(["check", "my.yml", "--json", "--output-format", "sarif"])
