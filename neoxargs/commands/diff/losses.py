"""The losses of two run folders: the steps at which they differ."""

from __future__ import annotations

import math

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.base.record import Record
from neoxargs.commands.diff.side import Side
from neoxargs.files import metrics as run_metrics

#: Losses that differ by less than this share are taken to differ by rounding.
ROUNDING = 1e-3


class Losses(Record):
    """The training losses of two runs: step -> loss, None if it was not finite."""

    a: dict[int, float | None]
    b: dict[int, float | None]
    warnings: tuple[Problem, ...] = ()
    """Warnings about incomplete lines, which are skipped."""

    @property
    def common(self) -> list[int]:
        """The steps that both runs have taken."""
        return sorted(self.a.keys() & self.b.keys())

    def first_apart(self, share: float = 0.0) -> int | None:
        """Return the first step whose losses differ by more than this share of the larger one; None if none does."""
        return next((step for step in self.common if self._apart(step, share)), None)

    def _apart(self, step: int, share: float) -> bool:
        a, b = self.a[step], self.b[step]
        if a is None or b is None:
            return a is not b
        return abs(a - b) > share * max(abs(a), abs(b))

    def lines(self) -> list[str]:
        """Return where the losses part, as sentences."""
        if not self.common:
            return ["the runs have no step in common"]
        first, apart, last = self.first_apart(), self.first_apart(ROUNDING), self.common[-1]
        if first is None:
            return [f"identical at every common step ({len(self.common)}); last common step {last}: {self._pair(last)}"]
        parted = f"first differ by more than {100 * ROUNDING:g} % at step {apart}: {self._pair(apart)}" if apart else ""
        return [
            f"first differ at step {first}: {self._pair(first)}",
            parted or f"never differ by more than {100 * ROUNDING:g} %",
            f"last common step {last}: {self._pair(last)}",
        ]

    def _pair(self, step: int) -> str:
        """Return both losses, with as many digits as show that they differ."""
        pair = self.a[step], self.b[step]
        # 17 digits distinguish all numbers of double precision.
        for digits in (7, 10, 17):
            a, b = ("not finite" if loss is None else f"{loss:.{digits}g}" for loss in pair)
            if a != b or pair[0] == pair[1]:
                break
        return f"A {a}, B {b}"

    def to_json(self) -> dict[str, int | None]:
        last = self.common[-1] if self.common else None
        return {"first_different": self.first_apart(), "first_apart": self.first_apart(ROUNDING), "last_common": last}


def read_losses(a: Side, b: Side) -> Losses | None:
    """Return the losses of two runs; None if either side has none."""
    first, second = (_losses(side) for side in (a, b))
    what = "the last line of this file is incomplete and was skipped; this happens if a run is killed while it writes"
    paths = [side.folder / run_metrics.FILE for side in (a, b) if side.folder]
    warnings = [
        Problem(what, Place(str(path), 0, 0), severity="warning", id="diff-losses-incomplete")
        for path in paths
        if path.exists() and run_metrics.ends_incomplete(path)
    ]
    return Losses(first, second, tuple(warnings)) if first and second else None


def _losses(side: Side) -> dict[int, float | None]:
    if side.folder is None:
        return {}
    path = side.folder / run_metrics.FILE
    try:
        losses = {row["step"]: row["loss"] for row in run_metrics.read(path) if row["event"] == "step"}
        # Other programs write NaN, which Python reads as a number.
        return {step: loss if loss is not None and math.isfinite(loss) else None for step, loss in losses.items()}
    except (OSError, ValueError, KeyError, TypeError):
        what = "this file does not contain the losses of a run"
        hint = "move the file elsewhere to compare only the configurations"
        raise Problems(Problem(what, Place(str(path), 0, 0), hint, id="diff-losses-unreadable")) from None
