"""Chromium for tests of HTML pages, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["REQUIRED", "chromium"]

REQUIRED = "COORDGRAPH_REQUIRE_BROWSER"
"""Name of an environment variable: if it is 1, a test without a browser fails instead of being
skipped."""
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def _missing(reason: str) -> None:
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {reason}")
    pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium: the machine's own, else the one that `playwright install` downloaded.

    Skips the test, with the reason, if there is no Chromium.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        _missing("Playwright is not installed; pip install 'coordgraph[browser]'")
        raise
    own = next(filter(None, map(shutil.which, NAMES)), None)
    options: dict[str, Any] = {"executable_path": own} if own else {}
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(**options)
        except Error as error:
            _missing(f"Chromium does not start: {str(error).splitlines()[0]}")
            raise
        try:
            yield browser
        finally:
            browser.close()
