"""CPU time in which the language server answers, beside that of `deepy check`. Run: python bench/language_server.py

Of the shipped files: their problems after a change, the keys at the top level, and the description of a key.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.base.files import Text  # noqa: E402
from neoxargs.commands.lsp import answers  # noqa: E402
from neoxargs.commands.lsp.cursor import cursor_at  # noqa: E402

FILES = sorted((ROOT / "configs").rglob("*.yml"))
#: Times that `deepy check` is started.
CHECKS = 10


def main() -> int:
    texts = [Text(str(file), file.read_text(encoding="utf-8")) for file in FILES]
    answers.problems_of(texts[0], 8)  # imports
    key, top = cursor_at(["hidden_size: 64"], 0, 3), cursor_at([""], 0, 0)
    rows = {
        "problems after a change": [_seconds(lambda text=text: answers.problems_of(text, 8)) for text in texts],
        "keys at the top level": [_seconds(lambda: answers.completions(top)) for _ in texts],
        "description of a key": [_seconds(lambda text=text: answers.described(key, text.name, 8)) for text in texts],
    }
    check = _check()
    print("| answer | median, ms | most, ms | most / `deepy check` |\n|---|--:|--:|--:|")
    for name, seconds in rows.items():
        most = max(seconds)
        print(f"| {name} | {1e3 * statistics.median(seconds):.1f} | {1e3 * most:.1f} | {most / check:.2f} |")
    print(f"| `deepy check` | {1e3 * check:.0f} | | 1 |")
    return 0


def _seconds(answer: Callable[[], object]) -> float:
    before = time.process_time()
    answer()
    return time.process_time() - before


def _check() -> float:
    """Return the CPU seconds of one `deepy check`, start included."""
    words = [sys.executable, str(ROOT / "deepy.py"), "check", str(ROOT / "configs" / "quickstart.yml"), "--gpus", "4"]
    before = getrusage(RUSAGE_CHILDREN)
    for _ in range(CHECKS):
        subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / CHECKS


if __name__ == "__main__":
    sys.exit(main())
