"""The system's Chromium, and a page that notices what no page of ours may do."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
"""Options of `Opened.__call__` for a page as a phone shows it."""


class Opened:
    """Opens pages, and records their console messages and their requests to other places.

    Args:
        browser: A running browser. Playwright's loop stays in this thread; asyncio may run one while no page is open.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._loop = asyncio.get_running_loop()

    @contextmanager
    def __call__(self, address: str, *, allowed: str = "", **options: Any) -> Iterator[Page]:
        """Open an address; at the end, its console must be empty, and no other place may have been asked.

        Args:
            address: Where the page is: ``file://`` or ``http://``.
            allowed: How the addresses begin that it may ask for, besides its own.
            options: Of `Browser.new_context`: ``color_scheme``, ``viewport``, or those of `PHONE`.
        """
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)
        context = self._browser.new_context(**options)
        # Requests are noticed even if the machine has no network.
        faults: list[str] = []
        page = context.new_page()
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        mine = (address, "data:", "blob:", *([allowed] if allowed else []))
        page.on("request", lambda asked: None if asked.url.startswith(mine) else faults.append(f"asks {asked.url}"))
        page.goto(address)
        try:
            yield page
        finally:
            context.close()
            asyncio._set_running_loop(before)
        assert not faults, faults


def faults_of_access(page: Page) -> list[str]:
    """Return the faults that hinder people with a keyboard or a screen reader, by axe's rules (WCAG 2 A and AA)."""
    # Preloading asks for stylesheets, which a page that was opened as a file may not.
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "preload": False}
    found = Axe().run(page, options=rules).response["violations"]
    return [f"{item['id']}: {item['help']} ({item['nodes'][0]['html'][:200]})" for item in found]


@contextmanager
def chromium() -> Iterator[Opened]:
    """Chromium without a window. Without it, tests are skipped, but fail in CI, which installs it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("There is no Chromium: .ci/run installs it with apt-get install chromium.")
        pytest.skip("no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # Its sandbox cannot be had by root, or in most containers; the pages are ours.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        opened = Opened(browser)
        asyncio._set_running_loop(None)
        yield opened
        asyncio._set_running_loop(opened._loop)
        browser.close()
