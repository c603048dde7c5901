"""Colours of the page; style.css has a light and a dark scheme."""

from __future__ import annotations

from pathlib import Path

#: Part of memory -> colour, visible on light and dark backgrounds. No text lies on it.
PARTS = {
    "weights": "#4e79d8",
    "gradients": "#3fb0ac",
    "optimizer": "#5aa95a",
    "activations": "#f0953f",
    "logits": "#e2605f",
    "buffers": "#a77bd1",
    "fragmentation": "#c9a227",
    "overhead": "#9a9aa6",
}
#: Component of the step time -> colour, as above.
TIME = {
    "compute": "#4e79d8",
    "pipeline bubble": "#c9c9d2",
    "tensor communication": "#f0953f",
    "pipeline communication": "#e9c34e",
    "data communication": "#a77bd1",
    "expert communication": "#d1647b",
    "context communication": "#b0579e",
    "optimizer": "#5aa95a",
    "other losses": "#9a9aa6",
}


def stage_colour(index: int, stages: int) -> str:
    """Return the colour of a stage: hues from blue through red to green, in the order of stages."""
    hue = 215 if stages == 1 else 215 + 285 * index / max(stages - 1, 3)
    return f"hsl({hue % 360:.0f} var(--tint))"


STYLE = "\n" + Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
