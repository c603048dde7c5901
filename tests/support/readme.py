"""Extracts the shell commands of the README, so that tests and CI run exactly those."""

from __future__ import annotations

import re
import sys

from tests.support.paths import ROOT

README = ROOT / "README.md"


def blocks() -> list[str]:
    """Return all ```sh blocks in order."""
    return re.findall(r"^```sh\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.M | re.S)


def commands() -> list[str]:
    """Return all command lines of all blocks, with continuation lines joined."""
    text = "\n".join(blocks()).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def main() -> None:
    """Print block N, counted from 1."""
    print(blocks()[int(sys.argv[1]) - 1])


if __name__ == "__main__":
    main()
