"""What the playground asks Python works with PyYAML alone, and its page names the versions that are built in.

The page itself is tested by `npm test` in playground/, in a browser.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import DOCS, ROOT

FOLDER = ROOT / "playground"
EXAMPLES = {path.name: path.read_text(encoding="utf-8") for path in sorted((FOLDER / "examples").iterdir())}
MISTAKES = EXAMPLES["mistakes.yml"]
QUICKSTART = (ROOT / "configs" / "quickstart.yml").read_text(encoding="utf-8")
TARGET = ("--gpus", "8", "--device", "H100-80GB", "--html", "page.html")

#: Answers each line of stdin, [name, arguments], in a line of stdout.
PROGRAM = """
import json, sys
packages, left_out = json.loads(sys.argv[1])

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in left_out):
            raise ModuleNotFoundError(f"{name} is not packed", name=name)

sys.path.append(packages)
sys.meta_path.insert(0, Blocked())
import bridge
for line in sys.stdin:
    name, arguments = json.loads(line)
    sys.__stdout__.write(bridge.answer(name, json.dumps(arguments)) + "\\n")
"""


def left_out() -> list[str]:
    """Return the modules that are not packed."""
    tree = ast.parse((FOLDER / "pack.py").read_text(encoding="utf-8"))
    values = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return list(ast.literal_eval(values["LEFT_OUT"]))


def answers(folder: Path, *calls: tuple[str, list[Any]]) -> list[Any]:
    """Return what functions of the bridge answer, in one process that can import only PyYAML and what is packed."""
    packages, work = folder / "packages", folder / "work"
    packages.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    for path in (FOLDER / "bridge.py", ROOT / "neoxargs", Path(yaml.__file__).parent):
        (packages / path.name).unlink(missing_ok=True)
        (packages / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, json.dumps([str(packages), left_out()])],
        cwd=work, input="".join(f"{json.dumps(call)}\n" for call in calls), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def command(name: str, *words: str, writes: str = "page.html", **files: str) -> tuple[str, list[Any]]:
    return "run", [{name: EXAMPLES.get(name, ""), **files}, list(words), writes]


def test_problems_have_places_and_corrections(tmp_path: Path) -> None:
    [found] = answers(tmp_path, ("check", ["my.yml", MISTAKES, 8]))
    lines = MISTAKES.splitlines()
    shown = {lines[each["line"] - 1][each["column"] - 1 :][: each["width"]]: each for each in found["problems"]}
    assert {text: each["id"] for text, each in shown.items()} == {
        "320,000": "type-mismatch", "recude_bucket_size": "unknown-key", "cosin": "type-mismatch"
    }  # fmt: skip
    assert shown["cosin"]["fixed"] == MISTAKES.replace("cosin", "cosine") and shown["cosin"]["certain"]
    [fixed] = answers(tmp_path, ("run", [{"my.yml": MISTAKES}, ["check", "my.yml", "--fix"], "my.yml"]))
    corrected = MISTAKES.replace("cosin", "cosine").replace("320,000", "320000")
    assert fixed["written"] == corrected
    corrected = corrected.replace("recude", "reduce")
    [found] = answers(tmp_path, ("check", ["my.yml", corrected, 8]))
    assert found["problems"] == [] and found["summary"]


def test_files_and_programs_of_the_machine_are_not_missed(tmp_path: Path) -> None:
    text = MISTAKES.replace("text_path: python-stdlib", "data_path: data/nowhere\nuse_wandb: true")
    [found] = answers(tmp_path, ("check", ["my.yml", text, 64]))
    assert {each["id"] for each in found["problems"]} == {"type-mismatch", "unknown-key"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_command_answers_for_every_example(name: str, tmp_path: Path) -> None:
    checked, *others = answers(
        tmp_path,
        ("check", [name, EXAMPLES[name], 8]),
        command(name, "plan", name, *TARGET),
        command(name, "migrate", name, "-o", "new.yml", writes="new.yml"),
        command(name, "diff", "other.yml", name, "--html", "page.html", **{"other.yml": QUICKSTART}),
    )
    assert bool(checked["problems"]) == (name == "mistakes.yml")
    as_they_are = ("ds_config.json", "pretrain.sh")
    assert any(line.startswith("read as") for line in checked["summary"]) == (name in as_they_are)
    assert not any("Traceback" in each["printed"] for each in others)
    _, migrated, compared = others
    assert bool(migrated["written"]) == (name != "mistakes.yml")
    assert bool(compared["written"]) == (name == "older.yml"), "all others have errors"


def test_a_plan_and_a_search_are_pages(tmp_path: Path) -> None:
    file = {"my.yml": QUICKSTART}
    found = answers(
        tmp_path,
        command("my.yml", "plan", "my.yml", *TARGET, **file),
        command("my.yml", "plan", "my.yml", *TARGET, "--search", **file),
    )
    assert all(each["code"] == 0 and "</html>" in each["written"] for each in found)


def test_the_key_at_the_cursor_is_explained_and_completed(tmp_path: Path) -> None:
    line = MISTAKES.splitlines().index("  stage: 1")
    explained, nothing, keys, values = answers(
        tmp_path,
        ("explain", ["my.yml", MISTAKES, line, 4, 8]),
        ("explain", ["my.yml", MISTAKES, 0, 4, 8]),
        ("complete", [MISTAKES, line, 4]),
        ("complete", ["norm: ", 0, 6]),
    )
    assert explained.split()[0] == "zero_optimization.stage" and nothing == ""
    assert keys["begin"] == 2 and "contiguous_gradients" in {each["word"] for each in keys["words"]}
    assert values["is_value"] and "rmsnorm" in {each["word"] for each in values["words"]}


def test_a_mistake_is_answered_with_the_sentence_of_the_command_line(tmp_path: Path) -> None:
    broken, words = answers(
        tmp_path,
        ("run", [{"my.yml": "a: [1"}, ["plan", "my.yml"]]),
        ("run", [{}, ["plan", "my.yml", "--gpus", "none"]]),
    )
    assert broken["code"] == 1 and "my.yml:1:" in broken["printed"]
    assert words["code"] == 2 and words["printed"].startswith("usage:")


def test_the_page_names_the_versions_that_are_built_in() -> None:
    rows = dict(re.findall(r"^\| (\S+) \| (\d\S+) \|$", (DOCS / "playground.md").read_text(encoding="utf-8"), re.M))
    locked = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    pinned = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    assert len(rows) > 3
    assert rows == {name: pinned.get(name) or locked[f"node_modules/{name}"]["version"] for name in rows}
    assert locked[""]["dependencies"] == json.loads((FOLDER / "package.json").read_text())["dependencies"]
    assert all(version[0].isdigit() for version in locked[""]["dependencies"].values()), "exact versions"
