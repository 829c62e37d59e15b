"""Charts over time as inline SVG in one HTML page that needs nothing from elsewhere: no scripts, no fonts, no
files.

All charts of a page share one axis of time, in seconds, so that a kill in one stands above what it did to
another.  A `Chart` has lines over a vertical axis; `Lanes` have one row for each actor with spans and ticks.
Both show the same marks: vertical lines with a number, which a table below them explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

# told apart by readers who see fewer colours, too (Okabe and Ito)
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#666666")
SPAN_COLOURS: Final = ("#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#e69f00", "#666666")
WIDTH: Final = 1080
LEFT: Final = 150  # for the names of lanes and the numbers of the vertical axis
RIGHT: Final = 24
TOP: Final = 34
BOTTOM: Final = 44
CHART_HEIGHT: Final = 260
LANE_HEIGHT: Final = 26
TICKS: Final = 10
POINTS_MAX: Final = 2000  # of a line: more than the page has pixels are thinned out

STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 1100px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } svg { width: 100%; height: auto; display: block; margin: 0.6em 0 0.2em }
svg text { font: 12px system-ui, sans-serif; fill: #333 } svg .title { font-size: 14px; font-weight: 600 }
.legend { margin: 0 0 1.6em; padding: 0; list-style: none } 
.legend li { display: inline-block; margin-right: 1.4em }
.legend i { display: inline-block; width: 1em; height: 0.7em; margin-right: 0.4em }
table { border-collapse: collapse } td, th { border: 1px solid #ccc; padding: 0.2em 0.7em; text-align: left }
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A value over time: (seconds, value).  `steps` keeps a value until the next point."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """From `begin` to `end`; spans of one name share a colour and a place in the legend."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Mark:
    """An instant that all charts of the page show."""

    name: str
    at: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one vertical axis from 0; `unit` is what the axis counts."""

    title: str
    unit: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Lane:
    """One row: spans, and ticks for what happens at an instant."""

    name: str
    spans: Sequence[Span] = ()
    ticks: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Lanes:
    """Rows of actors; `tick` says what a tick is."""

    title: str
    lanes: Sequence[Lane]
    tick: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text below the charts."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]


def page(
    title: str,
    said: str,
    charts: Sequence[Chart | Lanes],
    marks: Sequence[Mark] = (),
    tables: Sequence[Table] = (),
) -> str:
    """The whole page.  `said` is a sentence or two above the charts."""
    end = max((at for chart in charts for at in _times(chart)), default=0.0)
    end = max([end, *(mark.at for mark in marks)])
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(said)}</p>"]
    if marks:
        rows = [(str(number), mark.name, f"{mark.at:.2f}") for number, mark in enumerate(marks, 1)]
        tables = (Table("Marks", ("mark", "what", "seconds"), rows), *tables)
    parts += [_chart(chart, marks, end) for chart in charts]
    parts += [_table(table) for table in tables]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def rate(moments: Sequence[tuple[float, float]], bin_s: float) -> list[tuple[float, float]]:
    """What arrives a second, from (seconds, how much): one point for each `bin_s`, until the last one."""
    if not moments:
        return []
    sums = [0.0] * (int(max(at for at, _ in moments) / bin_s) + 1)
    for at, much in moments:
        sums[int(at / bin_s)] += much
    return [(number * bin_s, much / bin_s) for number, much in enumerate([*sums, 0.0])]


def running_total(moments: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The sum so far, from (seconds, how much)."""
    total, found = 0.0, [(0.0, 0.0)]
    for at, much in sorted(moments):
        total += much
        found.append((at, total))
    return found


def axis_ticks(end: float, count: int = TICKS) -> list[float]:
    """Round numbers from 0 to `end`: steps of 1, 2 or 5 times a power of ten, about `count` of them."""
    if end <= 0:
        return [0.0]
    raw = end / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    return [number * step for number in range(int(end / step + 1e-9) + 1)]


def _times(chart: Chart | Lanes) -> list[float]:
    if isinstance(chart, Chart):
        return [at for line in chart.lines for at, _ in line.points]
    return [at for lane in chart.lanes for at in (*lane.ticks, *(span.end for span in lane.spans))]


