"""Line charts over time as SVG: pygal lays them out, the page's style sheet colours them.

pygal's own styles, scripts and tooltips are taken out: the Content-Security-Policy allows none of them,
and colours that follow the reader's light or dark setting can only come from a style sheet.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

import pygal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# pygal looks for plugins, of which none is used, with an import hook that warns whenever it is asked.
sys.meta_path[:] = [hook for hook in sys.meta_path if type(hook).__module__ != "pygal"]

Point = tuple[float, float]
"""Unix seconds, value."""

_LABEL_CHARACTERS: Final = 9
"""Labels are padded to one length, so that the time axes of all charts lie above each other."""
_FIGURE_SPACE: Final = "\u2007"
_TIME_STEPS: Final = (60, 300, 600, 1_800, 3_600, 10_800, 21_600, 86_400, 432_000)
_MOST_TIME_LABELS: Final = 7
_DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart."""

    label: str
    style: str
    """CSS class that gives its colour and dashes."""
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened: a vertical line through a chart."""

    at: float
    style: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The stretch of time that all charts of a page show, and how long one point lasts (seconds)."""

    since: float
    until: float
    step: int


def line_chart(
    title: str,
    frame: Frame,
    lines: Sequence[Line],
    *,
    marks: Sequence[Mark] = (),
    level: float | None = None,
    at_least: tuple[float, float] | None = None,
    write: Callable[[float], str] = "{:g}".format,
) -> str:
    """Draw values over time.

    Args:
        title: What a screen reader says of the picture.
        frame: The time axis.
        lines: Series; steps without a point interrupt the line.
        marks: Vertical lines.
        level: A horizontal line to compare with.
        at_least: Values that the vertical axis shows in any case.
        write: How a value is written at the axis.

    Returns:
        An `<svg>` element without styles, scripts or ids.
    """
    values = [value for line in lines for _, value in line.points]
    values += [value for value in (level, *(at_least or ())) if value is not None]
    ticks = value_ticks(min(values), max(values)) if values else [0.0, 1.0]
    series = [(line.style, _interrupted(line.points, frame.step)) for line in lines]
    if level is not None:
        series.append(("level", [(frame.since, level), (frame.until, level)]))
    inside = [mark for mark in marks if frame.since <= mark.at <= frame.until]
    series += [(f"mark {mark.style}", [(mark.at, ticks[0]), (mark.at, ticks[-1])]) for mark in inside]
    return _draw(title, frame, series, {tick: write(tick) for tick in ticks}, height=230)


def lanes_chart(
    title: str,
    frame: Frame,
    lanes: Sequence[str],
    spans: Sequence[tuple[str, int, float, float]],
    events: Sequence[tuple[str, int, float]],
) -> str:
    """Draw a timeline: one lane below the other.

    Args:
        title: What a screen reader says of the picture.
        frame: The time axis.
        lanes: Names, from the top.
        spans: Style, lane, first and last second of what lasted.
        events: Style, lane and second of what happened.
    """
    top = len(lanes) - 1

    def within(at: float) -> float:
        return min(max(at, frame.since), frame.until)

    series: list[tuple[str, list[tuple[float, float | None]]]] = [
        (f"span {style}", [(within(first), float(top - lane)), (within(last), float(top - lane))])
        for style, lane, first, last in spans
        if last > frame.since and first < frame.until
    ]
    width = (frame.until - frame.since) / 400
    series += [
        (f"event {style}", [(within(at), top - lane), (within(at + width), top - lane)])
        for style, lane, at in events
        if frame.since <= at <= frame.until
    ]
    labels = {float(top - lane): name for lane, name in enumerate(lanes)}
    return _draw(title, frame, series, labels, height=60 + 26 * len(lanes), width=1_160, room=0.5)


def value_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Choose round values that enclose a range, at most `most` + 1 steps apart."""
    if high - low < 1e-9:
        low, high = low - 0.5 * max(abs(low), 1) * 0.1, high + 0.5 * max(abs(high), 1) * 0.1
    rough = (high - low) / (most - 1)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def time_ticks(since: float, until: float) -> list[float]:
    """Choose round moments (UTC) within a stretch of time."""
    step = next(
        (step for step in _TIME_STEPS if (until - since) / step <= _MOST_TIME_LABELS), _TIME_STEPS[-1]
    )
    first = math.ceil(since / step)
    return [float(index * step) for index in range(first, math.floor(until / step) + 1)]


def _interrupted(points: Sequence[Point], step: int) -> list[tuple[float, float | None]]:
    """Break a line where steps are missing; a lone point becomes a dash as long as its step."""
    drawn: list[tuple[float, float | None]] = []
    for index, (at, value) in enumerate(points):
        before = index > 0 and at - points[index - 1][0] <= step
        after = index + 1 < len(points) and points[index + 1][0] - at <= step
        if index > 0 and not before:
            drawn.append((at - step / 2, None))
        drawn.append((at, value))
        if not before and not after:
            drawn.append((at + step * 0.8, value))
    return drawn


def _draw(
    title: str,
    frame: Frame,
    series: Sequence[tuple[str, Sequence[tuple[float, float | None]]]],
    labels: dict[float, str],
    *,
    height: int,
    width: int = 560,
    room: float = 0.0,
) -> str:
    far = frame.until - frame.since >= _DAY_SECONDS + frame.step

    def moment(at: float) -> str:
        return datetime.fromtimestamp(at, UTC).strftime("%d %b" if far else "%H:%M")

    chart = pygal.XY(
        width=width,
        height=height,
        margin=6,
        margin_right=14,
        js=[],
        css=[],
        no_prefix=True,
        show_legend=False,
        show_dots=False,
        allow_interruptions=True,
        xrange=(frame.since, frame.until),
        range=(min(labels) - room, max(labels) + room),
        x_labels=time_ticks(frame.since, frame.until),
        x_value_formatter=moment,
        y_labels=[
            {"value": value, "label": label.rjust(_LABEL_CHARACTERS, _FIGURE_SPACE)}
            for value, label in labels.items()
        ],
        style=pygal.style.Style(label_font_size=11),
    )
    # pygal needs a point to lay out its axes by.
    blank = ("blank", [(frame.since, min(labels)), (frame.until, min(labels))])
    for name, points in (*series, blank):
        chart.add(name, list(points))
    return _clean(chart.render_tree(), title, [*(style for style, _ in series), "blank"])


def _clean(svg: ET.Element, title: str, styles: Sequence[str]) -> str:
    """Leave shapes and texts; name the series by our classes."""
    root = ET.Element("svg", {"viewBox": svg.get("viewBox", ""), "class": "chart", "role": "img"})
    ET.SubElement(root, "title").text = title
    plot = next(group for group in svg.iter("g") if group.get("class") == "plot")
    inner = ET.SubElement(root, "g", {"transform": plot.get("transform", "")})
    for group in plot:
        shown = _copy(group)
        name = group.get("class", "")
        if name.startswith("series"):
            number = int(name.split("serie-")[1].split()[0])
            shown.set("class", f"series {styles[number]}")
        inner.append(shown)
    return ET.tostring(root, encoding="unicode")


def _copy(element: Any) -> ET.Element:
    kept = {key: value for key, value in element.attrib.items() if key in _ATTRIBUTES}
    copy = ET.Element(element.tag, kept)
    copy.text = element.text
    copy.extend(_copy(child) for child in element if child.tag in _TAGS)
    return copy


_TAGS: Final = frozenset({"g", "path", "rect", "text"})
_ATTRIBUTES: Final = frozenset({"class", "d", "x", "y", "width", "height", "transform"})
