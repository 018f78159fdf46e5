"""Debian's Chromium, headless, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

# The page refreshes itself every five seconds, and the machine may be busy.
expect.set_options(timeout=20_000)
NAMES = ("chromium", "google-chrome")


def chromium() -> str:
    """Find the browser.

    Raises:
        FileNotFoundError: there is none; a test that needs it fails.
    """
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    raise FileNotFoundError("no Chromium: run `make chromium` (Debian: apt-get install chromium)")


@contextmanager
def browser(**context: Any) -> Iterator[Page]:
    """Open a page in a browser of its own.

    Args:
        context: Options of Playwright's browser context.
    """
    # Chromium's sandbox does not work for root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            page = started.new_context(**context).new_page()
            page.set_default_timeout(20_000)
            yield page
        finally:
            started.close()


def sign_in(page: Page, address: str, key: str) -> None:
    """Sign in with a key, as a user does."""
    page.goto(address)
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector("#freshness")
