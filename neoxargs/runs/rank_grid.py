"""The ranks as a table with a row per pipeline stage and a column per replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neoxargs.config.config import Config
from neoxargs.facts.layout import Layout, layers_of_stages

#: The number of pipeline stages that are shown.
MAX_STAGES = 8
#: Width of the first column, in characters.
LABEL = 10


def rank_grid(config: Config, width: int) -> Iterator[str]:
    """Return a header and a line per stage with the ranks of each replica and the layers that they hold."""
    layout, layers = Layout.of(config), layers_of_stages(config)
    if layout.ranks == 1:
        return
    held = [_holds(stage, layout, layers) for stage in range(layout.pipe)]
    # Wide enough for the last group, whose numbers are the longest.
    cell = max(len("replica 0"), len(compact_numbers(layout.group(layout.pipe - 1, layout.data - 1)))) + 2
    replicas, rest = _columns(layout.data, cell, width - LABEL - max(map(len, held)))
    heads = "".join(f"replica {replica}".ljust(cell) for replica in range(replicas))
    yield f"{'ranks of'.ljust(LABEL)}{heads}{rest}".rstrip()
    for stage in range(min(layout.pipe, MAX_STAGES)):
        cells = "".join(compact_numbers(layout.group(stage, replica)).ljust(cell) for replica in range(replicas))
        yield f"{f'stage {stage}'.ljust(LABEL)}{cells}{'...'.ljust(len(rest)) if rest else ''}{held[stage]}"
    if layout.pipe > MAX_STAGES:
        yield f"... {layout.pipe} stages in total"


def _columns(replicas: int, cell: int, width: int) -> tuple[int, str]:
    """Return how many replicas fit in the width, and the header that counts all of them if some do not fit."""
    if replicas <= width // cell:
        return replicas, ""
    rest = f"{replicas} replicas  "
    columns = max(1, (width - len(rest)) // cell)
    return columns, rest if columns < replicas else ""


def _holds(stage: int, layout: Layout, layers: list[range] | None) -> str:
    held = ["embedding"] if stage == 0 else []
    if layers:
        held += [f"layers {layers[stage][0]}-{layers[stage][-1]}"] if layers[stage] else []
    elif layout.pipe > 1:
        held += ["some of the layers"]
    return ", ".join([*held, *(["output"] if stage == layout.pipe - 1 else [])])


def compact_numbers(numbers: Sequence[int]) -> str:
    """Format numbers as `0-7`, or one by one (`0 1`, `0 2 4`) if they are few or have gaps."""
    gapless = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]}-{numbers[-1]}" if gapless else " ".join(map(str, numbers))
