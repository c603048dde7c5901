"""Damage the files of a real checkpoint at random, and count how often it is detected before the checkpoint is loaded.

    python deepy.py train.py configs/quickstart.yml --set train_iters=10
    python bench/damage.py runs/quickstart

Each trial changes one file of a copy: one flipped bit, 40 flipped bytes, a block of zeros, a shorter file, or a file
that is missing. Half of the trials choose a file at random, half a byte of all files, so that large files are hit too.
"by size" is what is detected without checksums.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoxargs.files.checkpoints import folder as checkpoint_folder

Change = Callable[[bytearray, random.Random], bytearray]


def flip_bit(data: bytearray, draw: random.Random) -> bytearray:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return data


def flip_bytes(data: bytearray, draw: random.Random) -> bytearray:
    start = draw.randrange(len(data))
    for place in range(start, min(start + 40, len(data))):
        data[place] ^= draw.randrange(1, 256)
    return data


def zero_block(data: bytearray, draw: random.Random) -> bytearray:
    """Zero 512 bytes, of which at least one is not zero."""
    while True:
        start = draw.randrange(max(1, len(data) - 511))
        if any(data[start : start + 512]):
            data[start : start + 512] = bytes(len(data[start : start + 512]))
            return data


def truncate(data: bytearray, draw: random.Random) -> bytearray:
    return data[: draw.randrange(len(data))]


CHANGES: dict[str, Change | None] = {
    "one bit flipped": flip_bit, "40 bytes flipped": flip_bytes, "512 bytes zeroed": zero_block, "truncated": truncate,
    "missing": None,
}  # fmt: skip


def chosen_file(sizes: dict[Path, int], by_bytes: bool, draw: random.Random) -> Path:
    files = [file for file, size in sizes.items() if size]
    return draw.choices(files, [sizes[file] for file in files] if by_bytes else None)[0]


def trials(checkpoint: Path, count: int, seed: int) -> tuple[Counter[str], Counter[str], Counter[str], list[str]]:
    """Return by kind of damage: the trials, those detected, and those detected by size; and what was not detected."""
    draw, tried, detected, by_size, missed = random.Random(seed), Counter[str](), Counter[str](), Counter[str](), []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(checkpoint, Path(folder, checkpoint.name)))
        assert not checkpoint_folder.verify(copy), "the checkpoint is damaged already"
        sizes = {file: file.stat().st_size for file in sorted(copy.rglob("*")) if file.is_file()}
        for number in range(count):
            # The kinds take turns; after each round of kinds, the other way to choose a file.
            kind = list(CHANGES)[number % len(CHANGES)]
            file, change = chosen_file(sizes, number // len(CHANGES) % 2 == 0, draw), CHANGES[kind]
            before = file.read_bytes()
            if change is None:
                file.unlink()
            else:
                file.write_bytes(change(bytearray(before), draw))
            tried[kind] += 1
            # `damage` compares names and sizes only, `verify` also checksums.
            by_size[kind] += bool(checkpoint_folder.damage(copy))
            found = bool(checkpoint_folder.verify(copy))
            detected[kind] += found
            if not found:
                missed.append(f"{kind}: {file.relative_to(copy)}")
            file.write_bytes(before)
        assert not checkpoint_folder.verify(copy)
    return tried, detected, by_size, missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a folder of checkpoints")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    checkpoint = checkpoint_folder.newest(options.folder)
    if checkpoint is None:
        parser.error(f"{options.folder}: there is no checkpoint in this folder")
    tried, detected, by_size, missed = trials(checkpoint, options.trials, options.seed)
    files = [file for file in checkpoint.rglob("*") if file.is_file()]
    print(f"{checkpoint.name}: {len(files)} files, {sum(file.stat().st_size for file in files):,} bytes\n")
    print(f"{'damage':20}{'trials':>8}{'detected':>9}{'by size':>9}")
    for kind in CHANGES:
        print(f"{kind:20}{tried[kind]:8}{detected[kind]:9}{by_size[kind]:9}")
    print(f"{'all':20}{tried.total():8}{detected.total():9}{by_size.total():9}")
    print("\n".join(["", *(f"not detected: {text}" for text in missed)]) if missed else "")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
