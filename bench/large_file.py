"""How long `check` takes over a file of 1 MB and one of 10 MB: linear time is a ratio of about 10.

    python bench/large_file.py [--megabytes 1 10]

CPU seconds of reading, checking and wording, in one process; each kind of file is large in its own way. On two busy
cores (November 2026):

                            1 MB, s     10 MB, s   ratio
    comments                   0.03         0.25     8.6
    a list of paths            0.35         4.03    11.5
    one long value             0.06         0.23     3.9
    unknown keys               1.11         9.74     8.8
    one line of JSON           0.84         9.79    11.7
    one key again and again    0.73         9.84    13.4
    no YAML                    0.18         1.77    10.0
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from neoxargs.problems import Problems, render
from neoxargs.resolve import Text, complete, draft

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yml"


def kinds(size: int) -> dict[str, str]:
    """Texts of about so many characters."""
    whole = QUICKSTART.read_text(encoding="utf-8")
    return {
        "comments": whole + "# a comment\n" * (size // 12),
        "a list of paths": whole + f"train_data_paths: [{', '.join(f'data/{i}' for i in range(size // 12))}]\n",
        "one long value": whole + f"save: {'x' * size}\n",
        "unknown keys": whole + "".join(f"key_{i}: {i}\n" for i in range(size // 16)),
        "one line of JSON": "{" + ", ".join(f'"key_{i}": {i}' for i in range(size // 18)) + "}\n",
        "one key again and again": whole + "seed: big\n" * (size // 10),
        "no YAML": "num_layers 4\n" * (size // 13) + "seed: 1\n",
    }


def seconds(text: str) -> float:
    start = time.process_time()
    try:
        complete(draft([Text("large.yml", text)]), 8)
    except Problems as stop:
        render(stop.problems)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs=2, default=(1, 10), metavar=("SMALL", "LARGE"))
    small, large = parser.parse_args().megabytes
    texts = [kinds(int(megabytes * 1e6)) for megabytes in (small, large)]
    print(f"{'':24}{small:g} MB, s{large:>7g} MB, s   ratio")
    for kind in texts[0]:
        one, other = (seconds(group[kind]) for group in texts)
        print(f"{kind:24}{one:7.2f}{other:13.2f}{other / one:11.1f}")


if __name__ == "__main__":
    main()
