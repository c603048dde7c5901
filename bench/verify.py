"""`deepy verify` of the shipped model files: what is shown, and the CPU time. Run: python bench/verify.py [TEXT]

Prints a table in Markdown, as it is on docs/verify.md. TEXT: only files with this text in their name.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Files and the number of GPUs to assume: models in one process, the quickstart's tp2 x pp2, a 2-rank layout of others.
RUNS = [
    *((f"models/{file.stem}", 1) for file in sorted((ROOT / "configs/models").glob("*.yml"))),
    ("quickstart", 4), ("models/gpt-2-small layouts/zero1", 2), ("models/llama-3.2-1b layouts/zero3", 2),
    ("models/olmoe-1b-7b layouts/tp2-pp2", 4),
]  # fmt: skip


def main() -> int:
    print("| files | ranks | trials | keys shown | contradicted | CPU seconds |\n|---|---|---|---|---|---|", flush=True)
    failed = 0
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for files, gpus in (run for run in RUNS if wanted in run[0]):
        words = ["deepy.py", "verify", "-d", "configs", *files.split(), "--gpus", str(gpus), "--json"]
        before = _cpu_seconds()
        done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
        seconds = _cpu_seconds() - before
        report = json.loads(done.stdout)
        if "keys" not in report:
            print(f"| `{files}` | {gpus} | refused: {report['problems'][0]['what']} |", flush=True)
            failed += 1
            continue
        shown = sum(row["outcome"] == "shown" for row in report["keys"])
        wrong = [row["name"] for row in report["run"] + report["keys"] if row["outcome"] == "contradicted"]
        failed += bool(wrong)
        row = (f"`{files}`", report["ranks"], report["trials"], f"{shown} of {len(report['keys'])}")
        print("|", " | ".join(map(str, (*row, ", ".join(wrong) or "none", f"{seconds:.0f}"))), "|", flush=True)
    return int(failed > 0)


def _cpu_seconds() -> float:
    """Return the CPU time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
