"""What the page shows of one tenant: read from the database, put into charts and tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from adaptive.contracts import Arm
from controller.dashboard.charts import Frame, Line, Mark, lanes_chart, line_chart
from controller.learner_status import learner_state
from controller.models import Decision, Tenant, Version, VersionStatus
from controller.series import choose_step, read_series
from controller.tenants import get_tenant
from controller.views import decision_state, tenant_detail, version_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.orm import Session

    from controller.context import Control
    from controller.schemas import (
        ArmSeries,
        DecisionState,
        LearnerState,
        SeriesPoint,
        TenantDetail,
        VersionState,
    )

WINDOWS: Final = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
DEFAULT_WINDOW: Final = "1h"
_STEPS: Final = {"15m": 60, "1h": 60, "6h": 300, "24h": 3_600, "7d": 3_600, "30d": 86_400}
LISTED_TENANTS: Final = 50
LISTED_DECISIONS: Final = 25
LISTED_VERSIONS: Final = 25
DRAWN_DECISIONS: Final = 500
SHOWN_ADAPTERS: Final = 3
"""Newest adapter versions with lines of their own; older ones share one."""
NOTHING: Final = "\u2013"
"""In a table where an arm did nothing."""
LANES: Final = ("serving", "promote", "rollback", "drift")
_LANE_OF: Final = {
    "promote": 1,
    "rollback": 2,
    "refuse": 2,
    "drift": 3,
    "alert": 3,
}
"""Decision kind -> lane of the timeline."""
_PROMOTABLE: Final = frozenset(
    {VersionStatus.CANDIDATE, VersionStatus.RETIRED, VersionStatus.ROLLED_BACK, "shadow", "canary"}
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One column of a chart's table."""

    heading: str
    style: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture, its legend and the same numbers as a table."""

    id: str
    title: str
    unit: str
    about: str
    svg: str
    legend: Sequence[Cell]
    rows: Sequence[tuple[float, Sequence[str]]]
    """Per point of time, newest first: Unix seconds and a cell per entry of the legend."""


@dataclass(frozen=True, slots=True)
class TenantPage:
    """All that the page shows of one tenant."""

    tenant: TenantDetail
    charts: Sequence[Chart]
    timeline: str
    versions: Sequence[VersionState]
    promotable: Sequence[VersionState]
    decisions: Sequence[DecisionState]
    learner: LearnerState | None
    speeds: dict[str, float | None]
    """Tokens per second of engine time within the window: `serving` and `turbo`."""
    has_traffic: bool


@dataclass(frozen=True, slots=True)
class TenantList:
    """Links to tenants."""

    ids: Sequence[tuple[str, str]]
    """Id and what serves."""
    prefix: str
    more: bool


def tenant_list(session: Session, only: str | None, prefix: str) -> TenantList:
    """List the tenants that a session may see, by name.

    Args:
        session: Database session.
        only: The one tenant that may be seen; None: all.
        prefix: What the names begin with.
    """
    query = select(Tenant.id, Tenant.champion).order_by(Tenant.id).limit(LISTED_TENANTS + 1)
    if only is not None:
        query = query.where(Tenant.id == only)
    if prefix:
        query = query.where(Tenant.id >= prefix, Tenant.id < prefix + "\U0010ffff")
    rows = session.execute(query).all()
    ids = [
        (row.id, arm_name(Arm.TURBO, 0) if row.champion is None else arm_name(Arm.ADAPTER, row.champion))
        for row in rows[:LISTED_TENANTS]
    ]
    return TenantList(ids, prefix, len(rows) > LISTED_TENANTS)


def tenant_page(session: Session, control: Control, tenant_id: str, window: str) -> TenantPage:
    """Read all that the page shows of a tenant.

    Args:
        session: Database session.
        control: Parts of the controller.
        tenant_id: Which tenant.
        window: One of WINDOWS.

    Raises:
        NotFoundError: there is no such tenant.
    """
    now = control.clock()
    tenant = get_tenant(session, tenant_id)
    since, step = now - WINDOWS[window], _STEPS[window]
    series = read_series(session, tenant_id, since, now, choose_step(since, now, step))
    frame = Frame(series.since, now, step)
    detail = tenant_detail(session, tenant, control.learner_status, now)
    versions = [
        version_state(row)
        for row in session.scalars(
            select(Version)
            .where(Version.tenant == tenant_id)
            .order_by(Version.version.desc())
            .limit(LISTED_VERSIONS)
        )
    ]
    decisions = session.scalars(
        select(Decision)
        .where(Decision.tenant == tenant_id)
        .order_by(Decision.id.desc())
        .limit(DRAWN_DECISIONS)
    ).all()
    arms = _merge(series.data)
    marks = [
        Mark(row.decided_at, LANES[_LANE_OF[row.kind]])
        for row in decisions
        if row.kind in _LANE_OF and row.decided_at >= frame.since
    ]
    serving = arm_name(Arm.ADAPTER, detail.champion) if detail.champion else arm_name(Arm.TURBO, 0)
    return TenantPage(
        tenant=detail,
        charts=[
            _tau(frame, arms, marks),
            _lift(frame, arms, marks),
            _speed(frame, arms, marks),
            _share(frame, arms, marks),
            _lookahead(frame, arms, marks, detail.lookahead),
        ],
        timeline=_timeline(frame, decisions),
        versions=versions,
        promotable=[
            item for item in versions if item.status in _PROMOTABLE and item.version != detail.champion
        ],
        decisions=[decision_state(row) for row in decisions[:LISTED_DECISIONS]],
        learner=learner_state(control.learner_status, now),
        speeds={
            "serving": _overall_speed(series.data, serving),
            "turbo": _overall_speed(series.data, arm_name(Arm.TURBO, 0)),
        },
        has_traffic=any(arm.points for arm in arms),
    )


def arm_name(arm: str, version: int) -> str:
    """Name an arm as users know it."""
    return f"adapter@{version}" if arm == Arm.ADAPTER else str(arm)


def moment(at: float | None) -> str:
    """Write a time (Unix seconds) in full, in UTC."""
    return "never" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def machine_time(at: float) -> str:
    """Write a time for the `datetime` attribute."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class _ArmLine:
    """An arm, or the older adapters together, over time."""

    name: str
    style: str
    points: Sequence[SeriesPoint]
    versions: Sequence[int]


