"""Benchmark `admin_api`: reads of the admin API at a fixed rate, on a database that has been used for long.

A real controller process answers; requests come at times fixed beforehand, and each is timed from when it
was due, so that a slow answer does not hide the waiting of those behind it. The first pages of lists are
compared with pages from their middle.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
from sqlalchemy import insert

from adaptive.contracts import Arm
from controller.database import Database
from controller.models import ArmSample, ArmTotal, Decision, Tenant
from deploy.kafka.broker import free_port
from tests.bench import result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEY: Final = "adm_bench"
ARMS: Final = ((Arm.TURBO, 0), (Arm.ADAPTER, 1), (Arm.OFF, 0))
SAMPLE_SECONDS: Final = 5
DAY: Final = 86_400


def main(arguments: Sequence[str]) -> Path:
    """Run the benchmark; the path of its JSON."""
    parser = argparse.ArgumentParser(prog="admin_api", description=__doc__)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--busy", type=int, default=20, help="tenants with a day of samples")
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small database and one short round")
    options = parser.parse_args(arguments)
    if options.quick:
        options.tenants, options.decisions, options.busy = 50, 5000, 2
        options.seconds, options.rounds = 3.0, 1
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        ids = fill(home, options)
        with running(home) as url:
            rounds = [asyncio.run(read(url, ids, options, seed)) for seed in range(options.rounds)]
            pages = [asyncio.run(page_times(url, ids, options.decisions)) for _ in range(5 * options.rounds)]
    by_route: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for taken in rounds:
        for route, times in {**taken, "all reads": [one for each in taken.values() for one in each]}.items():
            ordered = sorted(times)
            for name, share in (("p50 ms", 0.5), ("p99 ms", 0.99), ("most ms", 1.0)):
                value = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
                by_route[route][name].append(1000 * value)
    return result.write(
        "admin_api",
        result.command("admin_api", arguments),
        {
            route: {name: result.spread(values) for name, values in measures.items()}
            for route, measures in by_route.items()
        },
        {
            f"time of a page from the middle over the first, {name}": result.spread(
                [page[name] for page in pages]
            )
            for name in pages[0]
        },
        f"{options.tenants} tenants, {options.decisions} decisions, a day of samples of {options.busy} "
        f"tenants; {options.rate:g} reads/s for {options.seconds:g} s, {options.rounds} rounds; SQLite, one "
        "controller process, the client on the same machine.",
    )


def fill(home: Path, options: argparse.Namespace) -> list[str]:
    """Make the database; tenant ids in order."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "admin_key").write_text(KEY)
    database = Database(f"sqlite:///{home}/control.db")
    database.migrate()
    ids = [f"tenant-{number:04d}" for number in range(options.tenants)]
    now = time.time()
    counts = dict.fromkeys(("requests", "drafted", "emitted"), 100) | {
        "verify_steps": 50,
        "accepted": 40,
        "accepted_per_position": [20, 10, 6, 4, 0, 0, 0, 0],
        "engine_seconds": 1.0,
        "verify_steps_by_context": [50, 0, 0, 0],
        "accepted_by_context": [40, 0, 0, 0],
    }
    with database.write() as session:
        for tenant in ids:
            session.add(_tenant(tenant, now))
        session.flush()
        session.execute(
            insert(ArmTotal),
            [
                {"tenant": tenant, "arm": arm.value, "version": version, **counts}
                for tenant in ids
                for arm, version in ARMS
            ],
        )
        for first in range(0, options.decisions, 20_000):
            session.execute(
                insert(Decision),
                [
                    _decision(ids[number % len(ids)], number, now)
                    for number in range(first, min(first + 20_000, options.decisions))
                ],
            )
        for tenant in ids[: options.busy]:
            session.execute(
                insert(ArmSample),
                [
                    {
                        "tenant": tenant,
                        "arm": arm.value,
                        "version": version,
                        "engine": "engine-1",
                        "bucket": int(now) // SAMPLE_SECONDS * SAMPLE_SECONDS - ago,
                        **counts,
                    }
                    for ago in range(0, DAY, SAMPLE_SECONDS)
                    for arm, version in ARMS
                ],
            )
    database.close()
    return ids


