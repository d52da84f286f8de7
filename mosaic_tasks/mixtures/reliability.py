"""Draws a reliability curve: what was predicted against what was right."""

from __future__ import annotations

from collections.abc import Iterator

from mosaic_tasks.mixtures.calibration import Bin, Calibration, Curve

_LEFT, _TOP, _SIDE, _COUNTS, _WIDTH = 56, 64, 320, 56, 400
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; } .title { font-size: 15px; font-weight: 600; }
  .end { text-anchor: end; } .middle { text-anchor: middle; } .faint { fill: #59636e; }
  .ground { fill: #ffffff; } .grid { stroke: #d1d9e0; } .ideal { stroke: #59636e; stroke-dasharray: 4 4; }
  .curve { fill: none; stroke: #1f6feb; stroke-width: 2; } .bin { fill: #1f6feb; } .lines { fill: #c8d1da; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .faint { fill: #9198a1; } .ground { fill: #0d1117; } .grid { stroke: #3d444d; }
    .ideal { stroke: #9198a1; } .curve { stroke: #4493f8; } .bin { fill: #4493f8; } .lines { fill: #4b535d; }
  }
"""


def draw_svg(calibration: Calibration, curve: Curve) -> str:
    """The curve as one self-contained SVG file, with how many lines each bin has below it."""
    height = _TOP + _SIDE + _COUNTS + 56
    title = f"Reliability: {calibration.method}, {calibration.lines} lines"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title">',
        f'<title id="title">{title}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="12" y="24">{title}</text>',
        f'<text class="faint" x="12" y="42">ECE {curve.ece:.3f}, Brier {curve.brier:.3f}, on lines left out</text>',
        *_grid(),
        *_bins(curve),
        *_counts(curve),
        f'<text class="faint middle" x="{_LEFT + _SIDE // 2}" y="{height - 8}">predicted, and lines</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid(parts: int = 4) -> Iterator[str]:
    for step in range(parts + 1):
        share = step / parts
        x, y = _x(share), _y(share)
        yield f'<line class="grid" x1="{x}" y1="{_y(0)}" x2="{x}" y2="{_y(1)}"/>'
        yield f'<line class="grid" x1="{_x(0)}" y1="{y}" x2="{_x(1)}" y2="{y}"/>'
        yield f'<text class="faint end" x="{_LEFT - 8}" y="{y + 4}">{share:.0%}</text>'
        yield f'<text class="faint middle" x="{x}" y="{_y(0) + _COUNTS + 32}">{share:.0%}</text>'
    yield f'<line class="ideal" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>'


def _bins(curve: Curve) -> Iterator[str]:
    points = " ".join(f"{_x(each.predicted)},{_y(each.right)}" for each in curve.bins)
    yield f'<polyline class="curve" points="{points}"/>'
    for each in curve.bins:
        yield f'<circle class="bin" cx="{_x(each.predicted)}" cy="{_y(each.right)}" r="4">{_told(each)}</circle>'


def _counts(curve: Curve) -> Iterator[str]:
    most = max(each.lines for each in curve.bins)
    for each in curve.bins:
        tall = round(_COUNTS * each.lines / most, 1)
        yield f'<rect class="lines" x="{_x(each.predicted) - 8:.1f}" y="{_y(0) + 12}" width="16" height="{tall}">'
        yield f"{_told(each)}</rect>"


def _told(each: Bin) -> str:
    return f"<title>{each.predicted:.1%} predicted, {each.right:.1%} right, {each.lines} lines</title>"


def _x(share: float) -> float:
    return round(_LEFT + _SIDE * share, 1)


def _y(share: float) -> float:
    return round(_TOP + _SIDE * (1 - share), 1)


__all__ = ["draw_svg"]
