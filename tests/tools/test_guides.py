"""What the guides show is what happens: every file of a page is written, every command run, every output compared.

A block whose first line is ```` ```yaml my.yml ```` is that file, with ` =` after it the text that a command has made
of it. In a `console` block, what follows `$ python deepy.py …` is its output. `UPDATE=1` writes what it is today.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import CONFIGS, DOCS, ROOT
from tests.support.readme import commands

PAGES = ("quickstart", "from-gpt-neox", "from-deepspeed", "from-megatron-lm", "extending")
BLOCK = re.compile(r"^```(\S+)(?: (\S+))?( =)?\n(.*?)^```$", flags=re.M | re.S)


def output(command: str, folder: Path) -> str:
    """What a terminal shows; errors and results in the order in which they come."""
    words = shlex.split(command)
    assert words[:2] == ["python", "deepy.py"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "deepy.py"), *words[2:]],
        cwd=folder, env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}, text=True, timeout=60,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout


def today(block: re.Match[str], folder: Path) -> str:
    """A block as it should be; writes its file."""
    language, name, made, text = block.groups()
    if language == "console":
        lines = [line for line in text.splitlines() if line.startswith("$ ")]
        text = "".join(f"{line}\n{output(line[2:], folder)}" for line in lines)
    elif made:
        text = (folder / name).read_text(encoding="utf-8")
    elif name:
        (folder / name).write_text(text, encoding="utf-8")
    return f"```{language}{' ' + name if name else ''}{made or ''}\n{text}```"


@pytest.mark.parametrize("name", PAGES)
def test_every_output_is_the_real_one(name: str, tmp_path: Path) -> None:
    page = DOCS / f"{name}.md"
    (tmp_path / "configs").symlink_to(CONFIGS)
    shown = page.read_text(encoding="utf-8")
    real = BLOCK.sub(lambda block: today(block, tmp_path), shown)
    if os.environ.get("UPDATE"):
        page.write_text(real, encoding="utf-8")
    assert shown == real


def test_the_quick_start_has_the_commands_of_the_readme() -> None:
    text = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S) for line in block.splitlines()]
    assert lines and set(lines) <= set(commands())
