"""The README's shell commands, so that a test and CI run exactly what a reader would type."""

from __future__ import annotations

import re
import sys

from tests.support.paths import ROOT

README = ROOT / "README.md"


def blocks() -> list[str]:
    """Every ```sh block in order."""
    return re.findall(r"^```sh\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.M | re.S)


def commands() -> list[str]:
    """Every command line of every block, continuation lines joined."""
    text = "\n".join(blocks()).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def main() -> None:
    """Print the N-th block (from 1)."""
    print(blocks()[int(sys.argv[1]) - 1])


if __name__ == "__main__":
    main()
