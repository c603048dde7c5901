"""Update the guides in docs/ by running them: write their files, run their commands, insert the output.

A block that starts with ```` ```yaml my.yml ```` is written to that file. With ` =` after the name, the block is
replaced by the content that a command has written to the file. In a `console` block, the lines after
`$ python deepy.py ...` are replaced by the output.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

#: The pages in docs/ whose commands all run on one machine without a GPU.
PAGES = (
    "quickstart",
    "from-gpt-neox",
    "from-deepspeed",
    "from-megatron-lm",
    "extending",
    "check",
    "other-programs",
    "diff",
    "preview",
    "long-context",
)
BLOCK = re.compile(r"^```(\S+)(?: (\S+))?( =)?\n(.*?)^```$", flags=re.M | re.S)


def page(root: Path, name: str) -> str:
    """Return the up-to-date text of a page. root: the repository."""
    current = (root / "docs" / f"{name}.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        # The commands of the guides name shipped configurations by their path in a checkout.
        (Path(folder) / "configs").symlink_to(root / "configs")
        return BLOCK.sub(lambda block: _updated_block(block, root, Path(folder)), current)


def _updated_block(block: re.Match[str], root: Path, folder: Path) -> str:
    """Return the up-to-date text of a block; write its file or run its commands."""
    language, name, is_result, text = block.groups()
    if language == "console":
        lines = [line for line in text.splitlines() if line.startswith("$ ")]
        text = "".join(f"{line}\n{_output(line[2:], root, folder)}" for line in lines)
    elif is_result:
        text = (folder / name).read_text(encoding="utf-8")
    elif name:
        (folder / name).write_text(text, encoding="utf-8")
    return f"```{language}{' ' + name if name else ''}{is_result or ''}\n{text}```"


def _output(command: str, root: Path, folder: Path) -> str:
    """Run a deepy command in the folder and return its stdout and stderr, interleaved as in a terminal."""
    words = shlex.split(command)
    assert words[:2] == ["python", "deepy.py"], command
    done = subprocess.run(
        [sys.executable, str(root / "deepy.py"), *words[2:]],
        # Unbuffered, so that both streams arrive in the order in which they are written.
        cwd=folder, env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}, text=True, timeout=60,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout
