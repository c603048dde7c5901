"""Compare what the commands print with what they printed in an earlier checkout. Run:

    git worktree add --detach /tmp/before COMMIT
    python bench/same_output.py /tmp/before [FILE ...]

Every FILE (YAML, JSON or shell script; by default, those of configs/) is given to the commands that read such files,
with the code of both checkouts; standard output, standard error and exit codes are compared. Prints what differs, and
then ends with 1. Four commands take about a second.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = "configs/quickstart.yml"
#: Ending of a file -> the commands, in which FILE stands for it.
OF_ANY = (("check", "FILE"), ("migrate", "FILE"))
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    ".yml": (
        *OF_ANY, ("check", "FILE", "--gpus", "8", "--json"), ("check", "FILE", "--diff"), ("explain", "--all", "FILE"),
        ("plan", BASE, "FILE", "--gpus", "8", "--json"), ("plan", BASE, "FILE", "--gpus", "8", "--device", "H100"),
        ("preview", BASE, "FILE", "--gpus", "8"), ("train.py", BASE, "FILE", "--dry-run"),
    ),
}  # fmt: skip
#: Without files.
OTHERS = (
    ("--help",), *(("--completion", shell) for shell in ("bash", "zsh", "fish")),
    *((name, "--help") for name in (
        "check", "init", "plan", "preview", "verify", "explain", "diff", "migrate", "data", "export", "import",
        "checkpoints", "docs", "train.py",
    )),
)  # fmt: skip


def printed(tree: Path, words: tuple[str, ...]) -> str:
    """Return what a command prints with the code of a checkout, without the checkout's path."""
    environ = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, str(tree / "deepy.py"), *words]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return f"{done.stdout}\n{done.stderr}\nexit code {done.returncode}\n".replace(str(tree), "TREE")


def differences(before: Path, files: list[str]) -> Iterator[str]:
    """Yield a diff for each command that prints something else."""
    commands = [*OTHERS]
    for file in files:
        commands += [
            tuple(file if word == "FILE" else word for word in words)
            for words in COMMANDS.get(Path(file).suffix, OF_ANY)
        ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pairs = pool.map(lambda words: [printed(tree, words) for tree in (before, ROOT)], commands)
        for words, (one, other) in zip(commands, pairs, strict=True):
            if one != other:
                lines = one.splitlines(True), other.splitlines(True)
                yield "".join(unified_diff(*lines, "before", " ".join(words), n=0))
    print(f"{len(commands)} commands were compared")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    files = options.files or sorted(str(file.relative_to(ROOT)) for file in (ROOT / "configs").rglob("*.yml"))
    found = 0
    for text in differences(options.before.resolve(), files):
        found += 1
        print(text)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
