"""The dashboard in a real browser, on a real controller fed over the log."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from adaptive.contracts import Arm
from adaptive.settings import Settings
from collectors.open import open_transport
from tests.e2e.dashboard.browser import browser, sign_in
from tests.e2e.dashboard.scenario import Engine, publish
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

ADMIN_KEY = "adm_browser"


@dataclass
class Service:
    """A controller process with twelve minutes of traffic."""

    process: subprocess.Popen[bytes]
    address: str
    api: httpx.Client
    engine: Engine
    tenant_key: str

    def tenant(self) -> Any:
        """Show the tenant."""
        return self.api.get("/v1/tenants/acme").raise_for_status().json()

    def serves(self, version: int) -> bool:
        """Whether this version is the champion."""
        return bool(self.tenant()["champion"] == version)

    def serve(self, tau: float, at: float) -> None:
        """Let the champion and turbo serve, and report."""
        champion = self.tenant()["champion"]
        self.engine.serve("acme", Arm.TURBO, 0, 10, 2.0)
        if champion is not None:
            self.engine.serve("acme", Arm.ADAPTER, champion, 20, tau)
        self.engine.report(at)


@pytest.fixture
def service(tmp_path: Any) -> Iterator[Service]:
    """`adaptive control` with two versions published and traffic reported minute by minute."""
    home = tmp_path / "home"
    home.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = Settings(home=home, control_port=port, admin_key=ADMIN_KEY)
    transport = open_transport(settings.resolved_log_url)
    command = [
        sys.executable,
        "-m",
        "adaptive.cli",
        "control",
        "--home",
        str(home),
        "--control-port",
        str(port),
    ]
    address = f"http://127.0.0.1:{port}"
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, env=os.environ | {"ADAPTIVE_ADMIN_KEY": ADMIN_KEY}, stderr=log) as process,
        httpx.Client(base_url=address, headers=headers, trust_env=False) as api,
    ):

        def ready() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            try:
                return api.get("/readyz").is_success
            except httpx.TransportError:
                return False

        try:
            eventually(ready)
            for tenant in ("acme", "globex"):
                api.post("/v1/tenants", json={"id": tenant, "learn": True}).raise_for_status()
            key = (
                api.post("/v1/tenants/acme/keys", json={"scope": "tenant:read"})
                .raise_for_status()
                .json()["key"]
            )
            service = Service(process, address, api, Engine(transport, time.time() - 1800), key)
            now = time.time()
            for version, tau in ((1, 2.3), (2, 2.7)):
                publish(transport, "acme", version, tau, now)
                eventually(partial(service.serves, version))
            for minute in range(12, 0, -1):
                service.serve(2.7, now - 60 * minute)
            eventually(lambda: any(arm["requests"] == 240 for arm in service.tenant()["arms"]))
            yield service
        finally:
            process.kill()
            transport.close()


@contextmanager
def watched(**context: Any) -> Iterator[Page]:
    """A page whose errors, also violations of its Content-Security-Policy, fail the test."""
    errors: list[str] = []
    with browser(**context) as page:
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if "Policy" in message.text else None)
        yield page
    assert not errors


def check_accessibility(page: Page) -> None:
    """Let axe look for what keeps people out: WCAG 2.2 A and AA and best practices."""
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def press_until(page: Page, id_: str, most: int = 60) -> None:
    """Walk to a control with the tabulator key."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == id_:
            return
    pytest.fail(f"the tabulator key does not reach {id_!r}")


def test_an_operator_watches_and_decides(service: Service) -> None:
    """Charts and tables show what was reported; promote, roll back and freeze work after a confirmation."""
    with watched() as page:
        sign_in(page, service.address, ADMIN_KEY)
        assert ADMIN_KEY not in page.url
        expect(page.locator("h1")).to_have_text("acme")
        expect(page.locator("figure svg")).to_have_count(5)
        page.locator("#summary-tau").click()
        first = page.locator("#table-tau tbody tr").first
        expect(first).to_contain_text(re.compile(r"2\.[67]\d"))
        # A dialog that is cancelled does nothing and gives the focus back.
        page.click("#rollback")
        expect(page.locator("dialog")).to_contain_text("goes back from adapter@2")
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).not_to_be_visible()
        assert page.evaluate("document.activeElement.id") == "rollback"
        assert service.tenant()["champion"] == 2
        page.click("#rollback")
        page.click("#confirm-yes")
        expect(page.get_by_role("status").filter(has_text="Rolled back")).to_be_focused()
        assert service.tenant()["champion"] == 1
        page.select_option("#version", "2")
        page.click("#promote")
        expect(page.locator("#confirm-text")).to_contain_text("Version 2 of tenant acme")
        page.click("#confirm-yes")
        expect(page.locator("#numbers")).to_contain_text("adapter@2")
        page.click("#freeze")
        page.click("#confirm-yes")
        expect(page.locator("#title")).to_contain_text("frozen")
        assert service.tenant()["freeze"] is True


