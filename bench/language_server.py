"""CPU time in which the language server answers, beside that of `deepy check`. Run: python bench/language_server.py

Of the shipped files: their problems after a change, the keys at the top level, the description of a key, the place of
its value, the corrections of a line and of a whole file with two mistakes, and the line with the plan, for which
`deepy plan` runs beside the server.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from neoxargs.base.files import Text  # noqa: E402
from neoxargs.commands.lsp import answers  # noqa: E402
from neoxargs.commands.lsp.cursor import cursor_at  # noqa: E402
from neoxargs.commands.lsp.plan_line import Planner  # noqa: E402

FILES = sorted((ROOT / "configs").rglob("*.yml"))
#: Times that `deepy check` is started.
CHECKS = 10


def main() -> int:
    texts = [Text(str(file), file.read_text(encoding="utf-8")) for file in FILES]
    wrong = [
        Text(name, text.replace("hidden_size:", "hiden_size:").replace("train_iters", "train_itres"))
        for name, text in texts
    ]
    key, top = cursor_at(["hidden_size: 64"], 0, 3), cursor_at([""], 0, 0)
    answered: dict[str, Callable[[answers.Edited], object]] = {
        "problems after a change": lambda file: file.problems,
        "keys at the top level": lambda _: list(answers.completions(top)),
        "description of a key": lambda file: file.described(key),
        "place of a value": lambda file: file.declarations(key),
        "corrections of a line": lambda file: (
            file.is_fixable,
            list(map(file.correction, file.problems)),
            [*file.renamed(0)],
        ),
        "corrections of a file": lambda file: file.fixed,
        "line with the plan": _line,
    }
    _line(answers.Edited(texts[0], 8))  # imports
    rows = {}
    for name, answer in answered.items():
        files = wrong if name.startswith("corrections") else texts
        rows[name] = [_seconds(lambda text=text, answer=answer: answer(answers.Edited(text, 8))) for text in files]
    check = _check()
    print("| answer | median, ms | most, ms | most / `deepy check` |\n|---|--:|--:|--:|")
    for name, seconds in rows.items():
        most = max(seconds)
        print(f"| {name} | {1e3 * statistics.median(seconds):.1f} | {1e3 * most:.1f} | {most / check:.2f} |")
    print(f"| `deepy check` | {1e3 * check:.0f} | | 1 |")
    return 0


def _line(file: answers.Edited) -> str:
    planner = Planner()
    planner.machine = "h100"
    return asyncio.run(planner.line(file.runs[0]))


def _seconds(answer: Callable[[], object]) -> float:
    """Return the CPU seconds of an answer, also those of other processes."""
    before = _used()
    answer()
    return _used() - before


def _used() -> float:
    return sum(each.ru_utime + each.ru_stime for each in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


def _check() -> float:
    """Return the CPU seconds of one `deepy check`, start included."""
    words = [sys.executable, str(ROOT / "deepy.py"), "check", str(ROOT / "configs" / "quickstart.yml"), "--gpus", "4"]
    before = _used()
    for _ in range(CHECKS):
        subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    return (_used() - before) / CHECKS


if __name__ == "__main__":
    sys.exit(main())
