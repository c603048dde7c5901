"""The ranks as a table: a line for each pipeline stage, a column for each replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout, layers_of_stages

#: How many pipeline stages are drawn; the rest is counted.
MAX_STAGES = 8
#: Characters of the first column.
LABEL = 10


def rank_grid(config: Config, width: int) -> Iterator[str]:
    """A line for each stage: the ranks of every replica, and the layers they hold."""
    layout, layers = Layout.of(config), layers_of_stages(config)
    if layout.ranks == 1:
        return
    held = [_holds(stage, layout, layers) for stage in range(layout.pipe)]
    cell = max(len("replica 0"), len(compact_numbers(layout.group(layout.pipe - 1, layout.data - 1)))) + 2
    replicas, rest = _columns(layout.data, cell, width - LABEL - max(map(len, held)))
    heads = "".join(f"replica {replica}".ljust(cell) for replica in range(replicas))
    yield f"{'ranks of'.ljust(LABEL)}{heads}{rest}".rstrip()
    for stage in range(min(layout.pipe, MAX_STAGES)):
        cells = "".join(compact_numbers(layout.group(stage, replica)).ljust(cell) for replica in range(replicas))
        yield f"{f'stage {stage}'.ljust(LABEL)}{cells}{'...'.ljust(len(rest)) if rest else ''}{held[stage]}"
    if layout.pipe > MAX_STAGES:
        yield f"... {layout.pipe} stages in all"


def _columns(replicas: int, cell: int, room: int) -> tuple[int, str]:
    """How many replicas are drawn, and how the rest is counted, where not all of them find room."""
    if replicas <= room // cell:
        return replicas, ""
    rest = f"{replicas} in all  "
    drawn = max(1, (room - len(rest)) // cell)
    return drawn, rest if drawn < replicas else ""


def _holds(stage: int, layout: Layout, layers: list[range] | None) -> str:
    held = ["embedding"] if stage == 0 else []
    if layers:
        held += [f"layers {layers[stage][0]}-{layers[stage][-1]}"] if layers[stage] else []
    elif layout.pipe > 1:
        held += ["its share of the layers"]
    return ", ".join([*held, *(["output"] if stage == layout.pipe - 1 else [])])


def compact_numbers(numbers: Sequence[int]) -> str:
    """`0 1`, `0-7`, or every number where some are left out."""
    gapless = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]}-{numbers[-1]}" if gapless else " ".join(map(str, numbers))
