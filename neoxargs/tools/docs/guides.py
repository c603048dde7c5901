"""What the guides show is what happens: every file of a page is written, every command run, every output put in.

A block whose first line is ```` ```yaml my.yml ```` is that file, with ` =` after it the text that a command has made
of it. In a `console` block, what follows `$ python deepy.py …` is its output.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

#: The pages in docs/ whose every command runs on one machine without a GPU.
PAGES = ("quickstart", "from-gpt-neox", "from-deepspeed", "from-megatron-lm", "extending")
BLOCK = re.compile(r"^```(\S+)(?: (\S+))?( =)?\n(.*?)^```$", flags=re.M | re.S)


def page(root: Path, name: str) -> str:
    """The page as it should be. root: the repository."""
    written = (root / "docs" / f"{name}.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "configs").symlink_to(root / "configs")
        return BLOCK.sub(lambda block: _block(block, root, Path(folder)), written)


def _block(block: re.Match[str], root: Path, folder: Path) -> str:
    """A block as it should be; writes its file."""
    language, name, made, text = block.groups()
    if language == "console":
        lines = [line for line in text.splitlines() if line.startswith("$ ")]
        text = "".join(f"{line}\n{_output(line[2:], root, folder)}" for line in lines)
    elif made:
        text = (folder / name).read_text(encoding="utf-8")
    elif name:
        (folder / name).write_text(text, encoding="utf-8")
    return f"```{language}{' ' + name if name else ''}{made or ''}\n{text}```"


def _output(command: str, root: Path, folder: Path) -> str:
    """What a terminal shows; errors and results in the order in which they come."""
    words = shlex.split(command)
    assert words[:2] == ["python", "deepy.py"], command
    done = subprocess.run(
        [sys.executable, str(root / "deepy.py"), *words[2:]],
        cwd=folder, env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}, text=True, timeout=60,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout
