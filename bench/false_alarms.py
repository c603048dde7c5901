"""What the rules of docs/failure-reports.md say of published files. Run: python bench/false_alarms.py FOLDER ...

Checks configs/, the configurations in tests/reference and every YAML and JSON file of the folders, each alone and on 8
GPUs, and prints a row for each file and rule that warns, in Markdown. A person judges them: docs/failure-reports.md.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.cli import main as deepy  # noqa: E402

PAGE = ROOT / "docs" / "failure-reports.md"
KINDS = (".yml", ".yaml", ".json")


def main() -> int:
    table = PAGE.read_text(encoding="utf-8").partition("## The rules")[2].partition("## False alarms")[0]
    rules = set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE)) | {
        "disk-too-small",
        "disk-too-small-for-all",
    }
    count = 0
    print("| id | file | what is said |\n|---|---|---|")
    with TemporaryDirectory() as extracted:
        with tarfile.open(ROOT / "tests/reference/neox_runs.tar.xz") as archive:
            archive.extractall(extracted, filter="data")
        for folder in (ROOT / "configs", Path(extracted), *map(Path, sys.argv[1:])):
            for path in sorted(each for each in folder.rglob("*") if each.suffix in KINDS):
                count += 1
                for problem in checked(path):
                    if problem["id"] in rules:
                        print(f"| `{problem['id']}` | {path.relative_to(folder)} | {problem['what']} |")
    print(f"\n{count} files, {len(rules)} rules")
    return 0


def checked(path: Path) -> Iterator[dict[str, str]]:
    """Yield the problems of a file."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        deepy(["check", str(path), "--gpus", "8", "--json"])
    yield from json.loads(told.getvalue())["problems"]


if __name__ == "__main__":
    sys.exit(main())
