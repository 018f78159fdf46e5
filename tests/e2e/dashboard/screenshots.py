"""Takes the pictures in docs/images (`make screenshots`): an hour passes in seconds, as the clock is ours."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import uvicorn

from adaptive.contracts import Arm
from adaptive.settings import Settings
from collectors.open import open_transport
from controller.app import create_app
from tests.e2e.dashboard.browser import browser, sign_in
from tests.e2e.dashboard.scenario import TURBO_TAU, Engine, publish
from tests.waiting import eventually

IMAGES: Final = Path(__file__).parents[3] / "docs" / "images"
START: Final = 1_796_115_600.0  # 2026-12-01 09:00 UTC
ADMIN_KEY: Final = "adm_pictures"
ADAPTERS: Final = {1: 2.34, 2: 2.71, 3: 1.72, 4: 2.98}
PUBLISHED: Final = {8: 1, 24: 2, 41: 3, 52: 4}
"""Minute -> version; the third does not keep what the gate saw."""


class Clock:
    """Time that the script moves."""

    now = START

    def __call__(self) -> float:
        """Tell it."""
        return self.now


def serves(api: httpx.Client, version: int) -> bool:
    """Whether this version is the champion."""
    return bool(api.get("/v1/tenants/acme").json()["champion"] == version)


def counted(api: httpx.Client, steps: int) -> bool:
    """Whether the controller has counted all verify steps."""
    arms = api.get("/v1/tenants/acme").json()["arms"]
    return bool(sum(arm["verify_steps"] for arm in arms) == steps)


def live_through(clock: Clock, api: httpx.Client, settings: Settings) -> None:
    """Play an hour of traffic."""
    for tenant in ("acme", "globex", "initech"):
        api.post("/v1/tenants", json={"id": tenant, "learn": tenant != "initech"}).raise_for_status()
    transport = open_transport(settings.resolved_log_url)
    engine = Engine(transport, START)
    for minute in range(62):
        clock.now = START + 60 * minute
        if minute in PUBLISHED:
            version = PUBLISHED[minute]
            publish(transport, "acme", version, max(ADAPTERS[version], 2.2), clock.now)
            eventually(partial(serves, api, version))
        acme = api.get("/v1/tenants/acme").json()
        dip = 0.25 if 32 <= minute < 38 else 0.0  # what the tenant asks for changes for a while
        engine.serve("acme", Arm.OFF, 0, 1, 1.0)
        if acme["champion"] is None:
            engine.serve("acme", Arm.TURBO, 0, 40, TURBO_TAU)
        else:
            engine.serve("acme", Arm.TURBO, 0, 8, TURBO_TAU - dip)
            engine.serve("acme", Arm.ADAPTER, acme["champion"], 36, ADAPTERS[acme["champion"]] - dip)
        engine.serve("globex", Arm.TURBO, 0, 12, 2.4)
        steps = sum(item.verify_steps for item in engine.totals.values() if item.tenant == "acme")
        engine.report(clock.now + 20, {"acme": acme["policy_version"]})
        eventually(partial(counted, api, steps))
    clock.now += 30
    policy = api.get("/v1/tenants/acme").json()["policy_version"]
    engine.report(clock.now, {"acme": policy})
    status = {
        "state": "running",
        "updated_at": clock.now,
        "updates_due": 1,
        "intake": {"lag": {"0": 31, "1": 7}, "behind_seconds": 4.2},
        "tenants": {
            "acme": {
                "requests": 2412,
                "tokens_seen": 163_920,
                "tokens_since_update": 8_310,
                "training": "training step 18/40",
                "updates": 6,
                "last_gain": 0.061,
            }
        },
    }
    (settings.home / "learner").mkdir()
    (settings.home / "learner" / "status.json").write_text(json.dumps(status))
    transport.close()


def take(address: str) -> None:
    """Photograph the page, light and dark."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        with browser(color_scheme=scheme, viewport={"width": 1360, "height": 900}) as page:
            page.goto(address)
            if scheme == "light":
                page.screenshot(path=IMAGES / "dashboard-sign-in.png")
            sign_in(page, address, ADMIN_KEY)
            page.screenshot(path=IMAGES / f"dashboard-{scheme}.png", full_page=True)
            if scheme == "light":
                page.click("#rollback")
                page.screenshot(path=IMAGES / "dashboard-confirm.png")


def main() -> None:
    """Serve, play, photograph."""
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as listening:
        settings = Settings(home=Path(directory), admin_key=ADMIN_KEY)
        clock = Clock()
        server = uvicorn.Server(uvicorn.Config(create_app(settings, clock), log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
            with httpx.Client(base_url=address, headers=headers, trust_env=False) as api:
                eventually(lambda: server.started)
                live_through(clock, api, settings)
            take(address)
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()