def _merge(data: Sequence[ArmSeries]) -> list[_ArmLine]:
    """Order the arms, name their colours; older adapters share a line, where the busiest of a step stands."""
    by_arm = {(series.arm, series.version): series.points for series in data if series.points}
    lines = [
        _ArmLine(arm_name(arm, 0), f"arm-{name}", by_arm[arm, 0], [0])
        for arm, name in ((Arm.OFF, "off"), (Arm.TURBO, "turbo"))
        if (arm, 0) in by_arm
    ]
    adapters = sorted((version for arm, version in by_arm if arm == Arm.ADAPTER), reverse=True)
    newest, older = adapters[:SHOWN_ADAPTERS], adapters[SHOWN_ADAPTERS:]
    lines += [
        _ArmLine(
            arm_name(Arm.ADAPTER, version), f"arm-adapter-{index}", by_arm[Arm.ADAPTER, version], [version]
        )
        for index, version in enumerate(newest)
    ]
    if older:
        busiest: dict[int, SeriesPoint] = {}
        for version in older:
            for point in by_arm[Arm.ADAPTER, version]:
                kept = busiest.get(point.at)
                if kept is None or point.verify_steps > kept.verify_steps:
                    busiest[point.at] = point
        lines.append(
            _ArmLine(f"adapters to @{older[0]}", "arm-older", [busiest[at] for at in sorted(busiest)], older)
        )
    others = sorted(key for key in by_arm if key[0] not in {Arm.OFF, Arm.TURBO, Arm.ADAPTER})
    lines += [_ArmLine(arm_name(*key), "arm-other", by_arm[key], [key[1]]) for key in others]
    return lines


def _chart(
    id_: str,
    title: str,
    unit: str,
    about: str,
    frame: Frame,
    lines: Sequence[tuple[str, str, dict[int, float]]],
    cell: Callable[[float], str],
    **options: Any,
) -> Chart:
    """Draw lines (name, style, value by time) and lay the same numbers out as a table."""
    drawn = [Line(name, style, sorted(values.items())) for name, style, values in lines]
    times = sorted({at for _, _, values in lines for at in values}, reverse=True)
    return Chart(
        id=id_,
        title=title,
        unit=unit,
        about=about,
        svg=line_chart(
            f"{title} ({unit}) over time; the table below holds the numbers", frame, drawn, **options
        ),
        legend=[Cell(name, style) for name, style, values in lines if values],
        rows=[
            (at, [cell(values[at]) if at in values else NOTHING for _, _, values in lines if values])
            for at in times
        ],
    )


def _tau(frame: Frame, arms: Sequence[_ArmLine], marks: Sequence[Mark]) -> Chart:
    lines = [
        (arm.name, arm.style, {point.at: point.tau for point in arm.points if point.tau is not None})
        for arm in arms
        if arm.style != "arm-off"
    ]
    about = "Tokens that one verify step of the target yields: 1 without speculation, more is better."
    return _chart(
        "tau",
        "Acceptance length τ",
        "tokens per verify step",
        about,
        frame,
        lines,
        "{:.2f}".format,
        marks=marks,
        at_least=(1.0, 1.5),
        write="{:.2f}".format,
    )


