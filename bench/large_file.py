"""Measure the CPU time of `check` on files of 1 MB and 10 MB. A ratio of about 10 means that the time grows linearly.

    python bench/large_file.py [--megabytes 1 10]

The time includes reading, checking and rendering the problems, in one process. Results of November 2026, on two busy
cores:

                            1 MB, s     10 MB, s   ratio
    comments                   0.03         0.25     8.6
    a list of paths            0.35         4.03    11.5
    one long value             0.06         0.23     3.9
    unknown keys               1.11         9.74     8.8
    one line of JSON           0.84         9.79    11.7
    one duplicate key          0.73         9.84    13.4
    invalid YAML               0.18         1.77    10.0
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from neoxargs.base.problems import Problems, render
from neoxargs.resolve import File, complete, draft

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yml"


def kinds(size: int) -> dict[str, str]:
    """Return kind of file -> text of about `size` characters."""
    good = QUICKSTART.read_text(encoding="utf-8")
    return {
        "comments": good + "# a comment\n" * (size // 12),
        "a list of paths": good + f"train_data_paths: [{', '.join(f'data/{i}' for i in range(size // 12))}]\n",
        "one long value": good + f"save: {'x' * size}\n",
        "unknown keys": good + "".join(f"key_{i}: {i}\n" for i in range(size // 16)),
        "one line of JSON": "{" + ", ".join(f'"key_{i}": {i}' for i in range(size // 18)) + "}\n",
        "one duplicate key": good + "seed: big\n" * (size // 10),
        "invalid YAML": "num_layers 4\n" * (size // 13) + "seed: 1\n",
    }


def seconds(text: str) -> float:
    """Return the CPU time of checking this text."""
    start = time.process_time()
    try:
        complete(draft([File("large.yml", text)]), 8)
    except Problems as stop:
        render(stop.problems)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--megabytes", type=float, nargs=2, default=(1, 10), metavar=("SMALL", "LARGE"), help="sizes of the files in MB"
    )
    small, large = parser.parse_args().megabytes
    texts = [kinds(int(megabytes * 1e6)) for megabytes in (small, large)]
    print(f"{'':24}{small:g} MB, s{large:>7g} MB, s   ratio")
    for kind in texts[0]:
        fast, slow = (seconds(group[kind]) for group in texts)
        print(f"{kind:24}{fast:7.2f}{slow:13.2f}{slow / fast:11.1f}")


if __name__ == "__main__":
    main()
