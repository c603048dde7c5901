"""loss.png in `run_dir`: the training loss, its running mean, the validation losses, and what counting tokens gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neoxargs.train.track.metrics import FILE, read
from neoxargs.train.track.tracker import Outcome, Run, Tracker


class LossCurve(Tracker):
    """Draws once, at the end, from metrics.jsonl: a resumed run's picture shows all of it."""

    def on_start(self, run: Run) -> None:
        self.run = run

    def on_end(self, outcome: Outcome) -> None:
        draw(list(read(self.run.folder / FILE)), self.run.folder / "loss.png")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the rows of a metrics file; nothing is written when there is no step among them."""
    steps = [(row["step"], row["loss"]) for row in rows if row["event"] == "step" and row["loss"] is not None]
    if not steps:
        return
    figure = _figure()
    axes = figure.add_subplot()
    axes.plot(*zip(*steps, strict=True), linewidth=0.8, alpha=0.35, color="tab:blue")
    axes.plot(*zip(*smooth(steps), strict=True), linewidth=1.6, color="tab:blue", label="training")
    for split, color in (("validation", "tab:orange"), ("test", "tab:green")):
        points = [(row["step"], row["loss"]) for row in rows if row.get("split") == split]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=color, label=split)
    entropy = next((row["unigram_entropy"] for row in reversed(rows) if "unigram_entropy" in row), None)
    if entropy is not None:
        axes.axhline(entropy, linestyle=":", color="gray", label="unigram entropy")
    axes.set_xlabel("iteration")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.25)
    axes.legend()
    figure.savefig(path)


def smooth(steps: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Exponential running mean over about a fiftieth of the run, without the bias towards its first value."""
    keep = 1 - 1 / max(1.0, len(steps) / 50)
    mean, weight, result = 0.0, 0.0, []
    for step, loss in steps:
        mean, weight = keep * mean + (1 - keep) * loss, keep * weight + (1 - keep)
        result.append((step, mean / weight))
    return result


def _figure() -> Any:
    # The canvas is made by hand because pyplot would choose a window toolkit and keep the figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