def _lift(frame: Frame, arms: Sequence[_ArmLine], marks: Sequence[Mark]) -> Chart:
    turbo = {point.at: point for arm in arms if arm.style == "arm-turbo" for point in arm.points}
    lines = []
    for arm in arms:
        if not arm.style.startswith(("arm-adapter", "arm-older")):
            continue
        gains = {
            point.at: (point.tau / base.tau - 1) * 100
            for point in arm.points
            if (base := turbo.get(point.at)) is not None and point.tau is not None and base.tau
        }
        lines.append((arm.name, arm.style, gains))
    about = "How much longer the adapter's accepted drafts are than turbo's on concurrent control traffic."
    return _chart(
        "lift",
        "Lift of τ over turbo",
        "per cent",
        about,
        frame,
        lines,
        "{:+.1f} %".format,
        marks=marks,
        level=0.0,
        at_least=(-5.0, 10.0),
        write=_signed,
    )


def _speed(frame: Frame, arms: Sequence[_ArmLine], marks: Sequence[Mark]) -> Chart:
    lines = [
        (
            arm.name,
            arm.style,
            {
                point.at: point.tokens_per_engine_second
                for point in arm.points
                if point.tokens_per_engine_second is not None
            },
        )
        for arm in arms
    ]
    about = "Output tokens per second of engine time spent on the tenant's requests."
    return _chart(
        "speed",
        "Speed",
        "tokens per engine second",
        about,
        frame,
        lines,
        "{:.1f}".format,
        marks=marks,
        at_least=(0.0, 1.0),
        write="{:,g}".format,
    )


def _share(frame: Frame, arms: Sequence[_ArmLine], marks: Sequence[Mark]) -> Chart:
    totals: dict[int, int] = {}
    for arm in arms:
        for point in arm.points:
            totals[point.at] = totals.get(point.at, 0) + point.requests
    lines = [
        (
            arm.name,
            arm.style,
            {point.at: 100 * point.requests / totals[point.at] for point in arm.points if totals[point.at]},
        )
        for arm in arms
    ]
    about = "Which part of the tenant's requests each arm drafted for: the weights as they were carried out."
    return _chart(
        "share",
        "Arm weights",
        "per cent of requests",
        about,
        frame,
        lines,
        "{:.1f} %".format,
        marks=marks,
        at_least=(0.0, 100.0),
        write="{:g} %".format,
    )


def _lookahead(frame: Frame, arms: Sequence[_ArmLine], marks: Sequence[Mark], most: int) -> Chart:
    lines = [
        (
            arm.name,
            arm.style,
            {point.at: point.drafted / point.verify_steps for point in arm.points if point.verify_steps},
        )
        for arm in arms
        if arm.style != "arm-off"
    ]
    about = f"Tokens drafted per verify step; the level is the tenant's limit of {most}."
    return _chart(
        "lookahead",
        "Lookahead k",
        "drafted tokens per verify step",
        about,
        frame,
        lines,
        "{:.2f}".format,
        marks=marks,
        level=float(most),
        at_least=(0.0, 1.0),
        write="{:g}".format,
    )


def _timeline(frame: Frame, newest_first: Sequence[Decision]) -> str:
    """Draw what served when, and what was decided."""
    spans = []
    last = frame.until
    for index, row in enumerate(newest_first):
        older = newest_first[index + 1] if index + 1 < len(newest_first) else None
        if older is not None and older.champion == row.champion:
            continue
        style = "arm-turbo" if row.champion is None else f"version-{row.champion % 2}"
        spans.append((style, 0, row.decided_at, last))
        last = row.decided_at
    events = [
        (LANES[_LANE_OF[row.kind]], _LANE_OF[row.kind], row.decided_at)
        for row in newest_first
        if row.kind in _LANE_OF
    ]
    return lanes_chart(
        "What served when, and promotions, rollbacks and drift; the table of decisions below says the same",
        frame,
        LANES,
        list(reversed(spans)),
        events,
    )


def _overall_speed(data: Sequence[ArmSeries], name: str) -> float | None:
    points = [point for arm in data if arm_name(arm.arm, arm.version) == name for point in arm.points]
    seconds = sum(point.engine_seconds for point in points)
    return sum(point.tokens for point in points) / seconds if seconds > 0 else None


def _signed(per_cent: float) -> str:
    return f"{per_cent:+g} %" if per_cent else "0 %"