def test_the_page_keeps_fresh_without_taking_the_focus(service: Service) -> None:
    """New numbers and decisions come by themselves, are announced, and leave focus and tables."""
    with watched() as page:
        sign_in(page, service.address, ADMIN_KEY)
        page.locator("#summary-tau").click()
        page.focus("#rollback")
        before = page.locator("#arms").inner_text()
        service.serve(2.7, time.time())
        service.api.post("/v1/tenants/acme/promote", json={"version": 1}).raise_for_status()
        expect(page.locator("#numbers")).to_contain_text("adapter@1")
        expect(page.locator("#news")).to_have_text("promote: promoted by an operator")
        assert page.locator("#arms").inner_text() != before
        assert page.evaluate("document.activeElement.id") == "rollback"
        assert page.locator("#table-tau").get_attribute("open") is not None
        page.click("#pause")
        expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")


def test_what_goes_wrong_is_said_in_place(service: Service) -> None:
    """A refused action, a controller that is away and a wrong key are told on the page as alerts."""
    with watched() as page:
        page.goto(service.address)
        page.get_by_label("Key").fill("adm_wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("This key opens nothing")
        check_accessibility(page)
        sign_in(page, service.address, ADMIN_KEY)
        page.click("#pause")
        service.api.patch("/v1/tenants/acme", json={"pin": 2}).raise_for_status()
        page.click("#rollback")
        page.click("#confirm-yes")
        expect(page.locator("#error")).to_contain_text("pinned for tenant")
        expect(page.locator("#error")).to_be_focused()
        page.goto(service.address)
        service.process.kill()
        expect(page.locator("#trouble")).to_contain_text("cannot be reached")


def test_the_keyboard_is_enough(service: Service) -> None:
    """Signing in, skipping to the tenant, opening a table and rolling back need no pointer."""
    with watched() as page:
        page.goto(service.address)
        # The browser moves the focus some time after the page has loaded; keys typed before go nowhere.
        expect(page.get_by_label("Key")).to_be_focused()
        page.keyboard.type(ADMIN_KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("#freshness")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the tenant")).to_be_focused()
        page.keyboard.press("Enter")
        press_until(page, "rollback")
        page.keyboard.press("Enter")
        expect(page.locator("#confirm-no")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.locator("#confirm-yes")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#done")).to_contain_text("Rolled back")
        press_until(page, "summary-lift")
        page.keyboard.press("Enter")
        expect(page.get_by_role("region", name="Numbers of Lift of τ over turbo")).to_be_visible()
        assert service.tenant()["champion"] == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(service: Service, scheme: str) -> None:
    """Neither the page, with a table open, nor its dialog nor an empty tenant breaks a rule of axe."""
    with watched(color_scheme=scheme) as page:
        sign_in(page, service.address, ADMIN_KEY)
        page.locator("#summary-tau").click()
        check_accessibility(page)
        page.click("#freeze")
        check_accessibility(page)
        page.keyboard.press("Escape")
        page.get_by_role("link", name="globex").click()
        expect(page.locator("h1")).to_have_text("globex")
        check_accessibility(page)


def test_a_tenants_key_shows_that_tenant_without_buttons(service: Service) -> None:
    """It sees its own charts, no other tenant and nothing to press."""
    with watched() as page:
        sign_in(page, service.address, service.tenant_key)
        expect(page.locator("h1")).to_have_text("acme")
        expect(page.locator("figure svg")).to_have_count(5)
        assert "globex" not in page.content()
        expect(page.locator("#actions")).to_have_count(0)
        page.goto(f"{service.address}/?tenant=globex")
        expect(page.get_by_role("alert").first).to_contain_text("that this key may see")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Key")).to_be_visible()
        page.go_back()
        assert "Arm weights" not in page.content()


def test_without_scripts_a_question_comes_first(service: Service) -> None:
    """A browser that runs no scripts asks on a page of its own."""
    with watched(java_script_enabled=False) as page:
        sign_in(page, service.address, ADMIN_KEY)
        page.click("#rollback")
        expect(page.get_by_role("heading", name="Are you sure?")).to_be_visible()
        assert service.tenant()["champion"] == 2
        page.get_by_role("button", name="Yes, roll back").click()
        expect(page.locator("#done")).to_contain_text("Rolled back")
        assert service.tenant()["champion"] == 1
