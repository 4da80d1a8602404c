"""Two drawings of a scaling measurement, as SVG for a page that colours them: speed-up, and throughput.

They are drawn 360 wide and scaled by the page: at 400 px of screen a letter has the size that is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cordee.core.scaling import Estimate, Figures
from cordee.watch.scaling import number, span

WIDTH, HEIGHT = 360, 270
LEFT, RIGHT, TOP, BOTTOM = 44, 344, 16, 228
"""The edges of the drawing area; outside of it stand the axes' words."""
LARGE_RANGE = 8
"""From this ratio of the largest to the smallest count on, both axes are logarithmic, or the small counts stick."""
LABEL_GAP = 26
"""Words on an axis need so much room."""
VALUE_GAP = 32
"""And values within the drawing."""

Place = Callable[[float], float]
"""From a value to a coordinate."""


@dataclass(frozen=True)
class _Axes:
    x: Place
    y: Place
    top: float
    """The largest value that is drawn."""


def speed_up_chart(found: Sequence[Figures]) -> str:
    """Speed-up against workers, with intervals and the ideal line."""
    first, last = found[0].workers, found[-1].workers
    ideal = last / first
    axes, ticks = _speed_up_axes(found)
    parts = [_grid(axes.y, ticks, [f"{tick:g}" for tick in ticks])]
    parts.append(_under([axes.x(one.workers) for one in found], [str(one.workers) for one in found]))
    ends = f'x1="{axes.x(first):.1f}" y1="{axes.y(1):.1f}" x2="{axes.x(last):.1f}" y2="{axes.y(ideal):.1f}"'
    parts.append(f'<line class="ideal" {ends}/>')
    parts.append(_text(axes.x(last) - 10, axes.y(ideal) - 7, "ideal", "muted end"))
    line = " ".join(f"{axes.x(one.workers):.1f},{axes.y(_speed_up(one).value):.1f}" for one in found)
    parts.append(f'<polyline class="line" points="{line}"/>')
    places = [axes.x(one.workers) for one in found]
    parts += [_point(one, axes, labelled=x in _apart(places, VALUE_GAP)) for one, x in zip(found, places, strict=True)]
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 6, "workers", "middle"))
    return _svg("Speed-up by number of workers", parts)


def _speed_up_axes(found: Sequence[Figures]) -> tuple[_Axes, list[float]]:
    first, last = found[0].workers, found[-1].workers
    values = [_speed_up(one) for one in found]
    # An interval that reaches far beyond everything else is cut off, rather than pressing all else to the floor.
    most = max(last / first, *(one.value for one in values))
    top = min(1.3 * most, max([most, *(one.span[1] for one in values if one.span)]) * 1.05)
    if last / first < LARGE_RANGE:
        inset = 24
        return (
            _Axes(_linear(first, last, LEFT + inset, RIGHT - inset), _linear(0, top, BOTTOM, TOP), top),
            _round_ticks(top),
        )
    least = min(1.0, *(one.value for one in values)) / 1.3
    ticks = [2.0**power for power in range(math.ceil(math.log2(least)), math.floor(math.log2(top)) + 1)]
    return _Axes(_log(first, last, LEFT + 24, RIGHT - 24), _log(least, top, BOTTOM, TOP), top), ticks


def _point(one: Figures, axes: _Axes, *, labelled: bool) -> str:
    value = _speed_up(one)
    x, y = axes.x(one.workers), axes.y(value.value)
    title = f"{one.workers} workers: {value.value:.2f}" + (f" ({span(value)})" if value.span else "")
    bars, low = _whisker(value, x, axes)
    # Below, where no line runs; above if there is no room.
    label = low + 15 if low + 15 < BOTTOM - 4 else y - 10
    hollow = " shared" if one.oversubscribed else ""
    return (
        f'<g><title>{title}</title>{bars}<circle class="dot{hollow}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
        f"{_text(x, label, f'{value.value:.2f}', 'middle value') if labelled else ''}</g>"
    )


