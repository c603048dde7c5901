"""loss.png in `run_dir`: training loss and its running mean, validation and test losses, unigram entropy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neoxargs.files.metrics import FILE, is_cross_entropy, read
from neoxargs.train.track.tracker import Outcome, Run, Tracker


class LossCurve(Tracker):
    """Draws once, at the end of the run. It reads metrics.jsonl, so that a resumed run's picture is complete."""

    def on_start(self, run: Run) -> None:
        self.run = run

    def on_end(self, outcome: Outcome) -> None:
        draw(list(read(self.run.folder / FILE)), self.run.folder / "loss.png")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the rows of a metrics file to `path`; write nothing if they contain no step."""
    finite = [row for row in rows if row["event"] == "step" and row["loss"] is not None]
    steps = [(row["step"], row["loss"]) for row in finite]
    if not steps:
        return
    figure = _figure()
    axes = figure.add_subplot()
    axes.plot(*zip(*steps, strict=True), linewidth=0.8, alpha=0.35, color="tab:blue")
    axes.plot(*zip(*smooth(steps), strict=True), linewidth=1.6, color="tab:blue", label="training")
    for split, color in (("validation", "tab:orange"), ("test", "tab:green")):
        points = [(row["step"], row["loss"]) for row in rows if row.get("split") == split and row["loss"] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=color, label=split)
    entropy = next((row["unigram_entropy"] for row in reversed(rows) if "unigram_entropy" in row), None)
    if entropy is not None:
        axes.axhline(entropy, linestyle=":", color="gray", label="unigram entropy")
    axes.set_xlabel("iteration")
    axes.set_ylabel("loss (nats per token)" if is_cross_entropy(finite[-1]) else "loss")
    axes.grid(alpha=0.25)
    axes.legend()
    figure.savefig(path)


def smooth(steps: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the exponential running mean over about 1/50 of the run, bias-corrected as in Adam."""
    # `keep` is 0 for runs of up to 50 steps, which then are not smoothed.
    keep = 1 - 1 / max(1.0, len(steps) / 50)
    mean, weight, result = 0.0, 0.0, []
    for step, loss in steps:
        mean, weight = keep * mean + (1 - keep) * loss, keep * weight + (1 - keep)
        result.append((step, mean / weight))
    return result


def _figure() -> Any:
    # Without pyplot, which would load a window toolkit and keep a reference to the figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
