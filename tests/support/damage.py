"""Damage that a disk or an interrupted copy does to a checkpoint."""

from __future__ import annotations

from pathlib import Path

#: Bytes that are overwritten.
SIZE = 40_000


def damage_weights(checkpoint: Path) -> Path:
    """Overwrite bytes in the middle of the largest file of a checkpoint, which keeps its size; return the file."""
    file = max(checkpoint.rglob("*.pt"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    middle, size = len(data) // 2, min(SIZE, len(data) // 4)
    data[middle : middle + size] = bytes(byte ^ 0x3C for byte in data[middle : middle + size])
    file.write_bytes(data)
    return file