def throughput_chart(found: Sequence[Figures]) -> str:
    """Samples a second, a bar a count."""
    highest = max(one.throughput.value for one in found)
    top = min(1.3 * highest, max(one.throughput.span[1] if one.throughput.span else highest for one in found)) * 1.12
    y = _linear(0, top, BOTTOM, TOP)
    ticks = _round_ticks(top)
    slot = (RIGHT - LEFT) / len(found)
    centres = [LEFT + slot * (place + 0.5) for place in range(len(found))]
    parts = [_grid(y, ticks, [_short(tick) for tick in ticks]), _under(centres, [str(one.workers) for one in found])]
    axes = _Axes(lambda value: value, y, top)
    for x, one in zip(centres, found, strict=True):
        labelled = x in _apart(centres, VALUE_GAP)
        parts.append(_bar(one, x, min(56.0, slot * 0.62), axes, labelled=labelled))
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 6, "workers", "middle"))
    return _svg("Samples a second by number of workers", parts)


def _bar(one: Figures, x: float, width: float, axes: _Axes, *, labelled: bool) -> str:
    value = one.throughput
    height = axes.y(0) - axes.y(value.value)
    title = f"{one.workers} workers: {number(value.value)} samples/s"
    title += f" ({number(value.span[0])} to {number(value.span[1])})" if value.span else ""
    bars, _ = _whisker(value, x, axes)
    above = axes.y(min(axes.top, value.span[1] if value.span else value.value)) - 5
    hollow = " shared" if one.oversubscribed else ""
    corner = f'x="{x - width / 2:.1f}" y="{axes.y(value.value):.1f}"'
    label = _text(x, max(TOP - 4, above), _short(value.value), "middle value") if labelled else ""
    return (
        f'<g><title>{title}</title><rect class="bar{hollow}" {corner} width="{width:.1f}" height="{height:.1f}"/>'
        f"{bars}{label}</g>"
    )


def _whisker(value: Estimate, x: float, axes: _Axes) -> tuple[str, float]:
    """The interval as a line with caps, and where it ends below; an end beyond the drawing has no cap."""
    if value.span is None:
        return "", axes.y(value.value)
    low, high = value.span
    bottom, top = min(BOTTOM, axes.y(max(low, 1e-9))), axes.y(min(high, axes.top))
    caps = [bottom] if bottom < BOTTOM else []
    caps += [top] if high <= axes.top else []
    lines = [f'<line x1="{x:.1f}" y1="{bottom:.1f}" x2="{x:.1f}" y2="{top:.1f}"/>']
    lines += [f'<line x1="{x - 5:.1f}" y1="{at:.1f}" x2="{x + 5:.1f}" y2="{at:.1f}"/>' for at in caps]
    return f'<g class="whisker">{"".join(lines)}</g>', bottom


def _grid(y: Place, ticks: Sequence[float], words: Sequence[str]) -> str:
    lines = []
    for tick, word in zip(ticks, words, strict=True):
        at = y(tick)
        lines.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{RIGHT}" y2="{at:.1f}"/>')
        lines.append(_text(LEFT - 6, at + 4, word, "muted end"))
    return "".join(lines)


def _under(places: Sequence[float], words: Sequence[str]) -> str:
    """Words below the drawing; one that would touch its neighbour is left out."""
    room = _apart(places, LABEL_GAP)
    named = zip(places, words, strict=True)
    return "".join(_text(at, BOTTOM + 18, word, "muted middle") for at, word in named if at in room)


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Those places, from the last one back, that are at least so far from each other."""
    kept: list[float] = []
    for at in reversed(places):
        if not kept or kept[-1] - at >= gap:
            kept.append(at)
    return kept


def _text(x: float, y: float, words: str, classes: str) -> str:
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}">{words}</text>'


def _svg(title: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}</svg>'


def _speed_up(one: Figures) -> Estimate:
    return one.speed_up or Estimate(1.0)


def _linear(low: float, high: float, start: float, end: float) -> Place:
    reach = (high - low) or 1.0
    return lambda value: start + (end - start) * (value - low) / reach


def _log(low: float, high: float, start: float, end: float) -> Place:
    place = _linear(math.log(low), math.log(high), start, end)
    return lambda value: place(math.log(value))


def _round_ticks(top: float) -> list[float]:
    """From 0 up in steps of 1, 2 or 5 times a power of ten; four to seven of them."""
    power = 10.0 ** math.floor(math.log10(top / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if top / (power * factor) < 6.5)
    return [step * place for place in range(int(top / step) + 1)]


def _short(value: float) -> str:
    """A large number in few letters."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
