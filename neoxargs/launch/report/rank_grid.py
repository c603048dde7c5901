"""The ranks as a table: a line for each pipeline stage, a column for each copy of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neoxargs.resolve.config import Config
from neoxargs.sizes.layout import Layout, layers_of_stages

#: How many pipeline stages are drawn; the rest is counted.
STAGES = 8


def grid(config: Config, width: int) -> Iterator[str]:
    """A line for each stage: the ranks of every replica, and the layers they hold."""
    layout, layers = Layout.of(config), layers_of_stages(config)
    if layout.ranks == 1:
        return
    held = [_holds(stage, layout, layers) for stage in range(layout.pipe)]
    cell = max(len("replica 0"), len(numbers(layout.group(layout.pipe - 1, layout.data - 1)))) + 2
    rest = f"{layout.data} in all  "
    fits = (width - len("stage 0   ") - max(map(len, held))) // cell
    shown = layout.data if layout.data <= fits else max(1, (width - 10 - max(map(len, held)) - len(rest)) // cell)
    rest = rest if shown < layout.data else ""
    yield ("ranks of".ljust(10) + "".join(f"replica {replica}".ljust(cell) for replica in range(shown)) + rest).rstrip()
    for stage in range(min(layout.pipe, STAGES)):
        cells = "".join(numbers(layout.group(stage, replica)).ljust(cell) for replica in range(shown))
        yield f"{f'stage {stage}'.ljust(10)}{cells}{'...'.ljust(len(rest)) if rest else ''}{held[stage]}"
    if layout.pipe > STAGES:
        yield f"... {layout.pipe} stages in all"


def _holds(stage: int, layout: Layout, layers: list[range] | None) -> str:
    held = ["embedding"] if stage == 0 else []
    if layers:
        held += [f"layers {layers[stage][0]}-{layers[stage][-1]}"] if layers[stage] else []
    elif layout.pipe > 1:
        held += ["its share of the layers"]
    return ", ".join([*held, *(["output"] if stage == layout.pipe - 1 else [])])


def numbers(numbers: Sequence[int]) -> str:
    """`0 1`, `0-7`, or every number where some are left out."""
    gapless = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]}-{numbers[-1]}" if gapless else " ".join(map(str, numbers))