def _tenant(tenant: str, now: float) -> Tenant:
    return Tenant(
        id=tenant,
        created_at=now - DAY,
        state="active",
        learn=True,
        share=False,
        freeze=False,
        pin=None,
        weight=1.0,
        max_lookahead=8,
        control_share=0.05,
        off_share=0.01,
        revision=1,
        policy_version=1,
        decided_at=now - DAY,
        champion=None,
        champion_since=now - DAY,
    )


def _decision(tenant: str, number: int, now: float) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "decided_at": now - DAY + number * 0.01,
        "kind": "hold",
        "actor": "policy",
        "version": 1,
        "champion": None,
        "policy_version": 1,
        "reason": "lift of 3.1 % is within noise",
        "evidence": {"lift": 0.031, "lower": -0.01, "upper": 0.07},
    }


class running:  # noqa: N801  reads as a statement: `with running(home) as url`
    """A controller process on a home directory.

    Args:
        home: With its database.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def __enter__(self) -> str:
        port = free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ADAPTIVE_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "adaptive.cli", "control", "--home", str(self._home)],
            env={
                **environment,
                "ADAPTIVE_CONTROL_PORT": str(port),
                "ADAPTIVE_CONTROL_REQUESTS_PER_SECOND": "100000",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"{url}/readyz", trust_env=False).is_success:
                    return url
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError("the controller did not start")
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def routes(ids: Sequence[str], generator: random.Random) -> Iterator[tuple[str, str]]:
    """Name and path of reads as a dashboard and a script make them, without end."""
    while True:
        tenant = generator.choice(ids)
        yield "tenant", f"/v1/tenants/{tenant}"
        yield "tenants, a page", f"/v1/tenants?limit=50&after={generator.choice(ids)}"
        yield "decisions of a tenant", f"/v1/tenants/{tenant}/decisions?limit=50"
        yield "versions of a tenant", f"/v1/tenants/{tenant}/versions"
        yield "decisions", "/v1/decisions?limit=50"
        yield "series of a tenant", f"/v1/tenants/{tenant}/series"
        yield "engines", "/v1/engines"
        yield "keys of a tenant", f"/v1/tenants/{tenant}/keys"


async def read(
    url: str, ids: Sequence[str], options: argparse.Namespace, seed: int
) -> dict[str, list[float]]:
    """Seconds from when each read was due to its answer, by route."""
    taken: dict[str, list[float]] = defaultdict(list)
    chosen = routes(ids, random.Random(seed))  # noqa: S311  reproducible on purpose
    async with _client(url) as client:

        async def one(due: float, route: str, path: str) -> None:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            answer = await client.get(path)
            taken[route].append(time.perf_counter() - due)
            if not answer.is_success:
                raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:200]}")

        began = time.perf_counter() + 0.5
        await asyncio.gather(
            *(
                one(began + number / options.rate, *next(chosen))
                for number in range(int(options.rate * options.seconds))
            )
        )
    return taken


async def page_times(url: str, ids: Sequence[str], decisions: int) -> dict[str, float]:
    """Time of a page from the middle over that of the first, per list."""
    found = {}
    async with _client(url) as client:
        for name, path, middle in (
            ("tenants", "/v1/tenants", ids[len(ids) // 2]),
            ("decisions", "/v1/decisions", f"decision_{decisions // 2}"),
        ):
            times = []
            for cursor in ("", f"&after={middle}"):
                began = time.perf_counter()
                answer = await client.get(f"{path}?limit=50{cursor}")
                times.append(time.perf_counter() - began)
                if len(answer.raise_for_status().json()["data"]) < min(50, len(ids) // 2 - 1):
                    raise RuntimeError(f"{path}: the page{cursor} is short")
            found[name] = times[1] / times[0]
    return found


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url,
        timeout=30,
        trust_env=False,
        headers={"Authorization": f"Bearer {KEY}"},
        limits=httpx.Limits(max_connections=32),
    )
