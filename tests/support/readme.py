"""Extracts the shell commands of the README and of the quick start, so that tests and CI run exactly those."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.support.paths import DOCS, ROOT

README, QUICK_START = ROOT / "README.md", DOCS / "quickstart.md"


def blocks(page: Path = README) -> list[str]:
    """Return all ```sh blocks of a page in order."""
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def commands(*pages: Path) -> list[str]:
    """Return all command lines of all blocks of the pages, each once, with continuation lines joined."""
    text = "\n".join(block for page in pages for block in blocks(page)).replace("\\\n", " ")
    return list(dict.fromkeys(line for line in text.splitlines() if line.strip() and not line.startswith("#")))


def main() -> None:
    """Print block N, counted from 1."""
    print(blocks()[int(sys.argv[1]) - 1])


if __name__ == "__main__":
    main()