def _chart(chart: Chart | Lanes, marks: Sequence[Mark], end: float) -> str:
    height = CHART_HEIGHT if isinstance(chart, Chart) else LANE_HEIGHT * len(chart.lanes)
    drawn, legend = _lines(chart, end) if isinstance(chart, Chart) else _lanes(chart, end)
    frame = _frame(chart.title, height, marks, end)
    size = f'viewBox="0 0 {WIDTH} {height + TOP + BOTTOM}" role="img" aria-label="{escape(chart.title)}"'
    items = "".join(f'<li><i style="background:{colour}"></i>{escape(name)}</li>' for name, colour in legend)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{frame}{drawn}</svg>'
    return f'{svg}\n<ul class="legend">{items}</ul>'


def _x(at: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (at / end if end else 0.0)


def _frame(title: str, height: int, marks: Sequence[Mark], end: float) -> str:
    bottom = TOP + height
    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>']
    for tick in axis_ticks(end):
        x = _x(tick, end)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{bottom + 34}" text-anchor="middle">seconds</text>'
    )
    parts.append(f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="#333"/>')
    for number, mark in enumerate(marks, 1):
        x = _x(mark.at, end)
        said = f"<title>{escape(mark.name)}</title>"
        line = (
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#b00" stroke-dasharray="3 3"/>'
        )
        parts.append(
            f'<g>{said}{line}<text x="{x:.1f}" y="{TOP - 4}" text-anchor="middle">{number}</text></g>'
        )
    return "".join(parts)


def _lines(chart: Chart, end: float) -> tuple[str, list[tuple[str, str]]]:
    top = max((value for line in chart.lines for _, value in line.points), default=0.0) or 1.0
    parts = []

    def y(value: float) -> float:
        return TOP + CHART_HEIGHT * (1 - value / (top * 1.04))

    for tick in axis_ticks(top, 6):
        parts.append(
            f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{WIDTH - RIGHT}" y2="{y(tick):.1f}" stroke="#eee"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,.10g}</text>')
    middle = TOP + CHART_HEIGHT / 2
    turned = f'x="40" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 40 {middle:.0f})"'
    parts.append(f"<text {turned}>{escape(chart.unit)}</text>")
    legend = [(line.name, COLOURS[number % len(COLOURS)]) for number, line in enumerate(chart.lines)]
    for line, (name, colour) in zip(chart.lines, legend, strict=True):
        path: list[str] = []
        for at, value in _thinned(line.points):
            x = _x(at, end)
            corner = f"H{x:.1f}V{y(value):.1f}" if line.steps else f"L{x:.1f},{y(value):.1f}"
            path.append(corner if path else f"M{x:.1f},{y(value):.1f}")
        drawn = f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        parts.append(f"<g><title>{escape(name)}</title>{drawn}</g>")
    return "".join(parts), legend


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(points) <= POINTS_MAX:
        return points
    every = -(-len(points) // POINTS_MAX)
    return [*points[::every], points[-1]]


def _lanes(chart: Lanes, end: float) -> tuple[str, list[tuple[str, str]]]:
    names = list(dict.fromkeys(span.name for lane in chart.lanes for span in lane.spans))
    colours = {name: SPAN_COLOURS[number % len(SPAN_COLOURS)] for number, name in enumerate(names)}
    parts = []
    for number, lane in enumerate(chart.lanes):
        y = TOP + number * LANE_HEIGHT
        parts.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(lane.name)}</text>')
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#eee"/>')
        for span in lane.spans:
            x, width = _x(span.begin, end), max(1.0, _x(span.end, end) - _x(span.begin, end))
            said = f"<title>{escape(span.name)}: {span.begin:.2f} to {span.end:.2f} s</title>"
            place = f'x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{LANE_HEIGHT - 8}"'
            parts.append(f'<rect {place} fill="{colours[span.name]}" fill-opacity="0.75">{said}</rect>')
        if lane.ticks:
            path = "".join(f"M{_x(at, end):.1f},{y + 5}v{LANE_HEIGHT - 10}" for at in lane.ticks)
            parts.append(f'<path d="{path}" stroke="{COLOURS[0]}" stroke-width="1"/>')
    legend = list(colours.items())
    if chart.tick:
        legend.insert(0, (chart.tick, COLOURS[0]))
    return "".join(parts), legend


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.names)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f"<h2>{escape(table.title)}</h2>\n<table><tr>{head}</tr>{rows}</table>"
