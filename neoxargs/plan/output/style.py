"""Colours and CSS of the page, with a light and a dark scheme."""

from __future__ import annotations

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
    "optimizer": "#5aa95a",
}


def stage_colour(index: int, stages: int) -> str:
    """Return the colour of a stage: hues from blue through red to green, in the order of stages."""
    hue = 215 if stages == 1 else 215 + 285 * index / max(stages - 1, 3)
    return f"hsl({hue % 360:.0f} var(--tint))"


STYLE = """
:root {
  --ground: #f6f6f3; --card: #ffffff; --ink: #22232a; --soft: #6d6f7b; --line: #e3e3de; --track: #efefea;
  --good: #1d7a46; --good-ground: #e3f3e9; --bad: #b3322c; --bad-ground: #fbe7e5; --tint: 58% 70%; --cell: #22232a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #15161a; --card: #1e2025; --ink: #e9e9ee; --soft: #9b9da9; --line: #2f3138; --track: #292b31;
    --good: #7ddba1; --good-ground: #17372a; --bad: #ff9c94; --bad-ground: #43211f; --tint: 38% 32%; --cell: #f4f4f8;
  }
}
* { box-sizing: border-box; margin: 0 }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: 40px 28px 60px }
h1 { font-size: 30px; letter-spacing: -.02em; line-height: 1.2 }
h2 { font-size: 16px; margin-bottom: 14px }
h2 span { color: var(--soft); font-weight: 400; font-size: 13.5px; margin-left: 10px }
.files { color: var(--soft); font: 12.5px ui-monospace, "DejaVu Sans Mono", monospace; margin-bottom: 6px }
.verdict { border-radius: 10px; margin-top: 16px; padding: 12px 16px }
.verdict b { margin-right: 8px; text-transform: uppercase; letter-spacing: .05em; font-size: 13px }
.fits { background: var(--good-ground) } .fits b { color: var(--good) }
.overflow { background: var(--bad-ground) } .overflow b { color: var(--bad) }
.unknown { background: var(--track) }
section, .cards > div { background: var(--card); border: 1px solid var(--line); border-radius: 12px }
section { margin-top: 16px; padding: 20px 22px }
.cards { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); margin-top: 16px }
.cards > div { padding: 14px 18px }
.cards span { color: var(--soft); display: block; font-size: 12.5px }
.cards b { display: block; font-size: 24px; letter-spacing: -.01em }
.cards small { color: var(--soft); font-size: 12.5px }
svg { display: block; width: 100% }
svg text { fill: var(--soft); font-size: 12.5px }
.bar + .bar { margin-top: 14px }
.bar p { font-size: 13.5px; margin-bottom: 3px }
.bar p span { margin-left: 6px } .bar .over { color: var(--bad) }
.bar svg { background: var(--track); border-radius: 5px; height: 20px }
.bar .legend { gap: 2px 14px; margin-top: 4px }
.bar + .legend { margin-top: 16px }
.gap { fill: var(--card) } .under { stroke: var(--card); stroke-width: 5; vector-effect: non-scaling-stroke }
line.limit { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 4 3; vector-effect: non-scaling-stroke }
.legend { color: var(--soft); display: flex; flex-wrap: wrap; font-size: 12.5px; gap: 6px 18px; margin-top: 12px }
.legend i { border-radius: 3px; display: inline-block; height: 10px; margin-right: 6px; width: 10px }
.legend .limit { border-left: 2px dashed var(--bad); border-radius: 0; width: 2px }
.hosts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(var(--frame), 100%), 1fr)) }
.host { border: 1px solid var(--line); border-radius: 9px; padding: 8px 10px 10px }
.host h3 { color: var(--soft); font-size: 12px; font-weight: 500; margin-bottom: 6px }
.cells { display: flex; flex-wrap: wrap; gap: 5px }
.group { border-radius: 6px; display: flex; flex-wrap: wrap; overflow: hidden }
.cell { color: var(--cell); font-size: 12px; font-variant-numeric: tabular-nums; line-height: 1.25; padding: 4px 0 5px;
  text-align: center; width: 32px }
.cell small { display: block; font-size: 9px; letter-spacing: -.03em }
.hosts.small { display: flex; flex-wrap: wrap; gap: 4px }
.small .host { border-radius: 4px; padding: 3px } .small .host h3 { display: none }
.small .cells { flex-wrap: nowrap; gap: 1px } .small .group { border-radius: 2px; flex-wrap: nowrap }
.small .cell { height: var(--dot); padding: 0; width: var(--dot) }
.suggestion { align-items: center; border-top: 1px solid var(--line); display: flex; flex-wrap: wrap; gap: 8px 24px;
  padding: 10px 0 }
.suggestion:first-of-type { border: 0; padding-top: 0 }
.suggestion p { color: var(--soft); flex: 1 1 240px }
pre, .equation { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace }
pre { background: var(--track); border-radius: 7px; min-width: min(430px, 100%); padding: 8px 12px;
  overflow-wrap: anywhere; white-space: pre-wrap }
.equation { overflow-wrap: anywhere }
ul { color: var(--soft); padding-left: 18px }
@media (max-width: 600px) {
  main { padding: 24px 12px 40px }
  section { padding: 16px 14px }
  .cards { gap: 10px; grid-template-columns: 1fr 1fr } .cards > div { padding: 12px 14px }
  .cards b { font-size: 19px } h1 { font-size: 25px }
}
"""
