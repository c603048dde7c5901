"""Asserts that a report of `deepy check --output-format` is what the programs that read it require."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

#: A workflow command of GitHub Actions; the values of its properties, and the message, have no line break.
ANNOTATION = re.compile(r"::(error|warning) title=[^,:]+(?:,(?:file|line|col|endColumn)=[^,:]+)*::[^\r\n]+")


def assert_github(text: str) -> None:
    """Assert that every line is a workflow command."""
    assert all(ANNOTATION.fullmatch(line) for line in text.splitlines()), text


def assert_gitlab(text: str) -> None:
    """Assert the properties that GitLab's Code Quality requires, and that its fingerprints are unique."""
    issues = json.loads(text)
    for issue in issues:
        assert issue["description"] and issue["check_name"] and issue["severity"] in ("major", "minor")
        assert not issue["location"]["path"].startswith(("/", "./")) and issue["location"]["lines"]["begin"] >= 1
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)


def assert_sarif(text: str) -> None:
    """Sections 3.13, 3.14, 3.19, 3.27 to 3.30, 3.55 to 3.57 of SARIF 2.1.0: required properties, and their ranges."""
    log = json.loads(text)
    assert log["version"] == "2.1.0"
    [run] = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] and len({rule["id"] for rule in rules}) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning") and result["message"]["text"]
        for location in [*result.get("locations", ()), *result.get("relatedLocations", ())]:
            physical = location["physicalLocation"]
            assert re.fullmatch(r"[\w./%~-]+", physical["artifactLocation"]["uri"])
            region = physical.get("region", {"startLine": 1, "startColumn": 1, "endColumn": 1})
            assert region["startLine"] >= 1 and region["endColumn"] >= region["startColumn"] >= 1


def assert_junit(text: str) -> None:
    """Assert that the counts are those of the test cases, each of which has a name."""
    root = ElementTree.fromstring(text)
    assert [child.tag for child in root] == ["testsuite"]
    cases = root.findall("testsuite/testcase")
    assert root.get("tests") == root[0].get("tests") == str(len(cases)) and all(case.get("name") for case in cases)
    assert root.get("failures") == root[0].get("failures") == str(len(root.findall(".//failure")))


REQUIRED = {"github": assert_github, "gitlab": assert_gitlab, "sarif": assert_sarif, "junit": assert_junit}
